"""Stopping work on purpose, the budgets over all causes, and the first half of a preemption."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.evict import SETTLED_MAX, VICTIMS_MAX
from holdfast.model import keys
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.reservation import ReservationPhase
from holdfast.model.kinds.template import DeviceRequest, Port
from holdfast.model.kinds.workload import Disruption, WorkloadType
from holdfast.model.lifecycle import CAUSE_OWNER, Cause, Stage, State
from holdfast.model.refusal import Reason
from holdfast.model.requests import (
    Accepted,
    DropReservation,
    Evict,
    Move,
    Remove,
    SettleDisruption,
)
from tests.furnished import (
    AGENT,
    ANN,
    BOB,
    DISRUPTIONS,
    DRAINS,
    GARBAGE,
    ROLLOUTS,
    STOPPERS,
    Furnished,
    counted,
)
from tests.plane import (
    ADMIN,
    NODES,
    REPAIR,
    SCHEDULER,
    WORKLOADS,
    accepted,
    refused,
    target,
    template,
)

CAUSES = [cause for cause in Cause if cause is not Cause.PREEMPTION]


def ledger(it: Furnished, workload: str = "web") -> Any:
    return it.plane.read(keys.disruption_ledger("acme", workload))


# Causes and budgets ------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_belongs_to_one_identity(cause: Cause) -> None:
    """[A9, C6.7]"""
    it = Furnished()
    running = it.running()
    it.draining()
    owner = STOPPERS[CAUSE_OWNER[cause]]
    for identity in (*STOPPERS.values(), NODES, GARBAGE, AGENT):
        if identity == owner:
            continue
        leased = identity not in (ANN, AGENT)
        term = it.term(identity) if leased else it.term(owner) if owner != ANN else None
        answer = it.ask(identity, Evict(target(running), cause, "told", term))
        assert not isinstance(answer, Accepted), identity
    after = it.yes(owner, it.evict(running, cause))
    assert (after.status.state, after.status.cause) == (State.STOPPING, cause)
    assert after.status.transitions[-1].reason == cause.value
    assert ledger(it).out == {running.metadata.uid: cause}


def test_a_person_stops_work_of_his_own_tenants_only() -> None:
    """[C6.7, B5]"""
    it = Furnished()
    running = it.running()
    stop = Evict(target(running), Cause.USER_DELETE)
    refused(it.ask(BOB, stop), Reason.NOT_ALLOWED)
    assert it.get(running).status.state is State.RUNNING
    it.yes(ANN, stop)


def test_a_preemption_is_not_an_eviction() -> None:
    """Nothing would say for whom, or that it is more important. [G4]"""
    it = Furnished()
    request = Evict(target(it.running()), Cause.PREEMPTION, term=it.term(SCHEDULER))
    refused(it.ask(SCHEDULER, request), Reason.NOT_ALLOWED)


def tight(it: Furnished, replicas: int, allowed: int = 1) -> Any:
    budget = Disruption(max_unavailable=allowed)
    return it.plane.workload("tight", replicas=replicas, disruption=budget)


def settled(it: Furnished, *replicas: Any) -> None:
    """The ledger after the authority looked at these."""
    names = tuple(it.name for it in replicas)
    it.yes(DISRUPTIONS, SettleDisruption("acme", "tight", names, it.term(DISRUPTIONS)))


def gone(it: Furnished, replica: Any) -> None:
    """Released, and cleared away."""
    it.moved(replica, State.RELEASED)
    it.yes(WORKLOADS, Remove("replicas", "acme", replica.name))
    assert it.get(replica) is None


def test_drains_rollouts_and_preemptions_share_one_budget() -> None:
    """[G4, I8]"""
    it = Furnished()
    made = template(priority_class="low")
    low = it.plane.workload(
        "tight", template=made, replicas=4, disruption=Disruption(max_unavailable=2)
    )
    high = it.of_class("high", cpu="8")
    other = it.plane.node("node-b")
    replicas = [it.ready(low, other), *(it.ready(low) for _ in range(3))]
    settled(it, *replicas)
    it.draining(other)
    it.stopping(replicas[0], Cause.DRAIN)
    it.stopping(replicas[1], Cause.ROLLOUT)
    refusal = refused(
        it.ask(ROLLOUTS, it.evict(replicas[2], Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET
    )
    assert refusal.details == {"missing": "2", "allowed": "2"}
    preempt = it.preempt(it.pending(high), *replicas[2:])
    refused(it.ask(SCHEDULER, preempt), Reason.DISRUPTION_BUDGET)
    it.draining()
    refused(it.ask(DRAINS, it.evict(replicas[2], Cause.DRAIN)), Reason.DISRUPTION_BUDGET)
    # What its own owner wants, and what has failed anyway, is counted and never refused.
    it.stopping(replicas[2], Cause.SCALE_DOWN)
    it.stopping(replicas[3], Cause.REPAIR)
    assert len(ledger(it, "tight").out) == 4


def test_two_evictions_at_the_same_moment_cannot_both_take_the_last_of_a_budget() -> None:
    """[G4]"""
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web), it.ready(web)
    settled(it, one, two)
    it.draining()
    it.term(DRAINS), it.term(ROLLOUTS)
    first, second = it.plane.ask_all(
        (DRAINS, it.evict(one, Cause.DRAIN)), (ROLLOUTS, it.evict(two, Cause.ROLLOUT))
    )
    accepted(first)
    refused(second, Reason.DISRUPTION_BUDGET)


def test_who_is_not_ready_counts_and_costs_nothing_to_take() -> None:
    """From its birth on, whoever is slow to say so. [G4]"""
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web), it.running(web)
    assert ledger(it, "tight").missing == (one.metadata.uid, two.metadata.uid)
    settled(it, one, two)
    assert ledger(it, "tight").missing == (two.metadata.uid,)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.stopping(two, Cause.ROLLOUT)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)


def test_who_is_stopped_as_idle_must_not_have_begun_to_work() -> None:
    """Whoever asks has seen it idle; what it costs to stop it now, it has not counted. [A9, G4]"""
    it = Furnished()
    ready, running = it.ready(), it.running()
    refused(it.ask(ROLLOUTS, it.evict(ready, Cause.ROLLOUT, idle=True)), Reason.NOT_ALLOWED)
    assert it.get(ready).status.state is State.RUNNING
    it.yes(ROLLOUTS, it.evict(running, Cause.ROLLOUT, idle=True))


def test_one_that_is_ready_costs_also_before_the_ledger_has_heard_of_it() -> None:
    """Otherwise the only one that works could be taken as one that does not. [G4]"""
    it = Furnished()
    web = tight(it, 2)
    one, _ = it.ready(web), it.running(web)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)


def test_who_is_not_ready_any_more_counts_once_that_was_seen() -> None:
    """Also one that is out of contact, or has failed. [G4, H2]"""
    it = Furnished()
    web = tight(it, 3)
    other = it.plane.node("node-b")
    one, two, three = it.ready(web, other), it.ready(web), it.ready(web)
    settled(it, one, two, three)
    failed = it.moved(two, State.FAILED)
    settled(it, failed)
    refused(it.ask(ROLLOUTS, it.evict(three, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    gone(it, failed)
    refused(it.ask(ROLLOUTS, it.evict(three, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    four = it.ready(web)
    settled(it, four)
    unready = it.at_stage(four, Stage.STARTING)
    settled(it, unready)
    refused(it.ask(ROLLOUTS, it.evict(three, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    settled(it, it.at_stage(unready, Stage.READY))
    it.yes(ROLLOUTS, it.evict(three, Cause.ROLLOUT))


def test_a_loss_counts_until_its_successor_works() -> None:
    """At no moment in between can a second one be taken: while it stops, after it is gone, when the
    next one is born, and while that starts. [G4, I6]"""
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web), it.ready(web)
    settled(it, one, two)

    def refuses() -> None:
        settled(it, *(r for r in (one, two, *born) if it.get(r) is not None))
        refused(it.ask(ROLLOUTS, it.evict(two, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)

    born: list[Any] = []
    stopped = it.stopping(one, Cause.ROLLOUT)
    refuses()
    gone(it, stopped)
    refuses()
    born.append(it.running(web))
    refuses()
    it.at_stage(born[0], Stage.READY)
    settled(it, born[0])
    it.yes(ROLLOUTS, it.evict(two, Cause.ROLLOUT))


def test_what_is_too_many_makes_up_for_what_is_missing() -> None:
    """A rollout that starts the new one first takes the old one without a budget's leave. [I6]"""
    it = Furnished()
    web = tight(it, 2, allowed=0)
    replicas = [it.ready(web) for _ in range(3)]
    settled(it, *replicas)
    refused(it.ask(ROLLOUTS, it.evict(replicas[0], Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.updated(web, disruption=Disruption(max_unavailable=1))
    it.yes(ROLLOUTS, it.evict(replicas[0], Cause.ROLLOUT))
    it.yes(ROLLOUTS, it.evict(replicas[1], Cause.ROLLOUT))
    refused(it.ask(ROLLOUTS, it.evict(replicas[2], Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)


def test_a_job_counts_only_what_was_taken_from_it() -> None:
    """Its replicas start and end by themselves. [G4]"""
    it = Furnished()
    made = it.plane.workload(
        "tight", type=WorkloadType.JOB, replicas=8, disruption=Disruption(max_unavailable=1)
    )
    one, two, waiting = it.ready(made), it.ready(made), it.pending(made)
    settled(it, one, two, waiting)
    assert ledger(it, "tight").missing == ()
    it.draining()
    stopped = it.stopping(one, Cause.DRAIN)
    refused(it.ask(DRAINS, it.evict(two, Cause.DRAIN)), Reason.DISRUPTION_BUDGET)
    # Released ones of a job stay for a while, to be looked at.
    settled(it, it.moved(stopped, State.RELEASED))
    it.yes(DRAINS, it.evict(two, Cause.DRAIN))


def test_one_per_node_is_not_missed_on_a_node_that_was_emptied() -> None:
    """Or one drained node would hold up the drain of the next. [G4]"""
    it = Furnished()
    made = it.plane.workload(
        "tight", type=WorkloadType.PER_NODE, disruption=Disruption(max_unavailable=1)
    )
    one, two = it.ready(made), it.ready(made, it.plane.node("node-b"))
    refused(it.ask(ROLLOUTS, it.evict(two, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    settled(it, one, two)
    stopped = it.stopping(one, Cause.ROLLOUT)
    refused(it.ask(ROLLOUTS, it.evict(two, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    settled(it, it.moved(stopped, State.RELEASED))
    it.yes(ROLLOUTS, it.evict(two, Cause.ROLLOUT))


def test_who_is_missing_is_forgotten_with_the_budget_and_found_again_with_the_next() -> None:
    """A ledger that nobody settles would grow with every replica there ever was. [A2]"""
    it = Furnished()
    web = tight(it, 2)
    one = it.running(web)
    it.updated(web, disruption=None)
    assert ledger(it, "tight").missing == ()
    two = it.running(web)
    it.updated(web, disruption=Disruption(max_unavailable=1))
    assert ledger(it, "tight").missing == ()
    settled(it, one, two)
    assert len(ledger(it, "tight").missing) == 2
    gone(it, it.stopping(one))
    assert ledger(it, "tight").missing == (two.metadata.uid,)
    assert ledger(it, "tight").out == {}


def test_a_drain_is_held_up_by_budgets_only_until_the_operators_deadline() -> None:
    """[C7.6]"""
    it = Furnished()
    running = it.ready(tight(it, 1, allowed=0))
    it.draining(reason="new disks", deadline=it.plane.at(60))
    it.term(DRAINS)
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms - 1
    refused(it.ask(DRAINS, it.evict(running, Cause.DRAIN)), Reason.DISRUPTION_BUDGET)
    it.plane.elapsed_ms += 1
    refused(it.ask(ROLLOUTS, it.evict(running, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.yes(DRAINS, it.evict(running, Cause.DRAIN))


def test_a_drain_ends_with_the_operators_word() -> None:
    """Whoever still believes in it stops nothing any more. [L1, C2]"""
    it = Furnished()
    running = it.running()
    refused(it.ask(DRAINS, it.evict(running, Cause.DRAIN)), Reason.NOT_ALLOWED)
    it.draining()
    it.updated(it.node, drain=None)
    refused(it.ask(DRAINS, it.evict(running, Cause.DRAIN)), Reason.NOT_ALLOWED)


def test_a_settlement_says_what_is_so_however_late_it_comes() -> None:
    """And of nobody else's replicas, nor of one that is gone. [C2, C6.7]"""
    it = Furnished()
    web = tight(it, 2)
    one, strange = it.ready(web), it.running()
    late = SettleDisruption("acme", "tight", (one.name, strange.name, "none"), it.term(DISRUPTIONS))
    it.at_stage(one, Stage.STARTING)
    it.yes(DISRUPTIONS, late)
    assert ledger(it, "tight").missing == (one.metadata.uid,)
    it.at_stage(it.get(one), Stage.READY)
    it.yes(DISRUPTIONS, late)
    assert ledger(it, "tight").missing == ()
    before = it.plane.store.revision
    it.yes(DISRUPTIONS, late)
    assert it.plane.store.revision == before


def test_only_its_controller_settles_and_only_what_is_there() -> None:
    """[C6.7]"""
    it = Furnished()
    it.pending()
    term = it.term(DISRUPTIONS)
    request = SettleDisruption("acme", "web", (), term)
    refused(it.ask(ADMIN, request), Reason.NOT_OWNER)
    missing = msgspec.structs.replace(request, workload="none")
    refused(it.ask(DISRUPTIONS, missing), Reason.MISSING)
    many = msgspec.structs.replace(request, replicas=("web-0-0",) * (SETTLED_MAX + 1))
    refused(it.ask(DISRUPTIONS, many), Reason.NOT_ALLOWED)


# Preemption --------------------------------------------------------------------------------------


class Preemption:
    """A full node, two victims of low priority, and one of high priority that needs their place."""

    def __init__(self, tenant: str = "acme", cpu: str = "2") -> None:
        self.it = it = Furnished(cpus=2)
        self.low = it.of_class("low", tenant)
        self.high = it.of_class("high", cpu=cpu)
        self.victims = [it.running(self.low), it.running(self.low)]
        self.replica = it.pending(self.high)

    def request(self, **more: Any) -> Any:
        return self.it.preempt(self.replica, *self.victims, **more)

    def stop(self, **more: Any) -> Any:
        return self.it.yes(SCHEDULER, self.request(**more))

    def bind(self) -> Any:
        name = f"{self.replica.name}-preemption"
        return self.it.bind(self.it.get(self.replica), reservation=name)

    def released(self, victim: Any) -> None:
        self.it.moved(self.it.get(victim), State.RELEASED)


def test_victims_are_stopped_with_their_cause_and_their_place_is_promised() -> None:
    """[G4]"""
    case = Preemption()
    it, held = case.it, case.stop()
    for victim in case.victims:
        after = it.get(victim)
        assert (after.status.state, after.status.cause) == (State.STOPPING, Cause.PREEMPTION)
        assert case.replica.name in after.status.transitions[-1].evidence
    assert held.status.claims[0].charge["cpu"] == 2000
    assert it.plane.ledger("node-a").promised == {
        held.metadata.uid: {"cpu": 2000, "memory": 2**30, "replicas": 1}
    }
    # Nothing is charged twice: the victims still hold what they have.
    assert counted(it.plane)["node node-a"]["cpu"] == 2000


def test_nobody_else_gets_the_place_before_or_after_the_victims_are_gone() -> None:
    """[G4, C6.8]"""
    case = Preemption()
    it = case.it
    case.stop()
    other, rival = it.pending(), it.pending(case.high)

    def others_are_refused() -> None:
        for replica in (other, rival):
            refused(it.ask(SCHEDULER, it.bind(replica)), Reason.NODE_FULL)
            refused(it.ask(SCHEDULER, it.reserve(replica)), Reason.NODE_FULL)
        name = f"{case.replica.name}-preemption"
        refused(it.ask(SCHEDULER, it.bind(rival, reservation=name)), Reason.PROTECTED_CAPACITY)

    others_are_refused()
    case.released(case.victims[0])
    others_are_refused()
    refused(it.ask(SCHEDULER, case.bind()), Reason.NODE_FULL)
    case.released(case.victims[1])
    others_are_refused()
    it.yes(SCHEDULER, case.bind())
    after = it.plane.ledger("node-a")
    assert (after.promised, after.leaving, after.used["cpu"]) == ({}, {}, 2000)
    assert it.reservation(f"{case.replica.name}-preemption").status.phase is (
        ReservationPhase.CONSUMED
    )


def test_a_promise_that_is_not_kept_in_time_is_taken_back() -> None:
    """[INV12, G4]"""
    case = Preemption()
    it, held = case.it, case.stop(after_s=60)
    for victim in case.victims:
        case.released(victim)
    it.plane.elapsed_ms += 60_000 - it.plane.settings.skew_ms
    refused(it.ask(SCHEDULER, case.bind()), Reason.RESERVATION_EXPIRED)
    it.plane.elapsed_ms += 2 * it.plane.settings.skew_ms
    drop = DropReservation("acme", held.name, held.metadata.uid, "late", it.term(REPAIR))
    it.yes(REPAIR, drop)
    assert it.plane.ledger("node-a").promised == {}
    it.yes(SCHEDULER, it.bind(it.pending()))


def test_work_that_is_not_wanted_any_more_leaves_no_promise_behind() -> None:
    """[F7, I5]"""
    case = Preemption()
    it = case.it
    case.stop()
    it.yes(
        WORKLOADS,
        Move(target(it.get(case.replica)), State.RELEASED, "ScaleDown", term=it.term(WORKLOADS)),
    )
    assert it.plane.ledger("node-a").promised == {}


@pytest.mark.parametrize("name", ["high", "peer"])
def test_only_less_important_work_gives_way(name: str) -> None:
    """[G4, G1]"""
    it = Furnished(cpus=1)
    high = it.of_class("high")
    victim = it.running(high if name == "high" else it.of_class("low"))
    preemptor = it.pending(high)
    answer = it.ask(SCHEDULER, it.preempt(preemptor, victim))
    if name == "high":
        refused(answer, Reason.NOT_ALLOWED)
        assert it.get(victim).status.state is State.RUNNING
    else:
        accepted(answer)


def test_a_class_that_does_not_preempt_pushes_nobody_out() -> None:
    """[G4]"""
    it = Furnished(cpus=1)
    victim = it.running(it.of_class("spot"))
    for name in ("low", ""):
        workload = it.of_class("low") if name else it.web
        refused(it.ask(SCHEDULER, it.preempt(it.pending(workload), victim)), Reason.NOT_ALLOWED)
    assert it.get(victim).status.state is State.RUNNING


def test_nobody_is_stopped_in_vain() -> None:
    """Not for work that does not fit even then, is not allowed there, or is going away. [G4]"""
    case = Preemption(cpu="3")
    it = case.it
    refused(it.ask(SCHEDULER, case.request()), Reason.NODE_FULL)
    case = Preemption()
    it = case.it
    it.updated(it.node, cordoned=True)
    refused(it.ask(SCHEDULER, case.request()), Reason.NODE_CORDONED)
    it.updated(it.node, cordoned=False)
    refused(it.ask(SCHEDULER, case.request(after_s=1)), Reason.RESERVATION_EXPIRED)
    it.yes(WORKLOADS, Remove("replicas", "acme", case.replica.name))
    refused(it.ask(SCHEDULER, case.request()), Reason.TERMINATING)
    assert [it.get(v).status.state for v in case.victims] == [State.RUNNING] * 2


def test_nobody_is_stopped_when_the_quota_would_refuse_the_bind() -> None:
    """[G4, D1]"""
    case = Preemption(tenant="globex")
    it = case.it
    it.plane.quota(hard={"cpu": "1"})
    refused(it.ask(SCHEDULER, case.request()), Reason.QUOTA_EXCEEDED)
    assert [it.get(v).status.state for v in case.victims] == [State.RUNNING] * 2


def test_what_the_victims_give_back_to_the_quota_counts() -> None:
    """A tenant at its quota may still prefer its own important work. [G4, D1]"""
    case = Preemption()
    it = case.it
    it.plane.quota(hard={"cpu": "2"})
    case.stop()
    for victim in case.victims:
        case.released(victim)
    it.yes(SCHEDULER, case.bind())
    assert counted(it.plane)["hard acme"]["cpu"] == 2000


def test_a_repeated_preemption_stops_nobody_else() -> None:
    """[C2, F7, C6.9]"""
    case = Preemption()
    it = case.it
    request = case.request(operation="one/preempt")
    it.yes(SCHEDULER, request)
    it.plane.authority = it.plane.new_authority()
    assert it.ask(SCHEDULER, request).replayed
    anew = msgspec.structs.replace(request, operation="")
    refused(it.ask(SCHEDULER, anew), Reason.STALE_REPLICA)
    more = it.pending(case.low)
    fresh = it.preempt(it.get(case.replica), *(it.get(v) for v in case.victims))
    refused(it.ask(SCHEDULER, fresh), Reason.WRONG_STATE)
    assert more.status.state is State.PENDING


def test_a_victim_is_named_once_is_there_and_is_as_it_was_seen() -> None:
    """[C2]"""
    case = Preemption()
    it = case.it
    one, two = case.victims
    twice = it.preempt(case.replica, one, one)
    refused(it.ask(SCHEDULER, twice), Reason.STALE_REPLICA)
    none = it.preempt(case.replica)
    refused(it.ask(SCHEDULER, none), Reason.NOT_ALLOWED)
    away = it.running(case.low, it.plane.node("node-b"))
    refused(it.ask(SCHEDULER, it.preempt(case.replica, one, away)), Reason.WRONG_STATE)
    gone = msgspec.structs.replace(case.request(), victims=(target(one),) * (VICTIMS_MAX + 1))
    refused(it.ask(SCHEDULER, gone), Reason.NOT_ALLOWED)
    it.moved(two, State.FAILED)
    refused(it.ask(SCHEDULER, case.request()), Reason.STALE_REPLICA)
    assert it.get(one).status.state is State.RUNNING


def test_many_victims_of_many_workloads_are_one_decision() -> None:
    """[C7.4]"""
    it = Furnished(cpus=40)
    victims = []
    for number in range(40):
        workload = it.plane.workload(
            f"small-{number}", template=template(memory="1Mi", priority_class="low")
        )
        victims.append(it.running(workload))
    preemptor = it.pending(it.of_class("high", cpu="40"))
    it.plane.authority = it.plane.new_authority()
    it.yes(SCHEDULER, it.preempt(preemptor, *victims))
    assert {it.get(victim).status.state for victim in victims} == {State.STOPPING}


def test_devices_and_ports_are_promised_with_the_rest() -> None:
    """[C6.1, G4]"""
    it = Furnished()
    gpu = (DeviceRequest(device_class="gpu", memory="16Gi"),)
    port = (Port(name="http", port=8080),)

    def work(name: str) -> Any:
        return it.plane.workload(
            f"gpu-{name}",
            template=template(priority_class=name, devices=gpu, ports=port),
            replicas=4,
        )

    victim = it.running(work("low"))
    held = victim.status.binding.devices[0].device
    high = work("high")
    preemptor, rival = it.pending(high), it.pending(high)
    shares = (DeviceShare(device=held, device_class="gpu", milli=1000),)
    made = it.yes(SCHEDULER, it.preempt(preemptor, victim, devices=shares))
    name = made.name
    it.moved(it.get(victim), State.RELEASED)
    refused(it.ask(SCHEDULER, it.bind(rival)), Reason.PORT_TAKEN)
    slot = it.plane.ledger("node-a").devices[held]
    assert (slot.owners, slot.promised) == ({}, made.metadata.uid)
    bound = it.yes(SCHEDULER, it.bind(it.get(preemptor), reservation=name))
    assert bound.status.binding.devices == shares
    slot = it.plane.ledger("node-a").devices[held]
    assert (slot.owners, slot.promised) == ({preemptor.metadata.uid: 1000}, "")


def test_two_preemptions_on_one_node_do_not_promise_the_same_place_twice() -> None:
    """[C6.8, INV4]"""
    case = Preemption(cpu="1")
    it = case.it
    rival = it.pending(case.high)
    it.yes(SCHEDULER, it.preempt(case.replica, case.victims[0]))
    it.yes(SCHEDULER, it.preempt(rival, case.victims[1]))
    third = it.pending(case.high)
    nobody = it.preempt(third, it.get(case.victims[1]))
    refused(it.ask(SCHEDULER, nobody), Reason.WRONG_STATE)
    case.released(case.victims[1])
    # What is free is as good as what was promised: sums have no names.
    it.yes(SCHEDULER, case.bind())
    refused(
        it.ask(SCHEDULER, it.bind(it.get(rival), reservation=f"{rival.name}-preemption")),
        Reason.NODE_FULL,
    )
    case.released(case.victims[0])
    it.yes(SCHEDULER, it.bind(it.get(rival), reservation=f"{rival.name}-preemption"))
    assert it.plane.ledger("node-a").used["cpu"] == 2000
