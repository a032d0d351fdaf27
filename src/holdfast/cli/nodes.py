"""The commands about nodes: cordon, uncordon, drain.

Each sets fields in the node's spec, and nothing else: the commit keeps new work away, and
controller:drain evicts. `drain` prints the controller's progress until the node is empty;
interrupting it does not stop the drain, `uncordon` does.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from holdfast.cli.command_table import Section
from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, invalid_as_usage_error, plain, run
from holdfast.host.client import AsyncClient
from holdfast.host.component.options import duration
from holdfast.model.kinds.node import DRAINED, Node
from holdfast.model.meta import ConditionStatus, condition
from holdfast.model.time import rfc3339, wall_ms

SECTION = Section.NODES
LOOK_S = 1.0
MANAGER = "holdfast-cli"


@click.command(epilog="Example: holdfast cordon node-1")
@click.argument("node")
@kubeconfig_option
def cordon(node: str, kubeconfig: Path | None) -> int:
    """Keep new work away from a node. Running work continues."""
    return run(_set(kubeconfig, node, {"cordoned": True}, "cordoned"))


@click.command(epilog="Example: holdfast uncordon node-1")
@click.argument("node")
@kubeconfig_option
def uncordon(node: str, kubeconfig: Path | None) -> int:
    """Let a node take work again, and end its drain if there is one."""
    return run(_set(kubeconfig, node, {"cordoned": False, "drain": None}, "uncordoned"))


@click.command(epilog="Example: holdfast drain node-1 --deadline 10m --reason 'new disks'")
@click.argument("node")
@click.option("--deadline", default="", help="Ignore disruption budgets after this: 90s, 10m.")
@click.option("--reason", default="", help="The reason, recorded on the node.")
@click.option("--no-wait", is_flag=True, help="Do not wait; `holdfast get nodes` shows progress.")
@kubeconfig_option
def drain(node: str, deadline: str, reason: str, no_wait: bool, kubeconfig: Path | None) -> int:
    """Evict all work from a node, within disruption budgets, and keep new work away."""

    async def command() -> int:
        # An explicit null removes the deadline of an earlier drain.
        wanted: dict[str, Any] = {"reason": reason, "deadline": None}
        if deadline:
            with invalid_as_usage_error():
                ends = datetime.now(UTC) + duration("--deadline", deadline)
            wanted["deadline"] = rfc3339(wall_ms(ends))
        code = await _set(kubeconfig, node, {"cordoned": True, "drain": wanted}, "is being drained")
        if no_wait:
            return code
        async with client(kubeconfig) as to:
            return await _wait_drained(to, node)

    return run(command())


async def _set(kubeconfig: Path | None, node: str, spec: dict[str, Any], became: str) -> int:
    async with client(kubeconfig) as to:
        await to.patch(Node, node, "", {"spec": spec}, manager=MANAGER)
    print(f"node.holdfast.dev/{plain(node)} {became}", flush=True)
    return ExitCode.DONE


async def _wait_drained(to: AsyncClient, name: str) -> int:
    """Print the remaining work whenever it changes, until none is left."""
    last = ""
    while True:
        node = await to.get(Node, name)
        if node.spec.drain is None:
            print(f"node.holdfast.dev/{plain(name)}: the drain was cancelled")
            return ExitCode.FAILED
        said = condition(node.status.conditions, DRAINED)
        # The condition may be that of an earlier drain.
        is_new = said is not None and said.observed_generation >= node.metadata.generation
        if said is not None and is_new:
            if said.message != last:
                last = said.message
                print(f"node.holdfast.dev/{plain(name)}: {plain(said.message)}", flush=True)
            if said.status is ConditionStatus.TRUE:
                return ExitCode.DONE
        await asyncio.sleep(LOOK_S)
