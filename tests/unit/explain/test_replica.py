"""Why a replica is not further: one case for each reason, from pictures made by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.correct.tellings import event_of
from holdfast.explain.answer import Explanation, Leg, Why
from holdfast.explain.facts import EVENTS_MAX, Facts, Stored
from holdfast.explain.on_node import TOLD_WITHIN_MS
from holdfast.explain.places import ASKED
from holdfast.explain.replica import explain
from holdfast.explain.times import AGENT_LOOKS_MS, CONTROLLER_LOOKS_MS, SCHEDULER_LOOKS_MS
from holdfast.model import keys
from holdfast.model.fence import FenceTiming
from holdfast.model.heartbeat import Doing, Heard, Note, Said
from holdfast.model.kinds.decision import Decision, DecisionSpec
from holdfast.model.kinds.lease import Lease, LeaseSpec
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.quota import Quota, QuotaSpec
from holdfast.model.kinds.replica import CRASH_LOOP, Pending, Process, Replica
from holdfast.model.kinds.reservation import (
    Intent,
    Reservation,
    ReservationOwner,
    ReservationSpec,
)
from holdfast.model.kinds.template import ExecAction, OnDisconnect, Probe, Probes
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Progress, WorkloadStatus
from holdfast.model.ledger import QuotaLedger, TenantLimits, TenantUse, mirrored
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import Object, ObjectMeta, Operation
from holdfast.model.pulse import Beat, Felt, Pulse, Pulses
from holdfast.propose.filters import FILTERS
from tests.unit.correct.pictures import (
    AGENT,
    TEMPLATE,
    at,
    later,
    meta,
    node,
    record,
    replaced,
    replica,
    workload,
)

TIMING = FenceTiming()
# Everything in these pictures is of the moment NOW; it is asked so long after it.
LOOK_MS = 5_000
NODES = "system:controller:nodes"
KEEP = replaced(TEMPLATE, on_disconnect=OnDisconnect.KEEP)
PROBED = replaced(TEMPLATE, probes=Probes(readiness=Probe(exec=ExecAction(("true",)))))
FULL = Pending(
    {"NodeFull": 1},
    "none of 1 nodes can take it: 1 NodeFull",
    "Waiting",
    next_wake=at(30_000),
    owner="scheduler",
)
OVER = Pending(
    {"QuotaExceeded": 1},
    "tenant acme uses 2 of 2 cpu",
    "BlockedBy",
    next_wake=at(-200_000),
    owner="operator",
)


# Everybody who may be waited for works.
ACTING = (
    Pulses(
        "one",
        60_000,
        (
            Felt(
                "system:controllers",
                1_000,
                Pulse(
                    "all",
                    tuple(
                        Beat(f"controller:{it}", 3)
                        for it in ("nodes", "repair", "workload", "status", "endpoints")
                    ),
                ),
            ),
            Felt("system:scheduler:main", 1_000, Pulse("main", (Beat("scheduler:main", 3),))),
        ),
    ),
)


def heard(said: Said | None = None, age_ms: int = 1_000) -> Heard:
    notes = {"node-a": said} if said is not None else {}
    return Heard("one", 60_000, {"node-a": age_ms}, TIMING, notes)


def noted(doing: Doing) -> Heard:
    return heard(Said((Note("uid-web-0-0", doing),)))


def ledgers(*nodes: Node) -> list[tuple[str, Any, int]]:
    """What the nodes have, of which nothing is taken."""
    return [(keys.node_ledger(it.name), mirrored(it, None), 30) for it in nodes]


def asked(
    about: Replica,
    *objects: Object,
    more: list[tuple[str, Any, int]] | None = None,
    ms: int = LOOK_MS,
    **facts: Any,
) -> Explanation:
    records = [(keys.key_of(it), it, 7) for it in (about, *objects)]
    stored = Stored(40, [*records, *(more or ())])
    facts = {"pulses": ACTING, **facts}
    return explain(Facts(about, stored, TIMING, **facts), later(ms))


def says(answer: Explanation, why: Why, leg: Leg, owner: str) -> None:
    found = answer.finding
    assert (found.why, found.leg, found.owner) == (why, leg, owner), found.message


def due_in_ms(answer: Explanation) -> int:
    """How long after NOW the next move is due."""
    deadline = answer.finding.deadline
    assert deadline is not None, answer.finding.no_deadline
    return round((deadline - at()) / timedelta(milliseconds=1))


# Without a place ----------------------------------------------------------------------------------


def waiting(pending: Pending | None = FULL, **more: Any) -> Replica:
    born = (record(State.PENDING, "system:controller:workload"),)
    return replica(State.PENDING, pending=pending, transitions=born, **more)


def decided(chosen: str = "", result: str = "Pending", seen: int = 9) -> Decision:
    spec = DecisionSpec(
        "web-0-0", chosen=chosen, result=result, decided_at=at(), seen={"nodes": seen}
    )
    return Decision(meta("d-1"), spec=spec)


BIG = msgspec.structs.replace(
    node(), spec=msgspec.structs.replace(node().spec, capacity={"cpu": "8", "memory": "8Gi"})
)
ACME = Tenant(ObjectMeta(name="acme"))


def test_nobody_has_looked_yet() -> None:
    """[M2, M3]"""
    answer = asked(waiting(None))
    says(answer, Why.NOT_TRIED, Leg.SCHEDULING, "scheduler")
    assert due_in_ms(answer) == SCHEDULER_LOOKS_MS


def test_a_quota_that_is_used_up_is_the_operators_to_change() -> None:
    """By its ledger as it is now; the scheduler looks again once in its period. [M2, SC4]"""
    quota = Quota(ObjectMeta(name="default", namespace="acme"), spec=QuotaSpec(hard={"cpu": "2"}))
    ledger = QuotaLedger(
        limits={"acme": TenantLimits(hard={"cpu": 2_000})},
        used={"acme": TenantUse(hard={"cpu": 2_000})},
    )
    more = [(keys.quota_ledger("tenant:acme"), ledger, 33)]
    answer = asked(waiting(OVER), quota, ACME, BIG, more=[*more, *ledgers(BIG)])
    says(answer, Why.QUOTA, Leg.SCHEDULING, "operator")
    assert answer.finding.then == "scheduler"
    assert due_in_ms(answer) == -200_000 + 4 * SCHEDULER_LOOKS_MS
    (sign,) = [it for it in answer.signs if it.what == "quota of its tenant"]
    assert sign.revision == 33
    # Once there is room again, what was said is not so any more.
    says(
        asked(waiting(OVER), quota, ACME, BIG, more=ledgers(BIG)),
        Why.STALE_PICTURE,
        Leg.SCHEDULING,
        "scheduler",
    )


def test_a_place_that_there_is_was_not_known_to_whoever_decided() -> None:
    """[M2, SC4]"""
    answer = asked(waiting(), ACME, BIG, more=ledgers(BIG), decision=decided())
    says(answer, Why.STALE_PICTURE, Leg.SCHEDULING, "scheduler")
    assert "node node-a would take it since revision 30" in answer.finding.message
    assert "had not been told of that: it had seen revision 0" in answer.finding.message
    assert due_in_ms(answer) == 30_000


@pytest.mark.parametrize(
    "shut",
    [
        {"cordoned": True},
        {"capacity": {"cpu": "500m", "memory": "8Gi"}},
        {"pool": "gpu"},
    ],
)
def test_no_place_is_what_the_scheduler_says_where_the_ledgers_agree(shut: dict[str, Any]) -> None:
    """By the very rules of the commit. [M2]"""
    spec = msgspec.structs.replace(BIG.spec, **shut)
    there = msgspec.structs.replace(BIG, spec=spec)
    asks = replaced(TEMPLATE, placement=replaced(TEMPLATE.placement, pool="general"))
    answer = asked(waiting(template=asks), ACME, there, more=ledgers(there))
    says(answer, Why.NO_PLACE, Leg.SCHEDULING, "scheduler")
    assert answer.finding.message == FULL.message


@pytest.mark.parametrize(
    "reason, why",
    [
        ("NodeFull", Why.STALE_PICTURE),
        # Where its companions are is not asked here, nor what filters of users say.
        ("AntiAffinityViolated", Why.NO_PLACE),
        ("OfAPlugin", Why.NO_PLACE),
        ("GrantExpired", Why.QUOTA),
    ],
)
def test_of_rules_that_are_not_asked_again_the_schedulers_word_counts(
    reason: str, why: Why
) -> None:
    """[M2]"""
    said = replaced(FULL, reasons={reason: 1})
    answer = asked(waiting(said), ACME, BIG, more=ledgers(BIG))
    says(answer, why, Leg.SCHEDULING, "scheduler")


def test_every_filter_that_ships_is_asked_again() -> None:
    """Or a reason of it is told as if nothing were known. [M2]"""
    reasons = {str(reason) for each in FILTERS for reason in each.reasons if reason}
    assert reasons <= ASKED


@pytest.mark.parametrize(
    "pending, decision",
    [
        (Pending({"SchedulingRetrying": 1}, "lost", next_wake=at(9_000)), None),
        (None, decided("node-a", "Unknown")),
    ],
)
def test_a_bind_whose_answer_is_lost_is_the_schedulers_to_settle(
    pending: Pending | None, decision: Decision | None
) -> None:
    """[M2, M3, F6]"""
    answer = asked(waiting(pending), decision=decision)
    says(answer, Why.BIND_OPEN, Leg.BINDING, "scheduler")
    assert due_in_ms(answer) <= SCHEDULER_LOOKS_MS


def test_one_that_is_deleted_before_it_had_a_place() -> None:
    """[M2]"""
    says(asked(waiting(dying=True)), Why.STOPPING, Leg.RELEASE, "controller:workload")


@pytest.mark.parametrize(
    "ms, owner, due_ms",
    [
        (5_000, "scheduler", 20_000),
        (25_000, "controller:repair", 20_000 + CONTROLLER_LOOKS_MS),
    ],
)
def test_a_place_that_is_held_ends_with_its_deadline(ms: int, owner: str, due_ms: int) -> None:
    """[M2, I3]"""
    held = Reservation(
        meta("held", "acme"),
        spec=ReservationSpec(
            ReservationOwner("Replica", "web-0-0", "u"), Intent.BIND, deadline=at(20_000)
        ),
    )
    about = replica(State.RESERVED, reservation="held")
    answer = asked(about, held, ms=ms)
    says(answer, Why.RESERVED, Leg.BINDING, owner)
    assert due_in_ms(answer) == due_ms
    says(asked(about), Why.RESERVED, Leg.BINDING, "controller:repair")


# On a node that is in contact ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "word, why, leg",
    [
        (heard(), Why.UNSEEN, Leg.BINDING),
        # Heard before it could know, or with too much to say: nothing can be told.
        (heard(age_ms=6_000), Why.UNTOLD, Leg.BINDING),
        (heard(age_ms=LOOK_MS - TOLD_WITHIN_MS + 1), Why.UNTOLD, Leg.BINDING),
        (heard(Said(more=1)), Why.UNTOLD, Leg.BINDING),
        (None, Why.UNTOLD, Leg.BINDING),
        (noted(Doing.STARTING), Why.STARTING, Leg.STARTUP),
        (noted(Doing.RUNS), Why.UNPROPAGATED, Leg.STARTUP),
        (noted(Doing.ENDED), Why.UNPROPAGATED, Leg.STARTUP),
    ],
)
def test_what_is_bound_is_its_agents_to_start(word: Heard | None, why: Why, leg: Leg) -> None:
    """Told apart by what the agent said with its last renewal. [M2, M3, SC4]"""
    answer = asked(replica(State.BOUND), node(), heard=(word,) if word is not None else ())
    says(answer, why, leg, AGENT)
    assert answer.finding.then == "controller:repair"
    assert due_in_ms(answer) == TEMPLATE.startup_deadline_seconds * 1_000


def test_of_several_servers_the_one_that_heard_it_last_counts() -> None:
    """[M2]"""
    old = heard(age_ms=60_000)
    answer = asked(replica(State.BOUND), node(), heard=(old, noted(Doing.RUNS)))
    says(answer, Why.UNPROPAGATED, Leg.STARTUP, AGENT)


def test_members_of_a_gang_have_no_deadline_of_their_own() -> None:
    """[M2]"""
    about = replica(State.BOUND)
    about = replaced(about, spec=replaced(about.spec, gang="all"))
    answer = asked(about, node(), heard=(heard(),))
    assert answer.finding.deadline is None
    assert "wait for each other" in answer.finding.no_deadline


def test_work_that_is_not_ready_waits_for_its_probe() -> None:
    """[M3]"""
    up = (record(State.RUNNING, AGENT, 0, State.BOUND),)
    about = replica(stage=Stage.STARTING, transitions=up, template=PROBED)
    answer = asked(about, node())
    says(answer, Why.NOT_READY, Leg.READINESS, AGENT)
    assert "nothing ends work for not being ready" in answer.finding.no_deadline
    plain = replica(stage=Stage.STARTING, transitions=up)
    assert due_in_ms(asked(plain, node())) == 30_000


def test_work_that_crashes_waits_for_its_next_start() -> None:
    """[M3]"""
    again = replaced(record(State.RUNNING, AGENT, 0, State.RUNNING), reason=CRASH_LOOP)
    about = replica(stage=Stage.STARTING, transitions=(again,), process=Process(reason="exit 1"))
    says(asked(about, node()), Why.CRASHING, Leg.STARTUP, AGENT)
    once = replica(
        stage=Stage.STARTING, transitions=(record(State.RUNNING, AGENT, 0, State.RUNNING),)
    )
    says(asked(once, node()), Why.STARTING, Leg.STARTUP, AGENT)


def test_what_is_ready_and_not_listed_waits_for_the_endpoints() -> None:
    """[M3]"""
    says(
        asked(replica(), node(), workload()),
        Why.UNLISTED,
        Leg.SERVING,
        "controller:endpoints",
    )


@pytest.mark.parametrize("ready, why", [(1, Why.NOTHING), (0, Why.UNPROPAGATED)])
def test_what_serves_and_is_not_counted_waits_for_the_status(ready: int, why: Why) -> None:
    """[M2, A11]"""
    about = replica(stage=Stage.SERVING, ready_since=at())
    progress = Progress(bound=1, ready=ready, serving=1)
    of = replaced(workload(), status=WorkloadStatus(progress=progress))
    answer = asked(about, node(), of, siblings=(about,))
    assert answer.finding.why is why
    if why is Why.UNPROPAGATED:
        says(answer, why, Leg.SERVING, "controller:status")
        assert "0 instead of 1 ready" in answer.finding.message


def test_an_end_that_nobody_was_told_of() -> None:
    """[M2]"""
    answer = asked(replica(), node(), heard=(noted(Doing.ENDED),))
    says(answer, Why.UNPROPAGATED, Leg.STARTUP, AGENT)


@pytest.mark.parametrize(
    "state, why, due_ms",
    [
        (State.STOPPING, Why.STOPPING, 10_000 + 2_000 + 30_000),
        (State.FAILED, Why.RELEASE, 2_000 + 30_000),
        (State.SUCCEEDED, Why.RELEASE, 2_000 + 30_000),
    ],
)
def test_what_ends_is_its_agents_to_prove(state: State, why: Why, due_ms: int) -> None:
    """[M2]"""
    answer = asked(replica(state, transitions=(record(state, AGENT),)), node())
    says(answer, why, Leg.RELEASE, AGENT)
    assert due_in_ms(answer) == due_ms


def test_a_life_that_is_over_waits_for_nobody() -> None:
    """[M2]"""
    answer = asked(replica(State.RELEASED))
    says(answer, Why.NOTHING, Leg.NONE, "")
    assert not answer.finding.no_deadline


# Out of contact -----------------------------------------------------------------------------------

LOST = (record(State.UNKNOWN, NODES, 0, State.RUNNING),)


def unknown(**more: Any) -> Replica:
    return replica(State.UNKNOWN, transitions=LOST, stage=Stage.READY, **more)


def test_a_node_that_is_silent_is_given_up_after_its_time() -> None:
    """Counted from when it was last heard. [M2, H4]"""
    answer = asked(replica(), node(phase=NodePhase.SUSPECT), heard=(heard(age_ms=22_000),))
    says(answer, Why.SILENT, Leg.SERVING, "controller:nodes")
    assert answer.finding.then == "controller:repair"
    assert due_in_ms(answer) == LOOK_MS - 22_000 + 35_000


def test_when_nobody_knows_when_it_was_heard_its_judgement_tells() -> None:
    """[M2]"""
    judged = Operation(f"{NODES}/uid/7/Suspect", "d", at(-1_000))
    there = node(phase=NodePhase.SUSPECT)
    there = replaced(there, metadata=replaced(there.metadata, operations=(judged,)))
    assert due_in_ms(asked(replica(), there)) == -1_000 + 15_000
    # Another server hears it, as a rule; this one did so long ago.
    assert due_in_ms(asked(replica(), there, heard=(heard(age_ms=90_000),))) == -1_000 + 15_000
    answer = asked(replica(), node(phase=NodePhase.SUSPECT))
    assert "it is not known when it was last heard" in answer.finding.no_deadline


@pytest.mark.parametrize("phase", [NodePhase.SUSPECT, NodePhase.UNKNOWN])
def test_nobody_is_given_up_where_most_of_a_zone_is_silent(phase: NodePhase) -> None:
    """The same brake as controller:nodes has. [M2, SC6]"""
    mark = int(phase is NodePhase.UNKNOWN)
    silent = [node(f"node-{it}", phase, mark=mark) for it in "abc"]
    elsewhere = Heard("one", 60_000, {"node-d": 900_000}, TIMING)
    answer = asked(unknown(), *silent, node("node-d"), heard=(elsewhere,))
    says(answer, Why.BRAKE, Leg.SERVING, "controller:nodes")
    assert answer.finding.deadline is None
    assert "3 of 4 nodes of zone eu/a are silent" in answer.finding.no_deadline


def test_work_of_a_node_that_was_given_up_waits_for_the_fence() -> None:
    """Counted from the mark, or from when whoever counts took over. [M2, SC4]"""
    there = node(phase=NodePhase.UNKNOWN, mark=1)
    answer = asked(unknown(), there)
    says(answer, Why.FENCE, Leg.SERVING, "controller:nodes")
    assert answer.finding.then == "controller:repair"
    held = lease("controller:nodes", acquired=at(4_000), renewed=at(5_000))
    assert due_in_ms(asked(unknown(), there, held)) == 4_000 + TIMING.fence_after_ms
    held = lease("controller:nodes", acquired=at(-60_000), renewed=at(5_000))
    assert due_in_ms(asked(unknown(), there, held)) == TIMING.fence_after_ms


@pytest.mark.parametrize("phase", [NodePhase.FENCED, NodePhase.LOST])
def test_after_the_fence_the_repair_controller_says_that_it_is_over(phase: NodePhase) -> None:
    """[M2, H5]"""
    answer = asked(unknown(), node(phase=phase, mark=1))
    says(answer, Why.REPAIR, Leg.SERVING, "controller:repair")
    assert due_in_ms(answer) == CONTROLLER_LOOKS_MS


def test_another_life_of_the_node_ends_what_was_bound_to_the_last_one() -> None:
    """`keep` work is its agent's to stop. [M2]"""
    there = node(incarnation=2)
    says(asked(unknown(), there), Why.REPAIR, Leg.SERVING, "controller:repair")
    kept = replica(State.FAILED, template=KEEP, transitions=(record(State.FAILED, "x"),))
    says(asked(kept, there), Why.RELEASE, Leg.RELEASE, AGENT)


