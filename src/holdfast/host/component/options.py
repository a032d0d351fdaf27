"""The command lines of components: scheduler, controllers, agent, and of join tokens.

`python -m holdfast.host` and the `holdfast` command add these to theirs; each has a function that
runs it until it ends and returns the exit code.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.node_facts import NodeFacts
from holdfast.host.client import AsyncClient, from_kubeconfig
from holdfast.host.component import build, machine_facts
from holdfast.host.component.build import AgentSettings, ComponentSettings
from holdfast.host.component.component_process import Component
from holdfast.host.pki.join_tokens import create_token
from holdfast.host.process.foreground import say, until_signal
from holdfast.host.runtime import devices
from holdfast.host.runtime.cgroups.detect import default_parent
from holdfast.host.runtime.cgroups.limits import PIDS_MAX
from holdfast.host.runtime.confinement import SINGLE_TENANT, ConfinementRules
from holdfast.host.runtime.containers.image_stores import BYTES_MAX, MIB
from holdfast.host.runtime.containers.image_stores import OPTION as TENANT_IMAGES
from holdfast.host.runtime.containers.runc import SANDBOX_OPTION
from holdfast.host.runtime.run_as import OPTION as RUN_AS_RANGE
from holdfast.host.runtime.run_as import default_range, default_table, parse_range
from holdfast.host.runtime.starting import RuntimeOptions
from holdfast.model.errors import Invalid, invalid_option
from holdfast.model.kinds.node import GPU

Run = Callable[[argparse.Namespace], Awaitable[int]]
CONTAINER_EGRESS = "--container-egress"
GPUS = ("all", "none")
STDIN = Path("-")
PORT_SHARE_HELP = "Its share of fixed ports, if nodes share this network."
DEVICE_FORM = "class=fpga,id=fpga0,model=x,path=/dev/fpga0"
# The kernel's largest number of processes.
PIDS_LIMIT = 4_194_304
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)


def add_components(commands: Any) -> None:
    """Add all commands to a parser; the parsed arguments' `run` runs the command."""
    placing = commands.add_parser("scheduler", help="run one scheduler")
    _add_origin(placing, "main", scheduler)
    placing.add_argument("--shard", default="", help="I/N: only this part of all tenants")
    placing.add_argument("--tenants", default="", help="only these tenants, separated by commas")
    _add_origin(commands.add_parser("controllers", help="run all controllers"), "main", controllers)
    _add_agent(commands.add_parser("agent", help="run the agent of one node"))
    _add_token(commands.add_parser("token", help="create join tokens for nodes"))


def _add_origin(parser: argparse.ArgumentParser, name: str, run: Run) -> None:
    _add_servers(parser)
    parser.add_argument("--pki", type=Path, required=True, help="the directory of its certificates")
    parser.add_argument("--name", default=name, help="its name among processes of its kind")
    parser.set_defaults(run=run)


def _add_servers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        help="https://HOST:PORT of a server; repeat for each server",
    )


