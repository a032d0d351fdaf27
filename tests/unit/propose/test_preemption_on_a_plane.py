"""The scheduler makes room for important work, and the real authority decides each step."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.model.access import identity as who
from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import ReservationPhase
from holdfast.model.kinds.schedulerpolicy import WorkIntent
from holdfast.model.kinds.tenant import (
    CapacityClass,
    PriorityClass,
    PriorityClassSpec,
    Quota,
    QuotaSpec,
)
from holdfast.model.kinds.workload import Disruption
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.machine import Ask
from holdfast.model.meta import ObjectMeta
from holdfast.model.preemption import COOLDOWN_MS, is_requeued, turn_refusal
from holdfast.model.pulse import PreemptionCount
from holdfast.model.refusal import Reason
from holdfast.model.requests import (
    Bind,
    DropReservation,
    Move,
    ReportStage,
    StopAndReserve,
    Update,
)
from holdfast.propose import scheduler
from holdfast.propose.scores import intent_of
from tests.plane import ADMIN, accepted, refused, target, template
from tests.unit.propose.test_scheduler_on_a_plane import OnPlane

CLASSES = (
    ("high", 100, CapacityClass.HARD, True),
    ("spot", -20, CapacityClass.RECLAIMABLE, False),
    ("cheap", -30, CapacityClass.RECLAIMABLE, False),
    ("firm", -40, CapacityClass.HARD, False),
)


class Contended(OnPlane):
    """A plane with classes of work, and nodes that stop what they are told to, when asked."""

    def __init__(self, nodes: int = 1, cpu: str = "2", **more: Any) -> None:
        super().__init__(**more)
        for name, value, of, preempts in CLASSES:
            spec = PriorityClassSpec(value=value, capacity_class=of, preempts=preempts)
            self.plane.create(PriorityClass(ObjectMeta(name=name), spec=spec))
        for number in range(nodes):
            self.plane.node(f"node-{number}", capacity={"cpu": cpu, "memory": "32Gi"})
        self._ordinals = 0

    def work(self, name: str, count: int = 1, cpu: str = "1", **more: Any) -> list[Any]:
        """Pending replicas of a workload of a class."""
        self._ordinals += 1
        made = template(cpu=cpu, memory="1Mi", priority_class=name, **more)
        workload = self.plane.workload(f"{name}-{self._ordinals}", template=made, replicas=count)
        found = [self.plane.replica(workload, ordinal) for ordinal in range(count)]
        self.sync()
        return found

    def now_of(self, replica: Any) -> Replica:
        found: Replica = self.plane.get(replica)
        return found

    def states(self, replicas: list[Any]) -> list[State]:
        return [self.now_of(it).status.state for it in replicas]

    def move(self, replica: Any, to: State) -> None:
        now = self.now_of(replica)
        binding = now.status.binding
        assert binding is not None
        agent = who.agent(binding.node)
        answer = self.do(lambda: self.plane.ask(agent, Move(target(now), to, incarnation=1)))
        assert not hasattr(answer, "reason"), answer

    def ready(self, replica: Any) -> None:
        now = self.now_of(replica)
        agent = who.agent(now.status.binding.node)
        report = ReportStage(target(now), Stage.READY, incarnation=1)
        self.do(lambda: accepted(self.plane.ask(agent, report)))

    def run(self, replicas: list[Any]) -> None:
        for it in replicas:
            self.move(it, State.RUNNING)

    def stop_all(self) -> None:
        """The nodes prove that everything that has to stop has stopped."""
        for it in list(self.objects["replicas"].values()):
            if it.status.state is State.STOPPING:
                self.move(it, State.RELEASED)

    def asked(self, kind: type[Any]) -> list[Any]:
        return [(request, answer) for request, answer in self.answers if isinstance(request, kind)]


def full(nodes: int = 1, cpu: str = "2", name: str = "spot", **more: Any) -> tuple[Any, list[Any]]:
    """A fleet that is full of work of one class."""
    rig = Contended(nodes, cpu, **more)
    rig.start()
    low = rig.work(name, nodes * int(cpu))
    rig.pass_time(2_000)
    assert rig.states(low) == [State.BOUND] * len(low)
    rig.run(low)
    return rig, low


def test_important_work_gets_the_place_of_less_important_work() -> None:
    """Stop, wait for the proof, bind; nothing is asked twice. [G4, C6.8]"""
    rig, low = full()
    (high,) = rig.work("high", cpu="2")
    rig.pass_time(1_000)
    assert rig.states(low) == [State.STOPPING] * 2
    assert {rig.now_of(it).status.cause for it in low} == {Cause.PREEMPTION}
    pending = rig.now_of(high).status.pending
    assert pending is not None
    assert pending.reasons == {"VictimsStopping": 1}
    assert pending.message.startswith("waits for 2 victims to stop on node node-0, until ")
    rig.stop_all()
    rig.pass_time(1_000)
    after = rig.now_of(high)
    assert (after.status.state, after.status.binding.node) == (State.BOUND, "node-0")
    assert after.status.binding.reservation == f"{high.name}-preemption"
    assert len(rig.asked(StopAndReserve)) == len(rig.asked(Bind)) - 2 == 1
    assert rig.refused == []
    assert len(rig.scheduler.plans) == 0
    rig.check_ledgers()


class Counting(Contended):
    """It counts how many preemptions each step asks for."""

    def __init__(self, **more: Any) -> None:
        self.per_step: list[int] = []
        super().__init__(**more)

    def _perform(self, effects: list[Any]) -> None:
        bodies = [it.body for it in effects if isinstance(it, Ask)]
        self.per_step.append(sum(isinstance(it, StopAndReserve) for it in bodies))
        super()._perform(effects)


def test_one_step_searches_for_a_bounded_number_of_victims_and_the_next_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step that searched for all would keep the servers idle, and the lease unrenewed. [G4]"""
    monkeypatch.setattr(scheduler, "PLANS_PER_ROUND_MAX", 2)
    rig = Counting(nodes=5)
    rig.start()
    low = rig.work("spot", 10)
    rig.pass_time(2_000)
    rig.run(low)
    high = rig.work("high", 5, cpu="2")
    rig.pass_time(1_000)
    assert max(rig.per_step) == 2
    assert [it.target.name for it, _ in rig.asked(StopAndReserve)] == [it.name for it in high]
    rig.stop_all()
    rig.pass_time(1_000)
    assert rig.states(high) == [State.BOUND] * 5
    assert rig.refused == []


