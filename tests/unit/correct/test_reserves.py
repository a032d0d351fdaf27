"""controller:reserves: what a workload needs to recover is held for it, where it is of use."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.correct.all_controllers import core_controllers
from holdfast.correct.reserves import (
    HELD_FOR_S,
    PLACES_MAX,
    RESERVED,
    SEARCH_EVERY_MS,
    ReservesController,
    summed_ledger,
)
from holdfast.model.kinds.node import NodeDrain, NodePhase
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Recovery
from holdfast.model.lifecycle import State
from holdfast.model.meta import ConditionStatus, condition
from holdfast.model.requests import DropReservation, HoldCapacity, Remove, Update
from holdfast.observe.cache import ObjectChange
from tests.unit.correct.controller_rig import (
    ADMIN,
    DONE,
    DOWN,
    LOST_AFTER,
    LOST_BEFORE,
    Rig,
    accepted,
)
from tests.unit.correct.views import (
    TERM,
    at,
    later,
    meta,
    node,
    replaced,
    replica,
    view,
    workload,
)

KEY = ("acme", "web")
ONE = {"cpu": 1000, "replicas": 1}
IDENTITY = "system:controller:reserves"


def web(count: int = 2, **recovery: Any) -> Any:
    wish = {"regions": ("eu",), "reserve": True, **recovery}
    return workload(count, recovery=Recovery(**wish))


def machine(name: str = "node-a", cpu: int = 4, **spec: Any) -> Any:
    found = node(name)
    more = {"capacity": {"cpu": cpu, "memory": "8Gi"}, **spec}
    return replaced(found, spec=replaced(found.spec, **more))


def lane(*nodes: str, deadline_ms: int = HELD_FOR_S * 1_000, **more: Any) -> Reservation:
    owner = ReservationOwner("Workload", "web", "uid-web", 1)
    spec = ReservationSpec(owner, Intent.RECOVERY, at(deadline_ms))
    claims = tuple(Claim(node=name, charge=ONE) for name in nodes)
    status = ReservationStatus(**{"claims": claims, "by": IDENTITY, **more})
    return Reservation(meta("web-recovery", "acme"), spec=spec, status=status)


def plan(*objects: Any, it: ReservesController | None = None, ms: int = 0) -> Any:
    it = it if it is not None else ReservesController()
    law = Tenant(meta("acme")), Region(meta("eu")), Region(meta("us"))
    return it.reconcile(view(*law, *objects), KEY, TERM, later(ms))


def held(made: Any) -> list[str]:
    (request,) = [it for it in made.requests if isinstance(it, HoldCapacity)]
    assert request.intent is Intent.RECOVERY
    assert all(claim.charge == ONE for claim in request.claims)
    return [claim.node for claim in request.claims]


def said(made: Any) -> Any:
    (update,) = [it for it in made.requests if isinstance(it, Update)]
    return condition(update.object.status.conditions, RESERVED)


def test_as_many_places_are_held_as_must_come_back() -> None:
    """Spread, and away from where the work is now. [D5]"""
    nodes = [machine(name) for name in ("node-a", "node-b", "node-c")]
    made = plan(web(), *nodes, replica(node="node-a"))
    assert held(made) == ["node-b", "node-c"]
    (request,) = [it for it in made.requests if isinstance(it, HoldCapacity)]
    assert request.owner == ReservationOwner("Workload", "web", "uid-web", 1)
    assert held(plan(web(8, replicas=1), *nodes)) == ["node-a"]
    assert len(held(plan(web(100), *nodes, machine("node-d", 200)))) == PLACES_MAX


def test_what_is_held_and_said_is_left_alone() -> None:
    """[V4]"""
    there = plan(web(), machine(), lane("node-a", "node-a")).requests
    (update,) = there
    assert said(plan(web(), machine(), lane("node-a", "node-a"))).status is ConditionStatus.TRUE
    made = plan(update.object, machine(), lane("node-a", "node-a"))
    assert made.requests == ()
    assert 0 < made.wake_after_ms <= HELD_FOR_S * 500


def test_half_of_the_time_before_its_end_it_is_renewed() -> None:
    """[D5]"""
    there = web(), machine(), lane("node-a", "node-a")
    half_ms = HELD_FOR_S * 500
    assert held(plan(*there, ms=half_ms + 1)) == ["node-a", "node-a"]
    assert not any(isinstance(it, HoldCapacity) for it in plan(*there, ms=half_ms - 1).requests)


@pytest.mark.parametrize(
    "closed",
    [
        {"drain": NodeDrain()},
        {"cordoned": True},
        {"region": "us"},
    ],
)
def test_a_place_that_is_of_no_use_moves_in_one_step(closed: dict[str, Any]) -> None:
    """[D5]"""
    other = machine("node-b")
    made = plan(web(), machine(**closed), other, lane("node-a", "node-b"))
    assert held(made) == ["node-b", "node-b"]


def test_a_node_that_is_silent_keeps_its_place_until_it_is_fenced() -> None:
    """[H4]"""
    for phase, kept in ((NodePhase.SUSPECT, 1), (NodePhase.UNKNOWN, 1), (NodePhase.FENCED, 0)):
        quiet = machine()
        quiet = replaced(quiet, status=replaced(quiet.status, phase=phase))
        made = plan(web(1), quiet, machine("node-b"), lane("node-a"))
        found = [it for it in made.requests if isinstance(it, HoldCapacity)]
        assert len(found) == 1 - kept, phase


def test_without_room_it_says_so_and_looks_again() -> None:
    """[E3, D5]"""
    it = ReservesController()
    made = plan(web(3), machine(cpu=2), replica(), it=it)
    assert held(made) == ["node-a"] * 2
    it = ReservesController()
    full = machine(cpu=0)
    made = plan(web(2), full, lane(), it=it)
    assert said(made).reason == "NoRoom"
    assert said(made).message.startswith("capacity for 0 of 2 replicas is reserved")
    assert made.wake_after_ms == SEARCH_EVERY_MS
    # Meanwhile nothing is looked for.
    assert not any(isinstance(r, HoldCapacity) for r in plan(web(2), machine(), it=it).requests)
    assert held(plan(web(2), machine(), it=it, ms=SEARCH_EVERY_MS)) == ["node-a"] * 2


def test_a_lane_that_was_used_is_filled_again() -> None:
    """Also one that was used up. [D5]"""
    used = Claim(node="node-a", charge=ONE, consumed=True)
    one = lane()
    part = replaced(one, status=replaced(one.status, claims=(used, *lane("node-b").status.claims)))
    nodes = machine(), machine("node-b")
    assert held(plan(web(), *nodes, part)) == ["node-b", "node-a"]
    spent = lane("node-a", phase=ReservationPhase.CONSUMED)
    assert held(plan(web(), *nodes, spent)) == ["node-a", "node-b"]


@pytest.mark.parametrize(
    "wish",
    [
        web(reserve=False),
        web(eligible=False),
        workload(2),
        workload(2, dying=True, recovery=Recovery(regions=("eu",), reserve=True)),
        None,
    ],
)
def test_what_is_no_longer_wanted_is_released(wish: Any) -> None:
    """[I5, INV12]"""
    there = [] if wish is None else [wish]
    (drop,) = plan(*there, machine(), lane("node-a")).requests
    assert isinstance(drop, DropReservation)
    assert plan(*there, machine(), lane("node-a", by="another")).requests == ()
    assert plan(*there, machine(), lane("node-a", phase=ReservationPhase.RELEASED)).requests == ()


def test_a_workload_of_the_same_name_is_another_owner() -> None:
    other = web()
    other = replaced(other, metadata=replaced(other.metadata, uid="uid-new"))
    (drop,) = plan(other, machine(), lane("node-a")).requests
    assert isinstance(drop, DropReservation)


def test_a_snapshot_that_contradicts_itself_is_no_ground_to_hold_anything() -> None:
    """Kinds arrive on streams of their own. [C3]"""
    share = (DeviceShare(device="gpu-9", device_class="gpu", milli=1000),)
    odd = replica()
    binding = replaced(odd.status.binding, devices=share, charge={"gpu": 1000})
    odd = replaced(odd, status=replaced(odd.status, binding=binding))
    assert summed_ledger(view(machine(), odd), machine()) is None
    assert not any(isinstance(it, HoldCapacity) for it in plan(web(), machine(), odd).requests)


def test_only_events_of_lanes_are_reconciled() -> None:
    it = ReservesController()
    snapshot = view(web(), machine(), lane("node-a"))
    assert list(it.all_keys(snapshot)) == [KEY]
    assert list(it.all_keys(view(workload(1)))) == []
    for plural, before, after, keys in (
        ("workloads", workload(1), web(), [KEY]),
        ("workloads", web(), web(), []),
        ("reservations", None, lane("node-a"), [KEY]),
        ("nodes", machine(), machine(drain=NodeDrain()), [KEY]),
        ("nodes", machine(), machine(), []),
        ("nodes", None, machine("node-b"), []),
        ("replicas", None, replica(State.BOUND), []),
    ):
        assert list(it.keys_of(ObjectChange(plural, before, after), snapshot)) == keys, (
            plural,
            after,
        )


# In a runner -------------------------------------------------------------------------------------


class Reserving(Rig):
    """A service of two that wants two places kept, on three nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.plane.region()
        self.plane.tenant()
        for name in ("node-a", "node-b", "node-c"):
            self.plane.node(name)
        recovery = Recovery(regions=("eu-west",), reserve=True)
        self.plane.workload(replicas=2, recovery=recovery)

    def start(self, controllers: Any = None) -> None:
        super().start((*core_controllers(), ReservesController()))

    def lane(self) -> Any:
        return self.get("reservations", "web-recovery", "acme")

    def places(self) -> list[str]:
        return [it.node for it in self.lane().status.claims if not it.consumed]


