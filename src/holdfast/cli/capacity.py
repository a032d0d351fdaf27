"""`holdfast capacity`: how much capacity is busy, how much is idle, and why it is idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli import tables
from holdfast.cli.command_table import Section
from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, run
from holdfast.explain.capacity import (
    CapacityAmounts,
    CapacityShare,
    capacity_amounts,
    capacity_shares,
    shapes_of,
)
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.workload import Workload
from holdfast.model.quantity import render

SECTION = Section.STATE
FORMS = ("table", "json")
AMOUNTS = (
    *("physical", "allocatable", "requested", "limited", "observed"),
    *("hard", "reclaimable", "recoverable"),
)
COLUMNS = ("total", "busy", "starting", "reserve", "closed", "fragments", "usable")


@click.command(epilog="Example: holdfast capacity -o json")
@click.option("-o", "--output", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
@kubeconfig_option
def capacity(output: str, kubeconfig: Path | None) -> int:
    """Show how the capacity of the nodes is used, by region, zone and pool.

    \b
    BUSY       held by work that runs, or may still run
    STARTING   held by work that is placed and not ready yet
    RESERVE    reserved: recovery, gangs, preemptions
    CLOSED     free on nodes that take no new work now (cordoned, drained, silent)
    FRAGMENTS  free, but too small a piece for any work of this plane
    USABLE     free for at least some work of this plane

    The second table shows what is known of it; no two columns of it may be added.

    \b
    PHYSICAL     what the nodes have
    ALLOCATABLE  less what their systems reserve, with their overcommit
    REQUESTED    by placed work; LIMITED is the most that it may use
    OBSERVED     what it used when it was last sampled
    HARD, RECLAIMABLE  committed to work and reservations, by capacity class
    RECOVERABLE  the part of it that is reserved for recovery
    """

    async def command() -> int:
        async with client(kubeconfig) as to:
            nodes, replicas = await to.list(Node), await to.list(Replica)
            reservations, workloads = await to.list(Reservation), await to.list(Workload)
        found = capacity_shares(
            nodes.objects, replicas.objects, reservations.objects, shapes_of(workloads.objects)
        )
        known = capacity_amounts(nodes.objects, replicas.objects, reservations.objects)
        amounts = {(it.region, it.zone, it.pool, it.resource): _known(it) for it in known}
        if output == "json":
            shown = [{**_shown(it), **amounts.get(_place(it), {})} for it in found]
            print(msgspec.json.encode(shown).decode())
        elif found:
            _print(found)
            print()
            heading = ("REGION", "ZONE", "POOL", "RESOURCE", *(it.upper() for it in AMOUNTS))
            body = [
                [text or "-" for text in (*place, *(it or "" for it in of.values()))]
                for place, of in amounts.items()
            ]
            print("\n".join(tables.rows(heading, body)))
        else:
            print("There are no nodes.")
        return ExitCode.DONE

    return run(command())


def _place(share: CapacityShare) -> tuple[str, str, str, str]:
    return share.region, share.zone, share.pool, share.resource


def _known(of: CapacityAmounts) -> dict[str, str | None]:
    units = {name: getattr(of, name) for name in AMOUNTS}
    return {name: None if it is None else render(of.resource, it) for name, it in units.items()}


def _shown(share: CapacityShare) -> dict[str, Any]:
    amounts = {name: render(share.resource, getattr(share, name)) for name in COLUMNS}
    return {
        "region": share.region,
        "zone": share.zone,
        "pool": share.pool,
        "resource": share.resource,
        **amounts,
    }


def _print(found: list[CapacityShare]) -> None:
    heading = ("REGION", "ZONE", "POOL", "RESOURCE", *(it.upper() for it in COLUMNS))
    body = [[text or "-" for text in _shown(share).values()] for share in found]
    print("\n".join(tables.rows(heading, body)))