def test_the_successor_of_lost_work_preempts() -> None:
    """Recovery work is weighed by another intent, and makes room like any other. [G4]"""
    rig, low = full()
    made = template(cpu="2", memory="1Mi", priority_class="high")
    owner = rig.plane.workload("lost", template=made, replicas=1)
    again = rig.do(lambda: rig.plane.replacement(owner))
    assert intent_of(rig.now_of(again)) is WorkIntent.RECOVERY
    rig.pass_time(1_000)
    assert rig.states(low) == [State.STOPPING] * 2
    rig.stop_all()
    rig.pass_time(1_000)
    after = rig.now_of(again)
    assert after.status.binding.reservation == f"{again.name}-preemption"
    assert rig.refused == []


def test_committed_work_inside_its_share_is_never_asked_for() -> None:
    """Whatever its priority; and the reason says so. [G1, C6.8, D3, E3]"""
    rig, low = full(name="firm")
    (high,) = rig.work("high", cpu="2")
    rig.pass_time(20_000)
    assert rig.states(low) == [State.RUNNING] * 2
    assert rig.asked(StopAndReserve) == []
    assert rig.states([high]) == [State.PENDING]
    said = rig.now_of(high).status.pending
    assert said is not None
    assert said.message.endswith(
        "other work on node node-0 would make room, but it may not be stopped: it is committed "
        "work inside the nominal quota of its tenant"
    )


