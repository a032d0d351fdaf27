"""Traits for the checkers of a plane: what must hold at every commit, and what in the end.

They come after all other traits: most read what the plane's store holds when the run begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.model import keys
from holdfast.model.transaction import Record
from holdfast.sim.check import Checker, Settles
from holdfast.sim.planes.checkers.budget_checks import DisruptionBudgets
from holdfast.sim.planes.checkers.commit_checks import ReservationClaims
from holdfast.sim.planes.checkers.ledger_oracle import LedgerTotals, StoreCopy
from holdfast.sim.planes.checkers.liveness import (
    PlaceableReplicas,
    QuietStore,
    overdue_reservation,
)
from holdfast.sim.planes.checkers.node_checks import JudgedNodes, Reborn
from holdfast.sim.planes.checkers.permitted_changes import FieldOwnership, LawfulTransitions
from holdfast.sim.planes.checkers.plane_census import PlaneCensus
from holdfast.sim.planes.checkers.process_checks import OneCopy, ReleasedAfterStop
from holdfast.sim.planes.checkers.starvation import NoStarvation
from holdfast.sim.planes.checkers.witness import (
    AcknowledgedWrites,
    FinalRecount,
    OperationsOnce,
    WatchOrder,
)
from holdfast.sim.planes.simulated_plane import SimulatedPlane, Trait
from holdfast.sim.world import World

# What is placeable is placed, and what is due dropped, within these times after the faults.
PLACED_WITHIN_MS = 20_000
DROPPED_WITHIN_MS = 60_000


def first_records(plane: SimulatedPlane) -> tuple[Record, ...]:
    """What the store holds before the run."""
    return tuple(plane.keyspace.range("", keys.END).records)


def copied(plane: SimulatedPlane) -> None:
    """A copy of the store. The other checkers read from it what a commit changed."""
    plane.store_copy.learn(first_records(plane))
    plane.world.check(plane.store_copy)


def commits(plane: SimulatedPlane) -> None:
    """What every commit must keep, whichever client wrote it: INV1 to INV7 and INV12."""
    store_copy = plane.store_copy
    plane.world.check(
        LedgerTotals(store_copy),
        LawfulTransitions(store_copy),
        FieldOwnership(store_copy, status=True),
        DisruptionBudgets(store_copy),
        ReservationClaims(store_copy),
    )


def processes(plane: SimulatedPlane) -> None:
    """What must hold where work really runs: one copy, and its release after its end."""
    store_copy, running = plane.store_copy, plane.processes
    plane.world.check(OneCopy(store_copy, running), ReleasedAfterStop(store_copy, running))


def node_lives(plane: SimulatedPlane) -> None:
    """A node begins a new life only after the work of the old one has ended."""
    plane.world.check(Reborn(plane.store_copy, plane.processes))


def judged_nodes(plane: SimulatedPlane) -> None:
    """No node is marked for a failure of its observers, and no lost zone is held for ever."""
    if plane.heartbeats is not None:
        plane.world.check(JudgedNodes(plane.store_copy, plane.heartbeats, plane.settings))


def acknowledgements(plane: SimulatedPlane) -> None:
    """What was acknowledged stays, no operation takes effect twice, and ledgers are right."""
    store_copy = plane.store_copy
    plane.world.check(
        AcknowledgedWrites(store_copy, first_records(plane)),
        OperationsOnce(store_copy),
        FinalRecount(),
    )


def watches(prefix: str) -> Trait:
    """A watch of this prefix brings every change once and in order, to the follower."""
    return lambda plane: plane.world.check(WatchOrder(first_records(plane), prefix))


def quiet(plane: SimulatedPlane) -> None:
    """At rest nothing is written."""
    plane.world.check(QuietStore(plane.store_copy))


def quiet_after(after_ms: int) -> Trait:
    """The same from so long after the last fault."""

    def check(plane: SimulatedPlane) -> None:
        plane.world.check(QuietStore(plane.store_copy, after_ms))

    return check


def starves_nothing(plane: SimulatedPlane) -> None:
    """No replica is overtaken again and again."""
    plane.world.check(NoStarvation(plane.store_copy))


def counted(make: Callable[[StoreCopy], PlaneCensus] | None = None) -> Trait:
    """Count what happens, for the tests that demand that it does."""

    def add(plane: SimulatedPlane) -> None:
        census = (make or PlaneCensus)(plane.store_copy)
        census.begin(plane.world)
        plane.world.check(census)

    return add


class Desired(Protocol):
    """The work that must run, what must not be trusted, and what must not be silent."""

    def missing(self, world: World) -> str | None: ...

    def untrusted(self, world: World) -> str | None: ...

    def silent(self, world: World) -> str | None: ...


class Placeable(Protocol):
    """The work that must be placed."""

    def missing(self, world: World) -> str | None: ...


def settles(
    wished: Callable[[SimulatedPlane], Desired],
    within_ms: int,
    placeable: Callable[[StoreCopy], Placeable] = PlaceableReplicas,
) -> Trait:
    """After the faults desired work runs within this time, and what fits is placed."""

    def add(plane: SimulatedPlane) -> None:
        desired, store_copy = wished(plane), plane.store_copy
        fitting = placeable(store_copy)
        plane.world.check(
            Settles("V1", desired.missing, within_ms=within_ms),
            Settles("V1", desired.untrusted, within_ms=within_ms),
            Settles("V2", fitting.missing, within_ms=PLACED_WITHIN_MS),
            Settles("V3", desired.silent, within_ms=within_ms),
            Settles(
                "INV12",
                lambda world: overdue_reservation(store_copy, world),
                within_ms=DROPPED_WITHIN_MS,
            ),
        )

    return add


def checked(make: Callable[[SimulatedPlane], Checker]) -> Trait:
    """Any other checker of a world."""
    return lambda plane: plane.world.check(make(plane))
