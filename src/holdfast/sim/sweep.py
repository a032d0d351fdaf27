"""A fault at every single point, instead of at random points.

Random plans find likely failures; a sweep leaves no point out. It runs a world without faults,
counts the points where a fault could strike (every effect of every machine, every revision, every
delivery), and then makes one run for each point with exactly that fault. Each run must keep all
invariants and end in the same state as the run without faults, by the scenario's own fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.model.errors import InvariantBroken
from holdfast.sim.check import CRASHED, Checker, Violation
from holdfast.sim.plan import Fault, Plan
from holdfast.sim.run import Scenario, play
from holdfast.sim.world import World

# What must be equal at the end: the desired outcome, without revisions, times and names that
# retries may change.
Fingerprint = Callable[[World], object]


class Points(msgspec.Struct, frozen=True):
    """Where faults can strike, counted in a run without faults."""

    effects: dict[str, int]
    deliveries: dict[str, int]
    unguarded: dict[str, int]
    revisions: dict[str, int]
    fingerprint: object


class Departure(msgspec.Struct, frozen=True):
    """A fault at one point that broke an invariant or changed the end state."""

    fault: Fault
    invariant: str
    message: str


def undisturbed(scenario: Scenario, seed: int, calm: Plan, fingerprint: Fingerprint) -> Points:
    """Run without faults and count the points. The plan holds the acts and the times."""
    world = World(seed)
    play(scenario, world, calm)
    return _points_of(world, fingerprint(world))


def undisturbed_until_calm(
    scenario: Scenario, seed: int, calm: Plan, fingerprint: Fingerprint
) -> Points:
    """The same without the points of the time to settle, in which nothing new happens."""
    found: list[Points] = []

    class AtCalm(Checker):
        def on_calm(self, world: World) -> None:
            found.append(_points_of(world, None))

    world = World(seed)
    world.check(AtCalm())
    play(scenario, world, calm)
    return msgspec.structs.replace(found[0], fingerprint=fingerprint(world))


def _points_of(world: World, fingerprint: object) -> Points:
    return Points(
        effects={cell.name: cell.performed for cell in world.cells.values()},
        deliveries={cell.name: cell.delivered for cell in world.cells.values()},
        unguarded={cell.name: cell.unguarded for cell in world.cells.values()},
        revisions={store.name: store.keyspace.revision for store in world.stores.values()},
        fingerprint=fingerprint,
    )


def crashes(points: Points, *, down_ms: int) -> list[Fault]:
    """A crash of each machine after each of its effects."""
    return [
        Fault(0, "crash", target=name, for_ms=down_ms, nth=nth)
        for name, count in points.effects.items()
        for nth in range(1, count + 1)
    ]


def crashes_after_writes(points: Points, *, down_ms: int) -> list[Fault]:
    """A crash of its author after each revision, before the author gets the answer."""
    return [
        Fault(0, "crash_author", target=name, for_ms=down_ms, nth=nth)
        for name, count in points.revisions.items()
        for nth in range(1, count + 1)
    ]


def deliveries(points: Points, kind: str) -> list[Fault]:
    """Each delivery of a stream (or raw watch) lost, repeated or followed by a stale one."""
    return [
        Fault(0, f"delivery_{kind}", target=name, nth=nth)
        for name, count in points.unguarded.items()
        for nth in range(1, count + 1)
    ]


def stale_views(points: Points, *, for_ms: int) -> list[Fault]:
    """A stale view of each machine for a while, from each of its deliveries on."""
    return [
        Fault(0, "watch_hold", target=name, for_ms=for_ms, nth=nth)
        for name, count in points.deliveries.items()
        for nth in range(1, count + 1)
    ]


def sweep(
    scenario: Scenario,
    seed: int,
    calm: Plan,
    points: Points,
    faults: Iterable[Fault],
    fingerprint: Fingerprint,
) -> list[Departure]:
    """One run for each fault; returns those that broke an invariant or ended differently."""
    departures = []
    for fault in faults:
        world = World(seed)
        try:
            play(scenario, world, msgspec.structs.replace(calm, faults=(fault,)))
        except Violation as violation:
            departures.append(Departure(fault, violation.invariant, violation.message))
            continue
        except InvariantBroken as error:
            departures.append(Departure(fault, CRASHED, str(error)))
            continue
        found = fingerprint(world)
        if found != points.fingerprint:
            message = f"ended as {found!r} instead of {points.fingerprint!r}"
            departures.append(Departure(fault, "END", message))
    return departures