def test_a_lane_is_held_renewed_moved_and_released_with_its_owner() -> None:
    """[D5, INV12, V4, I5]"""
    rig = Reserving()
    rig.turn()
    assert len(rig.places()) == 2
    said = condition(rig.get("workloads", "web", "acme").status.conditions, RESERVED)
    assert said.status is ConditionStatus.TRUE
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []
    first = rig.lane().spec.deadline
    rig.run(HELD_FOR_S * 1_000)
    assert rig.lane().spec.deadline > first
    gone = rig.places()[0]
    there = rig.get("nodes", gone)
    accepted(
        rig.plane.ask(ADMIN, Update(replaced(there, spec=replaced(there.spec, cordoned=True))))
    )
    rig.run(10_000)
    assert gone not in rig.places()
    assert len(rig.places()) == 2
    accepted(rig.plane.ask(ADMIN, Remove("workloads", "acme", "web")))
    rig.turn()
    assert rig.lane() is None or rig.lane().status.phase is ReservationPhase.RELEASED


@pytest.mark.parametrize("fate", [LOST_AFTER, LOST_BEFORE, DOWN])
def test_lost_answers_and_crashes_end_in_one_lane(fate: str) -> None:
    """[C6.9, F7, C7.4]"""
    rig = Reserving()
    spoilt: set[str] = set()

    def once(ask: Any) -> str:
        name = f"{type(ask.body).__name__} {getattr(ask.body, 'operation', '')}"
        if name in spoilt:
            return DONE
        spoilt.add(name)
        return fate

    rig.fate = once
    rig.run()
    rig.crash_after = len(rig.sent) + 1
    rig.turn(12)
    rig.run(60_000)
    assert any(name.startswith("HoldCapacity") for name in spoilt)
    assert len(rig.places()) == 2
    assert len(rig.all("reservations")) == 1
    rig.writes()
    rig.run(300_000)
    assert rig.writes() == []