def test_a_node_that_is_gone_and_one_that_never_was() -> None:
    """[M2]"""
    says(asked(unknown()), Why.REPAIR, Leg.SERVING, "controller:repair")
    says(asked(replica(State.FAILED, binding=None)), Why.REPAIR, Leg.RELEASE, "controller:repair")
    kept = replica(State.FAILED, template=KEEP)
    says(asked(kept), Why.WORD, Leg.RELEASE, "operator")


def test_a_node_that_is_heard_again_has_its_agent_speak() -> None:
    """[M2]"""
    answer = asked(unknown(), node())
    says(answer, Why.RETURN, Leg.SERVING, AGENT)
    assert due_in_ms(answer) == AGENT_LOOKS_MS


def test_kept_work_waits_for_its_node_its_owners_patience_or_a_word() -> None:
    """[M2, H8]"""
    about, marked = unknown(template=KEEP), node(phase=NodePhase.UNKNOWN, mark=1)
    answer = asked(about, marked)
    says(answer, Why.SILENT, Leg.SERVING, AGENT)
    assert "replaceAfterSeconds" in answer.finding.no_deadline
    says(asked(about, node(phase=NodePhase.FENCED)), Why.WORD, Leg.SERVING, "operator")
    impatient = unknown(template=replaced(KEEP, replace_after_seconds=60))
    answer = asked(impatient, marked)
    says(answer, Why.SILENT, Leg.SERVING, "controller:repair")
    assert due_in_ms(answer) == 60_000 + 3_000 + CONTROLLER_LOOKS_MS


