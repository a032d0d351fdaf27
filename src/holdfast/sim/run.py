"""One run: takes a scenario and a seed, and returns a report.

A scenario defines how to build a world, its hazards and their duration. `run` draws a plan from the
seed (or takes a saved one), injects the faults, heals them, lets the world settle, and calls the
checkers throughout. A run that breaks an invariant is repeated with a full trace, whose last lines
go into the report.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

import msgspec

from holdfast.model.errors import InvariantBroken, invariant
from holdfast.sim.check import CRASHED, NothingQuarantined, Violation
from holdfast.sim.plan import Act, Hazard, Plan, draw
from holdfast.sim.randomness import stream
from holdfast.sim.world import World

# New objects between two searches for cycles; Python's default is 700.
_OBJECTS_PER_COLLECTION = 20_000


class Scenario(msgspec.Struct, frozen=True):
    """A kind of world. `name` is where it is defined: `module:ATTRIBUTE`."""

    name: str
    build: Callable[[World], None]
    hazards: tuple[Hazard, ...] = ()
    faults_ms: int = 600_000
    settle_ms: int = 180_000
    # What users do, drawn from a stream of the seed.
    script: Callable[[Random], Sequence[Act]] | None = None
    # Whether records are damaged on purpose; otherwise none may be quarantined.
    damages: bool = False


class BrokenInvariant(msgspec.Struct, frozen=True):
    """A violation as data."""

    invariant: str
    message: str
    at_ms: int


class Report(msgspec.Struct, frozen=True):
    """The result of one run."""

    scenario: str
    seed: int
    digest: str
    events: int
    virtual_ms: int
    # Faults that took place, by kind.
    injected: dict[str, int]
    broken: BrokenInvariant | None = None
    tail: tuple[str, ...] = ()

    def faults(self) -> int:
        return sum(self.injected.values())

    def describe(self, command: str) -> str:
        """The report as text; a violation ends with the command that repeats the run."""
        if self.broken is None:
            return f"{self.scenario} seed {self.seed}: {self.events} events, digest {self.digest}"
        broken = self.broken
        where = f"{broken.at_ms / 1000:.3f} s in {self.scenario}, seed {self.seed}"
        lines = [f"{broken.invariant} broken at {where}:", f"  {broken.message}"]
        lines += [f"    {line}" for line in self.tail]
        return "\n".join((*lines, f"replay: {command}"))


def find(name: str) -> Scenario:
    """Import the scenario `module:ATTRIBUTE`."""
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute or "SCENARIO")
    invariant(isinstance(found, Scenario), f"{name} is not a scenario")
    scenario: Scenario = found
    return scenario


def invariants_of(scenario: Scenario) -> tuple[str, ...]:
    """The ids of all invariants that the checkers of this scenario check."""
    world = World(0)
    scenario.build(world)
    ids = (name for checker in world.checkers for name in checker.invariants)
    return tuple(sorted(dict.fromkeys(ids)))


def draw_plan(scenario: Scenario, seed: int) -> Plan:
    """The plan of this seed for this scenario."""
    world = World(seed)
    scenario.build(world)
    return _draw(scenario, world)


def _draw(scenario: Scenario, world: World) -> Plan:
    acts = () if scenario.script is None else tuple(scenario.script(stream(world.seed, "script")))
    return draw(
        world.seed,
        scenario.hazards,
        world.faults.aims(),
        faults_ms=scenario.faults_ms,
        settle_ms=scenario.settle_ms,
        acts=acts,
    )


def run(
    scenario: Scenario,
    seed: int,
    plan: Plan | None = None,
    *,
    full_trace: bool = False,
    tell: bool = True,
) -> Report:
    """Run once. With `tell`, a violation is run again with a full trace, for the report."""
    world = World(seed, full_trace=full_trace)
    broken = attempt(scenario, world, plan)
    if broken is not None and tell and not full_trace:
        traced = run(scenario, seed, plan, full_trace=True)
        tail = traced.tail
        if traced.broken != broken:
            # Both runs have the same inputs; if they differ, something reads another input.
            tail = (f"not deterministic: with a full trace it was {traced.broken}", *tail)
    else:
        tail = world.trace.tail() if broken is not None else ()
    return Report(
        scenario=scenario.name,
        seed=seed,
        digest=world.trace.digest(),
        events=world.events,
        virtual_ms=world.now_us // 1000,
        injected=dict(sorted(world.injected.items())),
        broken=broken,
        tail=tail,
    )


def attempt(scenario: Scenario, world: World, plan: Plan | None = None) -> BrokenInvariant | None:
    """Run in the caller's world, which it can inspect afterwards; returns what broke, if any."""
    try:
        play(scenario, world, plan)
    except Violation as violation:
        return BrokenInvariant(violation.invariant, violation.message, world.now_us // 1000)
    except InvariantBroken as error:
        return BrokenInvariant(CRASHED, str(error), world.now_us // 1000)
    return None


def play(scenario: Scenario, world: World, plan: Plan | None = None) -> None:
    """Build a world, inject the faults, let it settle. Raises Violation."""
    scenario.build(world)
    if not scenario.damages:
        world.check(NothingQuarantined())
    if plan is None:
        plan = _draw(scenario, world)
    world.follow(plan)
    with _collect_seldom():
        world.run_until(plan.faults_ms * 1000)
        world.calm()
        world.run_until((plan.faults_ms + plan.settle_ms) * 1000)
        world.end()


@contextmanager
def _collect_seldom() -> Iterator[None]:
    """Search for cycles less often while a world runs: it makes many objects and few cycles."""
    usual = gc.get_threshold()
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
