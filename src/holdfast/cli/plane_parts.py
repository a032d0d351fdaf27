"""The commands that run one part of a plane: server, scheduler, controllers, agent.

They take what `python -m holdfast.host` takes and do the same; `up` starts all of them at once.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli.command_table import Section
from holdfast.cli.exit_codes import invalid_as_usage_error, run
from holdfast.host import __main__ as host
from holdfast.host.client.server_access import DATA, DATA_VARIABLE
from holdfast.host.component import machine_facts, options
from holdfast.host.runtime.cgroups.detect import PARENT as CGROUP
from holdfast.host.runtime.cgroups.detect import PARENT_VARIABLE as CGROUP_VARIABLE
from holdfast.host.runtime.cgroups.limits import PIDS_MAX
from holdfast.host.runtime.containers.image_stores import BYTES_MAX, MIB
from holdfast.host.server.server_options import OPTIONS, ServerOption, settings_of

SECTION = Section.PARTS
# The region and zone of a node for which none is given.
REGION, ZONE = "local", "local"
AGENTS = "agents"

Command = TypeVar("Command", bound=Callable[..., Any])

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=DATA,
    show_default=True,
    envvar=DATA_VARIABLE,
    help=f"The data directory. Also ${DATA_VARIABLE}.",
)
servers_option = click.option(
    "--server",
    multiple=True,
    required=True,
    help="https://HOST:PORT of a server. Repeat it for each server.",
)


def server_options(command: Command) -> Command:
    """The options of a server, for `server` and `up`."""
    for option in reversed(OPTIONS):
        command = _click_option(option)(command)
    return data_option(command)


def _click_option(option: ServerOption) -> Callable[[Command], Command]:
    """The option as click takes it."""
    name, default = f"--{option.name}", option.command_default or option.default
    if option.type is bool:
        return click.option(name, is_flag=True, help=option.help)
    if option.is_repeated:
        return click.option(name, multiple=True, help=option.help)
    types: dict[Any, Any] = {Path: click.Path(path_type=Path), int: click.IntRange(1)}
    return click.option(
        name,
        type=click.Choice(option.choices) if option.choices else types.get(option.type),
        default=default,
        show_default=default not in (None, ""),
        metavar=option.metavar,
        help=option.help or None,
    )


def _origin_options(command: Command) -> Command:
    for option in (
        click.option("--name", default="main", show_default=True, help="The name of the instance."),
        click.option(
            "--pki",
            type=click.Path(path_type=Path),
            required=True,
            help="Its certificates, as `holdfast component certificate` issues them.",
        ),
        servers_option,
    ):
        command = option(command)
    return command


def _log() -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s"
    )


@click.command(epilog="Example: holdfast server --listen 0.0.0.0:6443 --store etcd://db-1:2379")
@server_options
def server(**given: Any) -> int:
    """Run one server."""

    async def command() -> int:
        with invalid_as_usage_error():
            settings = settings_of(argparse.Namespace(**given))
            settings.check()
        return await host.run_server(settings)

    _log()
    return run(command())


@click.command(epilog="Example: holdfast scheduler --server https://plane:6443 --pki certificates")
@_origin_options
@click.option("--shard", default="", metavar="I/N", help="Only this shard of the tenants. [all]")
@click.option("--tenants", default="", metavar="A,B", help="Only these tenants. [all]")
def scheduler(**given: Any) -> int:
    """Run one scheduler. Of several with the same tenants one acts, the others stand by."""
    _log()
    return run(options.scheduler(argparse.Namespace(**given)))


@click.command(
    epilog="Example: holdfast controllers --server https://plane:6443 --pki certificates"
)
@_origin_options
def controllers(**given: Any) -> int:
    """Run all controllers. Of several processes, one acts for each controller."""
    _log()
    return run(options.controllers(argparse.Namespace(**given)))


@click.command(epilog="Example: holdfast agent --server https://plane:6443 --token-file token")
@servers_option
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="A file with a join token, for the first start only; - reads it from standard input.",
)
@click.option("--name", "node", default="", help="The node's name. [the host name]")
@click.option(
    "--data", type=click.Path(path_type=Path), help="The agent's data. [data/agents/NAME]"
)
@click.option(
    "--pki", type=click.Path(path_type=Path), help="Its certificate, if it does not join."
)
@click.option("--region", default=REGION, show_default=True, help="Its region; cannot change.")
@click.option("--zone", default=ZONE, show_default=True, help="Its zone; cannot change.")
@click.option("--pool", default="", help="The pool of the node. [general]")
@click.option("--address", default="", help="The address of its work. [127.0.0.1]")
@click.option("--label", multiple=True, metavar="KEY=VALUE", help="May be repeated.")
@click.option(
    "--capacity",
    multiple=True,
    metavar="cpu=2,memory=4Gi",
    help="What the node offers. [the whole machine]",
)
@click.option(
    "--port-share", default="", metavar="NUMBER/COUNT", help=options.PORT_SHARE_HELP + " [all]"
)
@click.option("--facts", type=click.Path(path_type=Path), help="JSON with further machine facts.")
@click.option("--isolation", default="", help="Isolation of the work. [the strongest available]")
@click.option("--device", multiple=True, metavar=options.DEVICE_FORM, help="May be repeated.")
@click.option("--gpus", type=click.Choice(options.GPUS), default=options.GPUS[0], show_default=True)
@click.option(
    "--images",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Root file systems for containers. [DATA/images]",
)
@click.option(
    "--cgroup",
    default=CGROUP,
    show_default=True,
    envvar=CGROUP_VARIABLE,
    help=f"The parent cgroup of the work. Also ${CGROUP_VARIABLE}.",
)
@click.option("--pids-max", type=int, default=PIDS_MAX, show_default=True)
@click.option(
    "--tenant-images-mib",
    type=int,
    default=BYTES_MAX // MIB,
    show_default=True,
    help="Disk space for the pulled images of one tenant.",
)
@click.option(
    "--run-as-range",
    default="",
    metavar="FIRST-LAST",
    help="User ids for tenants, one each. [/etc/subuid, or 2000000000-2147483647]",
)
@click.option("--single-tenant", is_flag=True, help="Run one tenant's work as the agent's user.")
@click.option("--container-egress", is_flag=True, help="Forward outgoing traffic of containers.")
@click.option(
    "--sandbox-runtime",
    type=click.Path(path_type=Path),
    help="The runtime of sandboxed containers. [runsc, where it is installed]",
)
@click.option(
    "--hide", multiple=True, type=click.Path(path_type=Path), help="A directory to hide from work."
)
def agent(**given: Any) -> int:
    """Run the agent of one node: this machine, or a part of it."""
    given["node"] = given["node"] or machine_facts.host_name()
    if given["data"] is None:
        given["data"] = Path(DATA) / AGENTS / given["node"]
    given["capacity"] = [one for text in given["capacity"] for one in text.split(",")]
    _log()

    async def command() -> int:
        arguments = argparse.Namespace(**given)
        with invalid_as_usage_error():
            settings = options.agent_settings(arguments)
        return await options.run_agent(settings, arguments)

    return run(command())