def test_work_that_was_being_stopped_is_on_its_way_out() -> None:
    """[M3]"""
    about = unknown(cause=Cause.DRAIN)
    says(asked(about, node(phase=NodePhase.UNKNOWN, mark=1)), Why.FENCE, Leg.RELEASE, NODES[7:])


# Whether anybody is there to move -----------------------------------------------------------------


def lease(scope: str, **spec: Any) -> Lease:
    made = LeaseSpec(scope, holder="somebody", epoch=3, **spec)
    return Lease(meta(scope.replace(":", "-")), spec=made)


def pulses(age_ms: int = 1_000, picture_ms: int = 10, epoch: int = 3) -> tuple[Pulses, ...]:
    pulse = Pulse("controllers one", (Beat("controller:repair", epoch),), picture_ms=picture_ms)
    return (Pulses("one", 60_000, (Felt("system:controllers", age_ms, pulse),)),)


@pytest.mark.parametrize(
    "felt, acts",
    [
        (pulses(), True),
        (pulses(age_ms=20_000), False),
        (pulses(picture_ms=40_000), False),
        # It stands by, and nobody holds the lease.
        (pulses(epoch=0), False),
        ((), False),
    ],
)
def test_a_deadline_that_nobody_is_there_to_keep_is_none(
    felt: tuple[Pulses, ...], acts: bool
) -> None:
    """[M2, H3]"""
    answer = asked(unknown(), node(phase=NodePhase.FENCED), pulses=felt)
    assert (answer.finding.deadline is not None) is acts
    if not acts:
        assert answer.finding.no_deadline == "nobody acts for controller:repair at present"


