"""The demonstration world: two servers, three clients, three keepers, two views, one store.

It exists to test the simulator itself: small enough to read in a sitting, and with every effect,
every kind of fault and every kind of check that the simulator has.

    python -m holdfast.sim run tests.sim.demo.world:SCENARIO --seeds 0-199 --processes 2
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from holdfast.sim.plan import LATENESS, Act, Hazard, Plan, calendar_steps
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from tests.sim.demo.checkers import counter_checkers, lease_checkers
from tests.sim.demo.counter import Client, IntentDone, Server
from tests.sim.demo.lease import Keeper, Lamps
from tests.sim.demo.views import Follower, Viewer

CLIENTS = 3
INTENTS = 60
FAULTS_MS = 300_000

HAZARDS = (
    *LATENESS,
    Hazard("crash", 120, for_ms=(0, 20_000), amount=(0, 6)),
    Hazard("pause", 60, for_ms=(100, 30_000), amount=(0, 6)),
    # A keeper that is paused for longer than a lamp burns, between two effects.
    Hazard("pause", 120, for_ms=(9_000, 25_000), amount=(1, 6), only="keeper"),
    Hazard("reboot", 10, for_ms=(1_000, 20_000)),
    Hazard("freeze", 10, for_ms=(100, 20_000)),
    Hazard("clock_rate", 20, amount=(-200, 200)),
    calendar_steps(20),
    Hazard("partition", 40, for_ms=(100, 30_000)),
    Hazard("cut", 40, for_ms=(100, 30_000)),
    Hazard("loss", 40, for_ms=(1_000, 60_000), amount=(50, 600)),
    Hazard("duplicate", 40, for_ms=(1_000, 60_000), amount=(50, 600)),
    Hazard("delay", 30, for_ms=(1_000, 30_000), amount=(1, 3_000)),
    Hazard("scatter", 30, for_ms=(1_000, 30_000), amount=(1, 3_000)),
    Hazard("store_slow", 20, for_ms=(1_000, 30_000), amount=(10, 3_000)),
    Hazard("store_fail", 20, for_ms=(1_000, 30_000), amount=(100, 1_000)),
    Hazard("store_mute", 40, for_ms=(1_000, 30_000), amount=(100, 1_000)),
    Hazard("store_late", 40, for_ms=(1_000, 30_000), amount=(50, 500)),
    Hazard("store_stall", 20, for_ms=(100, 15_000)),
    Hazard("store_compact", 60, amount=(0, 3)),
    Hazard("watch_hold", 40, for_ms=(100, 30_000)),
    Hazard("watch_expire", 40),
    Hazard("delivery_lose", 40, for_ms=(1_000, 60_000), amount=(50, 500), only="viewer"),
    Hazard("delivery_repeat", 40, for_ms=(1_000, 60_000), amount=(50, 500), only="viewer"),
    Hazard("delivery_stale", 40, for_ms=(1_000, 60_000), amount=(50, 500), only="viewer"),
    Hazard("stream_break", 40, only="viewer"),
)


def script(rng: Random) -> Sequence[Act]:
    """The intents of users, each with its own id."""
    acts = []
    for number in range(INTENTS):
        counter, at_ms = pick(rng, ("a", "b")), between(rng, 0, FAULTS_MS)
        acts.append(Act(at_ms, f"client-{between(rng, 1, CLIENTS)}", _intent(number, counter)))
    return sorted(acts, key=lambda act: act.at_ms)


def _intent(number: int, counter: str) -> dict[str, Any]:
    return {"id": f"i{number}", "counter": counter, "add": _amount(number)}


def _amount(number: int) -> int:
    # Different for each intent, so that a wrong total identifies its intent.
    return 1_000 + number


def _build_counter(world: World, clients: int, *, within_ms: int) -> None:
    world.add_store()
    for name in ("server-1", "server-2"):
        world.add(name, Server, store="store")
    world.balance("api", ("server-1", "server-2"))
    for number in range(1, clients + 1):
        world.add(f"client-{number}", Client)
    world.add("viewer", Viewer)
    world.add("follower", Follower, store="store")
    world.perform(IntentDone, lambda _cell, effect: world.fact(effect))
    amounts = {f"i{number}": _amount(number) for number in range(INTENTS)}
    world.check(*counter_checkers(amounts, within_ms=within_ms))


def build(world: World) -> None:
    _build_counter(world, CLIENTS, within_ms=60_000)
    for number in range(1, 4):
        world.add(f"keeper-{number}", Keeper, store="store")
    Lamps(world)
    world.check(*lease_checkers(within_ms=60_000))


SCENARIO = Scenario(
    name="tests.sim.demo.world:SCENARIO",
    build=build,
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=120_000,
    script=script,
)

# Only the counter, with few intents: small enough to put a fault at every single point.
COUNTER = Scenario(
    name="tests.sim.demo.world:COUNTER",
    build=lambda world: _build_counter(world, 2, within_ms=20_000),
)
COUNTER_CALM = Plan(
    faults_ms=8_000,
    settle_ms=40_000,
    acts=tuple(
        Act(1_000 + 700 * number, f"client-{1 + number % 2}", _intent(number, "a"))
        for number in range(6)
    ),
)