def test_a_victim_goes_first_in_its_class_and_does_not_swap_places() -> None:
    """Its successor is decided before others of its class, and for ten minutes stops nothing of the
    workload that it made way for. [G4]"""
    rig, low = full()
    waiting = rig.work("spot", 1)
    (high,) = rig.work("high", cpu="1")
    rig.pass_time(1_000)
    (victim,) = [it for it in low if rig.now_of(it).status.state is State.STOPPING]
    rig.stop_all()
    rig.pass_time(1_000)
    assert rig.states([high]) == [State.BOUND]
    workload = rig.plane.get(victim).spec.workload
    owner = rig.plane.read(f"objects/workloads/acme/{workload}")
    again = rig.do(lambda: rig.plane.replica(owner, victim.spec.ordinal, incarnation=1))
    displaced = rig.now_of(again).status.displaced
    assert displaced is not None
    assert (displaced.by, displaced.priority) == (high.spec.workload_uid, 100)
    assert is_requeued(rig.now_of(again))
    rig.run([high])
    rig.move(high, State.FAILED)
    rig.move(high, State.RELEASED)
    rig.pass_time(1_000)
    assert rig.states([again, *waiting]) == [State.BOUND, State.PENDING]
    victims_uid = rig.now_of(again).spec.workload_uid
    refusal = turn_refusal(displaced, high.spec.workload_uid, 1_000)
    assert refusal is not None
    assert refusal.reason is Reason.PREEMPTION_COOLDOWN
    assert turn_refusal(displaced, high.spec.workload_uid, COOLDOWN_MS) is None
    assert turn_refusal(displaced, victims_uid, 1_000) is None


def quota_of(tenant: str, nominal: int) -> Quota:
    spec = QuotaSpec(cohort="house", hard={"cpu": str(nominal)}, borrowing={"cpu": "9"})
    return Quota(ObjectMeta(name="default", namespace=tenant), spec=spec)


def swapped() -> tuple[Any, Replica, Replica]:
    """Work of a lender that stopped work of a borrower, and the successor of that, once the quotas
    are the other way round.
    """
    rig = Contended(0)
    rig.plane.node("node-0", capacity={"cpu": "4", "memory": "32Gi"})
    rig.plane.tenant("other")
    for tenant, nominal in (("acme", 2), ("other", 6)):
        rig.plane.create(quota_of(tenant, nominal))
    rig.start()
    lent = rig.work("high", 2, cpu="2")
    rig.pass_time(2_000)
    rig.run(lent)
    made = template(cpu="2", memory="1Mi", priority_class="high")
    owner = rig.plane.workload("lender", "other", template=made, replicas=1)
    first = rig.do(lambda: rig.plane.replica(owner))
    rig.pass_time(1_000)
    (victim,) = [it for it in lent if rig.now_of(it).status.state is State.STOPPING]
    rig.stop_all()
    rig.pass_time(1_000)
    rig.run([first])
    for tenant, nominal in (("acme", 6), ("other", 1)):
        now = rig.objects["quotas"][tenant, "default"]
        changed = msgspec.structs.replace(now, spec=quota_of(tenant, nominal).spec)
        rig.do(lambda changed=changed: accepted(rig.plane.ask(ADMIN, Update(changed))))
    borrower = rig.plane.read(f"objects/workloads/acme/{victim.spec.workload}")
    again = rig.do(lambda: rig.plane.replica(borrower, victim.spec.ordinal, incarnation=1))
    return rig, rig.now_of(first), rig.now_of(again)


def test_two_workloads_do_not_stop_each_other_in_turn() -> None:
    """Not while the cooldown lasts, and the metric counts a swap after it. [G4]"""
    rig, first, again = swapped()
    rig.pass_time(COOLDOWN_MS - 30_000)
    assert rig.states([first]) == [State.RUNNING]
    assert len(rig.asked(StopAndReserve)) == 1
    said = rig.now_of(again).status.pending
    assert said is not None
    assert "its workload stopped the preemptor's" in said.message
    assert rig.scheduler.backlog(rig.now).in_turn == 0
    rig.pass_time(120_000)
    assert rig.states([first]) == [State.STOPPING]
    rig.stop_all()
    rig.pass_time(1_000)
    assert rig.states([again]) == [State.BOUND]
    assert rig.scheduler.backlog(rig.now).in_turn == 1