def test_a_lease_that_was_not_renewed_is_nobodys() -> None:
    """[M2]"""
    old = lease("controller:repair", renewed=at(-60_000))
    answer = asked(unknown(), node(phase=NodePhase.FENCED), old, pulses=())
    assert "nobody acts" in answer.finding.no_deadline
    (sign,) = [it for it in answer.signs if it.what == "lease controller:repair"]
    assert (sign.says, sign.age_ms) == ("held by somebody in epoch 3", 65_000)
    young = lease("controller:repair", renewed=at(-10_000))
    answer = asked(unknown(), node(phase=NodePhase.FENCED), young, pulses=())
    assert answer.finding.deadline is not None


def test_a_deadline_that_has_passed_says_for_how_long() -> None:
    """[M2]"""
    answer = asked(replica(State.BOUND), node(), ms=700_000)
    assert answer.late_ms == 100_000
    assert answer.signs[0].age_ms is None
    assert answer.revision == 40


def test_what_was_told_of_it_is_part_of_the_evidence() -> None:
    """The newest first, and of this very replica alone. [M1]"""
    about = replica(State.BOUND)
    told = [event_of(about, "x", f"R{it}", "said", at(-it), warns=False) for it in range(9)]
    other = event_of(replica(State.BOUND, 1), "x", "Other", "said", at(), warns=False)
    twice = replaced(told[0], count=2)
    answer = asked(about, node(), other, *told[1:], twice)
    events = [it for it in answer.signs if it.what.startswith("event ")]
    assert [it.what for it in events] == [f"event R{it}" for it in range(EVENTS_MAX)]
    assert (events[0].says, events[0].age_ms) == ("said (2 times)", LOOK_MS)


def test_an_answer_reads_the_same_on_the_other_side_of_the_wire() -> None:
    """[M2]"""
    answer = asked(unknown(), node(phase=NodePhase.UNKNOWN, mark=1))
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Explanation) == answer
    assert answer.timeline == LOST