def _add_agent(parser: argparse.ArgumentParser) -> None:
    _add_servers(parser)
    parser.add_argument("--node", default="", help="the node's name; this computer's if empty")
    parser.add_argument("--data", type=Path, required=True, help="the agent's directory")
    parser.add_argument("--pki", type=Path, help="where its certificate is, if it does not join")
    parser.add_argument(
        "--token-file", type=Path, help="a file with a join token, for the first start; - is stdin"
    )
    for option in ("region", "zone", "pool", "address"):
        parser.add_argument(f"--{option}", default="")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--capacity", action="append", default=[], metavar="RESOURCE=AMOUNT")
    parser.add_argument("--port-share", default="", metavar="NUMBER/COUNT", help=PORT_SHARE_HELP)
    parser.add_argument("--facts", type=Path, help="a JSON file that describes the machine")
    parser.add_argument("--isolation", default="", help="of the work; the strongest if empty")
    parser.add_argument("--device", action="append", default=[], metavar=DEVICE_FORM)
    parser.add_argument("--gpus", choices=GPUS, default=GPUS[0], help="which GPUs to offer to work")
    parser.add_argument(
        "--images",
        type=Path,
        action="append",
        default=[],
        help="a directory of root file systems for containers; default: DATA/images",
    )
    parser.add_argument(
        "--cgroup", default=default_parent(), help="the parent of the cgroups of work"
    )
    parser.add_argument("--pids-max", type=int, default=PIDS_MAX, help="of each replica")
    parser.add_argument(
        TENANT_IMAGES,
        type=int,
        default=BYTES_MAX // MIB,
        help="disk space for the images pulled for one tenant (MiB)",
    )
    parser.add_argument(
        RUN_AS_RANGE, default="", metavar="FIRST-LAST", help="the user ids assigned to tenants"
    )
    parser.add_argument(
        SINGLE_TENANT, action="store_true", help="run the work of one tenant, as the agent's user"
    )
    parser.add_argument(
        CONTAINER_EGRESS, action="store_true", help="forward traffic of containers beyond this node"
    )
    parser.add_argument(
        SANDBOX_OPTION, type=Path, help="a runc-compatible program that runs sandboxed work"
    )
    parser.add_argument(
        "--hide", type=Path, action="append", default=[], help="a directory to hide from work"
    )
    parser.set_defaults(run=agent)


def _add_token(parser: argparse.ArgumentParser) -> None:
    create = parser.add_subparsers(dest="token_command", required=True).add_parser(
        "create", help="create a join token and print it once"
    )
    which = create.add_mutually_exclusive_group(required=True)
    which.add_argument("--node", default="", help="the only node that may use it")
    which.add_argument("--any", action="store_true", help="for any new node")
    create.add_argument("--ttl", default="1h", help="how long it is valid: 90s, 30m, 1h, 2d")
    create.add_argument("--kubeconfig", type=Path, required=True, help="an administrator's")
    create.set_defaults(run=token)


# Running components ------------------------------------------------------------------------------


async def scheduler(arguments: argparse.Namespace) -> int:
    return await _live(await build.scheduler(_origin(arguments), say), arguments)


async def controllers(arguments: argparse.Namespace) -> int:
    return await _live(await build.controllers(_origin(arguments), say=say), arguments)


async def agent(arguments: argparse.Namespace) -> int:
    return await run_agent(agent_settings(arguments), arguments)


async def run_agent(settings: AgentSettings, arguments: argparse.Namespace) -> int:
    return await _live(await build.agent(settings, say), arguments)


async def token(arguments: argparse.Namespace) -> int:
    """Create a join token. Only its text is printed, so that scripts can use it."""
    async with AsyncClient(from_kubeconfig(arguments.kubeconfig)) as client:
        say(await create_token(client, arguments.node, duration("--ttl", arguments.ttl)))
    return 0


async def _live(component: Component, arguments: argparse.Namespace) -> int:
    def greet() -> None:
        say(f"The {component.title} works with {', '.join(arguments.server)}")

    return await until_signal(component, greet)


def _servers(arguments: argparse.Namespace) -> tuple[str, ...]:
    if not arguments.server:
        raise Invalid("--server: must be given: https://HOST:PORT of a server")
    for server in arguments.server:
        if not server.startswith("https://"):
            raise invalid_option("--server", server, "must begin with https://")
    return tuple(dict.fromkeys(server.rstrip("/") for server in arguments.server))


def _origin(arguments: argparse.Namespace) -> ComponentSettings:
    return ComponentSettings(
        servers=_servers(arguments),
        pki=arguments.pki,
        name=arguments.name,
        shard=getattr(arguments, "shard", ""),
        tenants=getattr(arguments, "tenants", ""),
    )