def test_the_commit_refuses_a_swap_inside_the_cooldown() -> None:
    """Whatever a scheduler proposes. [G4]"""
    rig, first, again = swapped()
    ((before, _),) = rig.asked(StopAndReserve)
    rig.plane.elapsed_ms = rig.now_ms
    request = msgspec.structs.replace(
        before,
        target=target(again),
        victims=(target(rig.now_of(first)),),
        deadline=rig.plane.at(60),
        operation="swap",
    )
    identity = who.scheduler("one")
    refused(rig.plane.ask(identity, request), Reason.PREEMPTION_COOLDOWN)


NAMES = ("node-0", "node-1")


def guarded(rig: Contended, *, replicas: int, allowed: int) -> list[Any]:
    """Replicas of a workload with a disruption budget that run, the first of them ready."""
    budget = Disruption(max_unavailable=allowed)
    made = template(cpu="2", memory="1Mi", priority_class="cheap")
    owner = rig.plane.workload("guarded", template=made, replicas=replicas, disruption=budget)
    found = [rig.plane.replica(owner, ordinal) for ordinal in range(replicas)]
    rig.sync()
    rig.pass_time(2_000)
    rig.run(found)
    rig.ready(found[0])
    return found


def test_what_a_budget_protects_is_asked_for_once_and_other_work_is_stopped() -> None:
    """[G4]"""
    rig = Contended(2)
    rig.start()
    (kept,) = guarded(rig, replicas=1, allowed=0)
    (spot,) = rig.work("spot", cpu="2")
    rig.pass_time(2_000)
    rig.run([spot])
    (high,) = rig.work("high", cpu="2")
    rig.pass_time(10_000)
    assert rig.states([kept, spot]) == [State.RUNNING, State.STOPPING]
    rig.stop_all()
    rig.pass_time(1_000)
    (other,) = rig.work("high", cpu="2")
    rig.pass_time(300_000)
    assert rig.states([high, other]) == [State.BOUND, State.PENDING]
    assert [getattr(it, "reason", None) for _, it in rig.asked(StopAndReserve)] == [
        Reason.DISRUPTION_BUDGET,
        None,
    ]


def test_budgeted_work_is_stopped_as_soon_as_its_budget_has_room_again() -> None:
    """A refusal does not protect it for ever. [G4]"""
    rig = Contended(0)
    for name in NAMES:
        rig.plane.node(name, zone=name, capacity={"cpu": "2", "memory": "32Gi"})
    rig.start()
    # The work with a budget is on both nodes; only one of them may take what is important.
    first, second = guarded(rig, replicas=2, allowed=1)
    (node,) = [it for it in NAMES if it != rig.now_of(second).status.binding.node]
    label = Placement(zones=(node,))
    (high,) = rig.work("high", cpu="2", placement=label)
    rig.pass_time(180_000)
    assert len(rig.asked(StopAndReserve)) == 1, "the second one is not ready"
    rig.ready(second)
    rig.pass_time(61_000)
    assert rig.states([first, second]) == [State.STOPPING, State.RUNNING]
    rig.stop_all()
    rig.pass_time(1_000)
    assert rig.states([high]) == [State.BOUND]


def test_how_preemptions_ended_is_counted() -> None:
    """[M6]"""
    rig, _ = full()
    rig.work("high", cpu="2")
    rig.pass_time(1_000)
    rig.stop_all()
    rig.pass_time(1_000)
    found = rig.scheduler.backlog(rig.now)
    assert found.preemptions == (PreemptionCount("high", "Made", 1),)
    assert found.in_turn == 0


