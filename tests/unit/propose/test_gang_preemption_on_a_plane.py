"""Gangs that preempt and gangs that are preempted: the scheduler proposes over several nodes, and
the real authority decides each step.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.reservation import ReservationPhase
from holdfast.model.kinds.workload import Gang
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import (
    BindTogether,
    DropReservation,
    JudgeNode,
    Move,
    NodeAction,
    StopAndReserve,
    Update,
)
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.outcome import Preempt
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import snapshot_of
from tests.plane import ADMIN, NODES, accepted, target, template
from tests.unit.propose.test_preemption_on_a_plane import Contended


class Contest(Contended):
    """Nodes in zones of two, and gangs of any class."""

    def __init__(self, nodes: int = 2, cpu: str = "2", **more: Any) -> None:
        super().__init__(0, cpu, **more)
        for number in range(nodes):
            self.node(number, cpu)

    def node(self, number: int, cpu: str = "2") -> None:
        capacity = {"cpu": cpu, "memory": "32Gi"}
        self.plane.node(f"node-{number}", capacity=capacity, zone=f"eu-west-{number // 2}")

    def gang(self, name: str, count: int, cpu: str = "1", **gang: Any) -> list[Any]:
        """Pending members of a gang."""
        self._ordinals += 1
        made = template(cpu=cpu, memory="1Mi", priority_class=name)
        of = Gang(**{"min_available": count, **gang})
        workload = self.plane.workload(
            f"{name}-{self._ordinals}", template=made, replicas=count, gang=of
        )
        # Before the members: an event that makes requests would overtake the others.
        self.sync()
        found = [self.plane.replica(workload, ordinal) for ordinal in range(count)]
        self.sync()
        return found

    def nodes_of(self, replicas: list[Any]) -> list[str]:
        return [self.now_of(it).status.binding.node for it in replicas]

    def started(self, replicas: list[Any]) -> list[Any]:
        self.pass_time(2_000)
        assert self.states(replicas) == [State.BOUND] * len(replicas)
        self.run(replicas)
        return replicas


def contest(nodes: int = 2, cpu: str = "2", **more: Any) -> Contest:
    rig = Contest(nodes, cpu, **more)
    rig.start()
    return rig


def test_a_gang_stops_work_on_several_nodes_and_is_bound_together() -> None:
    """One request for all of it; no member is bound before all places are free. [G4, G5]"""
    rig = contest()
    low = rig.started(rig.work("spot", 4))
    high = rig.gang("high", 2, cpu="2")
    rig.pass_time(1_000)
    assert rig.states(low) == [State.STOPPING] * 4
    pending = rig.now_of(high[1]).status.pending
    assert pending is not None
    assert pending.reasons == {"VictimsStopping": 2}
    assert "waits for 4 victims to stop on 2 nodes, until " in pending.message
    for it in low[:3]:
        rig.move(it, State.RELEASED)
    rig.pass_time(5_000)
    assert rig.states(high) == [State.PENDING] * 2
    rig.move(low[3], State.RELEASED)
    rig.pass_time(2_000)
    assert rig.states(high) == [State.BOUND] * 2
    assert sorted(rig.nodes_of(high)) == ["node-0", "node-1"]
    assert len(rig.asked(StopAndReserve)) == 1
    assert len(rig.asked(BindTogether)) == 1
    rig.check_ledgers()


def test_nothing_is_stopped_for_a_gang_that_would_not_fit_even_then() -> None:
    """[G4, G5]"""
    rig = contest()
    low = rig.started(rig.work("spot", 3))
    rig.started(rig.work("firm", 1))
    high = rig.gang("high", 2, cpu="2")
    rig.pass_time(5_000)
    assert rig.states(low) == [State.RUNNING] * 3
    assert rig.asked(StopAndReserve) == []
    pending = rig.now_of(high[0]).status.pending
    assert pending is not None
    assert "needs 2 members at once; 0 fit now" in pending.message


def test_room_that_is_free_is_used_and_only_what_is_needed_stops() -> None:
    """The least of all: what is cheap before what is dear, and no more than the minimum needs.
    [G4, G5]"""
    rig = contest(3)
    low = rig.started(rig.work("spot", 3))
    cheap = rig.started(rig.work("cheap", 2))
    high = rig.gang("high", 4, min_available=3)
    rig.pass_time(1_000)
    assert rig.states(low) == [State.RUNNING] * 3
    assert rig.states(cheap) == [State.STOPPING] * 2
    rig.stop_all()
    rig.pass_time(2_000)
    assert sorted(rig.states(high)) == sorted([State.BOUND] * 3 + [State.PENDING])
    rig.check_ledgers()


def test_the_domain_is_taken_where_the_least_is_lost() -> None:
    """[G4, G5]"""
    rig = contest()
    dear = rig.started(rig.work("spot", 4))
    rig.do(lambda: [rig.node(number) for number in (2, 3)])
    cheap = rig.started(rig.work("cheap", 4))
    high = rig.gang("high", 2, cpu="2", within="zone")
    rig.pass_time(1_000)
    assert rig.states(dear) == [State.RUNNING] * 4
    assert rig.states(cheap) == [State.STOPPING] * 4
    rig.stop_all()
    rig.pass_time(2_000)
    assert sorted(rig.nodes_of(high)) == ["node-2", "node-3"]


def test_a_domain_that_is_only_preferred_is_left_where_it_could_not_take_all() -> None:
    """[G4, G5]"""
    rig = contest(4)
    low = rig.started(rig.work("spot", 8))
    rig.gang("high", 3, cpu="2", within="zone")
    rig.pass_time(2_000)
    assert rig.asked(StopAndReserve) == []
    preferred = rig.gang("high", 3, cpu="2", within="zone", within_required=False)
    rig.pass_time(2_000)
    rig.stop_all()
    rig.pass_time(2_000)
    assert rig.states(preferred) == [State.BOUND] * 3
    assert rig.states(low).count(State.RELEASED) == 6


def test_a_scheduler_that_starts_goes_on_with_the_promises_of_a_gang() -> None:
    """[G4, E5, C7.6]"""
    rig = contest()
    low = rig.started(rig.work("spot", 4))
    high = rig.gang("high", 2, cpu="2")
    rig.pass_time(1_000)
    rig.restart()
    rig.pass_time(20_000)
    assert rig.states(low) == [State.STOPPING] * 4
    rig.stop_all()
    rig.pass_time(2_000)
    assert rig.states(high) == [State.BOUND] * 2
    assert len(rig.asked(StopAndReserve)) == 1


def test_promises_that_a_gang_cannot_use_are_given_back() -> None:
    """Its victims do not stop in time, so that none of its places is kept. [G4, INV12]"""
    rig = contest()
    rig.started(rig.work("spot", 4))
    high = rig.gang("high", 2, cpu="2")
    rig.pass_time(1_000)
    (asked,) = rig.asked(StopAndReserve)
    until_s = (asked[0].deadline - rig.plane.at()).total_seconds()
    rig.pass_time(int(until_s * 1_000))
    assert len(rig.asked(DropReservation)) >= 2
    for it in high:
        held = rig.plane.read(f"objects/reservations/acme/{it.name}-preemption")
        assert held.status.phase is ReservationPhase.RELEASED
    assert [rig.plane.ledger(f"node-{n}").promised for n in range(2)] == [{}, {}]


def test_an_elastic_gang_shrinks_member_by_member_and_grows_again() -> None:
    """[G4, G5]"""
    rig = contest(1, "4")
    ring = rig.started(rig.gang("spot", 4, min_available=2))
    for count in (1, 2):
        (high,) = rig.work("high")
        rig.pass_time(1_000)
        stopped = [it for it in ring if rig.now_of(it).status.state is not State.RUNNING]
        assert len(stopped) == count
        rig.stop_all()
        rig.pass_time(1_000)
        assert rig.states([high]) == [State.BOUND]
    assert rig.plane.read(f"objects/reservations/acme/{ring[0].spec.gang}-gang").status.phase is (
        ReservationPhase.CONSUMED
    )
    for state in (State.RUNNING, State.FAILED, State.RELEASED):
        rig.move(high, state)
    workload = rig.plane.read(f"objects/workloads/acme/{ring[0].spec.gang}")
    again = rig.plane.replica(workload, stopped[0].spec.ordinal, 1)
    rig.sync()
    rig.pass_time(2_000)
    assert rig.states([again]) == [State.BOUND]


def test_a_gang_at_its_minimum_is_taken_whole_wherever_it_runs() -> None:
    """[G4, G5]"""
    rig = contest(2, "2")
    ring = rig.started(rig.gang("spot", 4))
    (high,) = rig.work("high")
    rig.pass_time(1_000)
    assert rig.states(ring) == [State.STOPPING] * 4
    rig.stop_all()
    rig.pass_time(1_000)
    assert rig.states([high]) == [State.BOUND]
    assert len(rig.asked(StopAndReserve)) == 1


def test_other_work_is_stopped_before_a_gang_is_ended() -> None:
    """[G4, G5]"""
    rig = contest(2, "2")
    ring = rig.started(rig.gang("spot", 3))
    (single,) = rig.started(rig.work("spot", 1))
    rig.work("high")
    rig.pass_time(1_000)
    assert rig.states(ring) == [State.RUNNING] * 3
    assert rig.states([single]) == [State.STOPPING]


@pytest.mark.parametrize("least", [1, 3])
def test_a_gang_preempts_a_gang(least: int) -> None:
    """An elastic one gives what it can spare; a rigid one gives way as a whole. [G4, G5]"""
    rig = contest(3, "1")
    ring = rig.started(rig.gang("spot", 3, min_available=least))
    high = rig.gang("high", 2)
    rig.pass_time(1_000)
    assert rig.states(ring).count(State.STOPPING) == (2 if least == 1 else 3)
    rig.stop_all()
    rig.pass_time(2_000)
    assert rig.states(high) == [State.BOUND] * 2
    rig.check_ledgers()


def test_a_gang_with_a_member_on_a_silent_node_is_not_taken() -> None:
    """Nothing is known of that member, so the gang cannot be stopped as a whole. [G4, G5]"""
    rig = contest(2, "1")
    ring = rig.started(rig.gang("spot", 2))
    lost = rig.now_of(ring[1])
    node = rig.plane.read(f"objects/nodes/{rig.nodes_of([lost])[0]}")
    term = rig.plane.term(NODES)
    mark = JudgeNode(node.name, node.metadata.uid, NodeAction.MARK, term)
    rig.do(lambda: accepted(rig.plane.ask(NODES, mark)))
    number = rig.plane.read(f"objects/nodes/{node.name}").status.mark.number
    unknown = Move(target(lost), State.UNKNOWN, mark=number, term=term)
    rig.do(lambda: accepted(rig.plane.ask(NODES, unknown)))
    rig.work("high")
    rig.pass_time(2_000)
    assert rig.asked(StopAndReserve) == []
    assert rig.states(ring) == [State.RUNNING, State.UNKNOWN]


def test_a_lowered_minimum_starts_a_gang_that_waits_at_once() -> None:
    """[G5]"""
    rig = contest(1, "2")
    members = rig.gang("spot", 3)
    rig.pass_time(2_000)
    assert rig.states(members) == [State.PENDING] * 3
    workload = rig.plane.read(f"objects/workloads/acme/{members[0].spec.gang}")
    spec = msgspec.structs.replace(workload.spec, gang=Gang(min_available=2))
    lowered = Update(msgspec.structs.replace(workload, spec=spec))
    rig.do(lambda: accepted(rig.plane.ask(ADMIN, lowered)))
    rig.pass_time(2_000)
    assert sorted(rig.states(members)) == [State.BOUND, State.BOUND, State.PENDING]


def test_nothing_is_stopped_where_a_job_is_about_to_start() -> None:
    """[E3, G4]"""
    rig = contest(2, "2")
    rig.started(rig.work("spot", 4))
    seen = snapshot_of({plural: list(found.values()) for plural, found in rig.objects.items()})
    spec = ReplicaSpec("w", "u", template(cpu="2", memory="1Mi", priority_class="high"), 0, 0)
    high = Replica(
        ObjectMeta(name="w-0-0", namespace="acme", uid="r"),
        spec=msgspec.structs.replace(spec, priority=100),
    )
    for closed, place in (((0,), "node-1"), ((1,), "node-0"), ((0, 1), None)):
        view = msgspec.structs.replace(seen, closed=closed)
        (decided,) = propose(view, [high], rig.now, 1, VerdictCache())
        assert (decided.node if isinstance(decided, Preempt) else None) == place
