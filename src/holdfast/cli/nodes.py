"""The commands about nodes: cordon, uncordon, drain.

Each sets what the operator wants on the node, and nothing else: the commit keeps new work away, and
controller:drain does the rest. `drain` tells what that says of its progress until the node is
empty; interrupting it changes nothing, and `uncordon` takes it back.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, judged_as_usage, plain, run
from holdfast.host.client import Client
from holdfast.host.component.options import duration
from holdfast.model.kinds.node import Node
from holdfast.model.meta import ConditionStatus, condition
from holdfast.model.time import rfc3339, wall_ms

LOOK_S = 1.0
MANAGER = "holdfast-cli"
DRAINED = "Drained"


@click.command(epilog="Example: holdfast cordon node-1")
@click.argument("node")
@kubeconfig_option
def cordon(node: str, kubeconfig: Path | None) -> int:
    """Let a node take no new work. What runs there goes on."""
    return run(_set(kubeconfig, node, {"cordoned": True}, "cordoned"))


@click.command(epilog="Example: holdfast uncordon node-1")
@click.argument("node")
@kubeconfig_option
def uncordon(node: str, kubeconfig: Path | None) -> int:
    """Let a node take work again, and end its drain if there is one."""
    return run(_set(kubeconfig, node, {"cordoned": False, "drain": None}, "uncordoned"))


@click.command(epilog="Example: holdfast drain node-1 --deadline 10m --reason 'new disks'")
@click.argument("node")
@click.option("--deadline", default="", help="From when on budgets no longer hold it up: 90s, 10m.")
@click.option("--reason", default="", help="Why, for people.")
@click.option("--no-wait", is_flag=True, help="Only ask for it; `holdfast get nodes` shows it.")
@kubeconfig_option
def drain(node: str, deadline: str, reason: str, no_wait: bool, kubeconfig: Path | None) -> int:
    """Take all work off a node, inside the disruption budgets of the work, and keep it off."""

    async def command() -> int:
        # What an earlier wish said and this one does not is taken back by name.
        wish: dict[str, Any] = {"reason": reason, "deadline": None}
        if deadline:
            with judged_as_usage():
                ends = datetime.now(UTC) + duration("--deadline", deadline)
            wish["deadline"] = rfc3339(wall_ms(ends))
        code = await _set(kubeconfig, node, {"cordoned": True, "drain": wish}, "is being drained")
        if no_wait:
            return code
        async with client(kubeconfig) as to:
            return await _followed(to, node)

    return run(command())


async def _set(kubeconfig: Path | None, node: str, spec: dict[str, Any], became: str) -> int:
    async with client(kubeconfig) as to:
        await to.patch(Node, node, "", {"spec": spec}, manager=MANAGER)
    print(f"node.holdfast.dev/{plain(node)} {became}", flush=True)
    return ExitCode.DONE


async def _followed(to: Client, name: str) -> int:
    """Say what is left whenever that is different, until nothing is."""
    last = ""
    while True:
        node = await to.get(Node, name)
        if node.spec.drain is None:
            print(f"node.holdfast.dev/{plain(name)}: the drain was taken back")
            return ExitCode.FAILED
        said = condition(node.status.conditions, DRAINED)
        # What was said of an earlier drain is not about this one.
        is_new = said is not None and said.observed_generation >= node.metadata.generation
        if said is not None and is_new:
            if said.message != last:
                last = said.message
                print(f"node.holdfast.dev/{plain(name)}: {plain(said.message)}", flush=True)
            if said.status is ConditionStatus.TRUE:
                return ExitCode.DONE
        await asyncio.sleep(LOOK_S)