def test_work_that_stops_in_turn_what_stopped_it_is_counted() -> None:
    """Each step is legal by the quotas of its moment; only the count shows that they alternate.
    [M7, N3]"""
    rig = Contended()
    # What the third lends is more than the node has: the node is short, and not the cohort.
    for tenant, cpu in (("acme", "0"), ("globex", "2"), ("lender", "8")):
        if tenant != "acme":
            rig.plane.tenant(tenant)
        rig.plane.quota(tenant, cohort="pool", hard={"cpu": cpu}, borrowing={"cpu": "2"})

    def worker(tenant: str, incarnation: int = 0) -> Any:
        owner = rig.plane.read(f"objects/workloads/{tenant}/{tenant}-work")
        return rig.do(lambda: rig.plane.replica(owner, incarnation=incarnation))

    def wins(preemptor: Any) -> None:
        rig.pass_time(1_000)
        rig.stop_all()
        rig.pass_time(1_000)
        assert rig.states([preemptor]) == [State.BOUND]
        rig.run([preemptor])

    made = template(cpu="2", memory="1Mi", priority_class="high")
    for tenant in ("acme", "globex"):
        rig.plane.workload(f"{tenant}-work", tenant, template=made)
    rig.start()
    wins(worker("acme"))
    wins(worker("globex"))
    assert rig.scheduler.backlog(rig.now).in_turn == 0
    rig.pass_time(COOLDOWN_MS)
    for tenant, cpu in (("globex", "0"), ("acme", "2")):
        quota = rig.plane.read(f"objects/quotas/{tenant}/default")
        spec = msgspec.structs.replace(quota.spec, hard={"cpu": cpu})
        update = Update(msgspec.structs.replace(quota, spec=spec))
        rig.do(partial(rig.plane.ask, ADMIN, update))
    wins(worker("acme", incarnation=1))
    assert rig.scheduler.backlog(rig.now).in_turn == 1


def test_work_whose_class_does_not_preempt_waits() -> None:
    """[G4]"""
    rig, low = full(name="cheap")
    rig.work("spot", cpu="2")
    rig.pass_time(20_000)
    assert rig.states(low) == [State.RUNNING] * 2
    assert rig.asked(StopAndReserve) == []


def test_the_least_loss_is_taken_and_no_victim_too_many() -> None:
    """The node with the cheapest work, and of that only what is needed. [G4]"""
    rig = Contended(2, "4")
    rig.start()
    cheap, spot = rig.work("cheap", 4), rig.work("spot", 4)
    rig.pass_time(2_000)
    rig.run([*cheap, *spot])
    (high,) = rig.work("high", cpu="2")
    rig.pass_time(1_000)
    assert sorted(rig.states(cheap)) == [State.RUNNING] * 2 + [State.STOPPING] * 2
    assert rig.states(spot) == [State.RUNNING] * 4
    rig.stop_all()
    rig.pass_time(1_000)
    assert rig.states([high]) == [State.BOUND]


def test_many_preemptions_at_once_take_each_victim_once() -> None:
    """Each plan counts on what the ones before it take. [G4, F7]"""
    rig, low = full(4, "4")
    high = rig.work("high", 8, cpu="2")
    rig.pass_time(1_000)
    assert len(rig.asked(StopAndReserve)) == 8
    assert rig.refused == []
    assert set(rig.states(low)) == {State.STOPPING}
    rig.stop_all()
    rig.pass_time(1_000)
    assert set(rig.states(high)) == {State.BOUND}
    assert rig.refused == []
    rig.check_ledgers()


def test_a_scheduler_that_restarts_goes_on_where_the_store_is() -> None:
    """It stops nothing a second time. [G4, E5, F6]"""
    rig, _ = full()
    (high,) = rig.work("high", cpu="2")
    rig.pass_time(1_000)
    rig.restart()
    rig.pass_time(1_000)
    assert rig.now_of(high).status.pending.reasons == {"VictimsStopping": 1}
    rig.stop_all()
    rig.pass_time(1_000)
    assert rig.states([high]) == [State.BOUND]
    assert len(rig.asked(StopAndReserve)) == 1