def agent_settings(arguments: argparse.Namespace) -> AgentSettings:
    """Return the agent's settings on the command line. Raises Invalid."""
    given = machine_facts.from_file(arguments.facts) if arguments.facts is not None else NodeFacts()
    said = {it: getattr(arguments, it) for it in ("region", "zone", "pool", "address")}
    given = msgspec.structs.replace(
        given,
        labels={**given.labels, **machine_facts.pairs("--label", arguments.label)},
        capacity={**given.capacity, **machine_facts.pairs("--capacity", arguments.capacity)},
        **{field: text for field, text in said.items() if text},
    )
    if arguments.port_share:
        given = msgspec.structs.replace(
            given, port_share=machine_facts.port_share(arguments.port_share)
        )
    images = tuple(arguments.images) or (arguments.data / "images",)
    local = devices.parse_all(arguments.device)
    stated = [it.device_class for it in (*given.devices, *(it.device for it in local))]
    if arguments.gpus == GPUS[0] and GPU not in stated:
        local = (*local, *devices.gpus())
    given = msgspec.structs.replace(
        machine_facts.with_devices(given, local),
        images=given.images or machine_facts.images_in(images),
    )
    if not 1 <= arguments.pids_max <= PIDS_LIMIT:
        raise invalid_option(
            "--pids-max", str(arguments.pids_max), f"must be from 1 to {PIDS_LIMIT}"
        )
    if arguments.tenant_images_mib < 1:
        raise invalid_option(TENANT_IMAGES, str(arguments.tenant_images_mib), "must be at least 1")
    for field in ("region", "zone"):
        if not getattr(given, field):
            raise Invalid(f"--{field}: must be given: the scheduler needs it")
    rules = _rules(arguments)
    return AgentSettings(
        servers=_servers(arguments),
        node=arguments.node or machine_facts.host_name(),
        data=arguments.data,
        facts=machine_facts.complete_facts(given, arguments.data),
        pki=arguments.pki,
        token=_token(arguments),
        isolation=arguments.isolation,
        options=RuntimeOptions(
            cgroup=arguments.cgroup,
            pids_max=arguments.pids_max,
            devices=local,
            images=images,
            rules=rules,
            container_egress=arguments.container_egress,
            sandbox_runtime=_sandbox_runtime(arguments.sandbox_runtime),
            tenant_images_bytes=arguments.tenant_images_mib * MIB,
        ),
    )


def _sandbox_runtime(path: Path | None) -> Path | None:
    if path is not None and not path.is_absolute():
        raise invalid_option(SANDBOX_OPTION, str(path), "must be an absolute path")
    return path


def _rules(arguments: argparse.Namespace) -> ConfinementRules:
    """Return how tenants are separated: by their own user ids if the agent is root."""
    given = str(arguments.run_as_range)
    is_root = os.geteuid() == 0
    if given and (arguments.single_tenant or not is_root):
        why = f"with {SINGLE_TENANT}" if is_root else "by an agent that is not root"
        raise invalid_option(RUN_AS_RANGE, given, f"cannot be used {why}")
    for path in arguments.hide:
        if path.exists() and not path.is_dir():
            raise invalid_option(
                "--hide", str(path), "must be a directory: a file cannot be hidden"
            )
    hidden = (arguments.data, *arguments.hide, *filter(None, [arguments.pki]))
    if arguments.single_tenant or not is_root:
        return ConfinementRules(hidden=hidden)
    return ConfinementRules(parse_range(given or str(default_range())), default_table(), hidden)


def _token(arguments: argparse.Namespace) -> str:
    """Read it from a file or the standard input: all users can read a command line."""
    if arguments.token_file is None:
        return ""
    try:
        if arguments.token_file == STDIN:
            return sys.stdin.readline().strip()
        return str(arguments.token_file.read_text(encoding="ascii")).strip()
    except (OSError, ValueError) as error:
        raise Invalid(f"--token-file: {arguments.token_file} cannot be read: {error}") from error


def duration(option: str, text: str) -> timedelta:
    """Parse a duration such as 90s, 30m, 1h or 2d. Raises Invalid."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise invalid_option(option, text, "must be a duration such as 90s, 30m, 1h or 2d")
    return timedelta(seconds=int(found[1]) * SECONDS[found[2]])