def test_a_promise_whose_victims_do_not_stop_is_given_back() -> None:
    """Its owner says why it waits, and the place is free for others. [G4, INV12]"""
    rig, _ = full()
    (high,) = rig.work("high", cpu="2")
    rig.pass_time(1_000)
    held = rig.plane.read(f"objects/reservations/acme/{high.name}-preemption")
    assert held.status.phase is ReservationPhase.HELD
    rig.pass_time(120_000)
    assert len(rig.asked(DropReservation)) == 1
    held = rig.plane.read(f"objects/reservations/acme/{high.name}-preemption")
    assert held.status.phase is ReservationPhase.RELEASED
    assert rig.plane.ledger("node-0").promised == {}
    assert rig.states([high]) == [State.PENDING]
    rig.check_ledgers()


def test_a_place_on_a_node_that_takes_no_work_any_more_is_given_back() -> None:
    """[G4]"""
    rig, _ = full()
    (high,) = rig.work("high", cpu="2")
    rig.pass_time(1_000)
    node = rig.objects["nodes"]["", "node-0"]
    cordoned = msgspec.structs.replace(node.spec, cordoned=True)
    changed = msgspec.structs.replace(node, spec=cordoned)
    rig.do(lambda: rig.plane.ask(ADMIN, Update(changed)))
    rig.stop_all()
    rig.pass_time(20_000)
    assert rig.states([high]) == [State.PENDING]
    assert rig.plane.ledger("node-0").promised == {}


def test_quota_that_a_refused_plan_had_counted_on_is_given_to_others_at_once() -> None:
    """[V2, V4]"""
    rig = Contended()
    rig.plane.create(
        Quota(ObjectMeta(name="default", namespace="acme"), spec=QuotaSpec(hard={"cpu": "3"}))
    )
    rig.start()
    guarded(rig, replicas=1, allowed=0)
    rig.work("high", cpu="2")
    (firm,) = rig.work("firm", cpu="2")
    rig.pass_time(10_000)
    assert len(rig.asked(StopAndReserve)) == 1
    assert rig.now_of(firm).status.pending.reasons == {"NodeFull": 1}


def lent(nominal: int, **more: Any) -> tuple[Any, Any]:
    """A node that is full of borrowed work, and a replica of the lender."""
    rig = Contended(1, "4")
    rig.plane.tenant("other")
    for tenant, cpus in (("acme", 2), ("other", nominal)):
        rig.plane.create(quota_of(tenant, cpus))
    rig.start()
    borrowed = rig.work("firm", 4)
    rig.pass_time(2_000)
    rig.run(borrowed)
    made = template(cpu="1", memory="1Mi", priority_class="firm", **more)
    owner = rig.plane.workload("lender", "other", template=made, replicas=1)
    replica = rig.do(lambda: rig.plane.replica(owner))
    rig.pass_time(2_000)
    return rig, replica


def test_a_lender_that_could_use_what_was_lent_says_so() -> None:
    """[G1]"""
    rig, replica = lent(2)
    assert rig.now_of(replica).status.pending.reasons == {"CohortExhausted": 1}


def test_nothing_is_asked_back_for_work_that_no_node_could_take_by_it() -> None:
    """Its reason is the nodes, which its quota does not help. [G1, V4]"""
    rig, replica = lent(2, placement=Placement(zones=("elsewhere",)))
    said = rig.now_of(replica).status.pending
    assert said.reasons == {"ZoneMismatch": 1}
    assert said.message.endswith("its tenant's quota has no room for it either")


def test_nothing_is_asked_back_again_for_work_that_had_quota_and_found_no_room() -> None:
    """A borrower would take the quota again and lose it again, for ever. [G1, V4]"""
    rig, replica = lent(3)
    assert rig.now_of(replica).status.pending.reasons == {"NodeFull": 1}
    now = rig.objects["quotas"]["other", "default"]
    changed = msgspec.structs.replace(now, spec=quota_of("other", 2).spec)
    rig.do(lambda: accepted(rig.plane.ask(ADMIN, Update(changed))))
    rig.pass_time(61_000)
    assert rig.now_of(replica).status.pending.reasons == {"NodeFull": 1}
