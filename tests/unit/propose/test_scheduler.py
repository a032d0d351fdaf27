"""The machine as a whole: leases, old snapshots, restarts, and no writes when all is done."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.commit.context import Context
from holdfast.commit.request_steps import age_refusal
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.lease import LeaseSpec
from holdfast.model.kinds.schedulerpolicy import PolicyStage, SchedulerPolicy, SchedulerPolicySpec
from holdfast.model.kinds.workload import Gang, Workload, WorkloadSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS
from holdfast.model.refusal import Reason
from holdfast.model.requests import AcquireLease
from holdfast.model.time import Instant
from tests.plane import SCHEDULER, template
from tests.unit.propose.rig import Rig, Silence, refusal, small


def test_two_replicas_do_not_both_assume_the_last_slot() -> None:
    """The second waits for the first one's answer instead of being refused. [F4]"""
    rig = small()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    assert rig.reports == [], "it may be free again in a moment"
    rig.pass_time(5_000)
    assert len(rig.binds) == 1
    assert rig.get("web-1-0").status.pending.reasons == {"NodeFull": 1}
    rig.answer(rig.commit(rig.binds[0]))
    rig.pass_time(100_000)
    assert len(rig.binds) == 1


def test_nothing_is_decided_before_every_kind_was_listed() -> None:
    """Whichever list is whole last, urgent work goes first. [E2, E4]"""
    rig = Rig()
    rig.node("node-0", cpu="100")
    rig.urgent("now")
    rig.replica("calm-0-0")
    rig.replica("fire-0-0", template=template(priority_class="now"))
    rig.slow_kind = "priorityclasses"
    rig.start()
    rig.pass_time(10_000)
    assert rig.binds == []
    rig.catch_up()
    assert [bind.target.name for bind in rig.binds] == ["fire-0-0", "calm-0-0"]


# The lease ---------------------------------------------------------------------------------------


def test_nothing_is_bound_before_the_lease_is_held() -> None:
    """Another one of that scope is alive, until it stops moving."""
    rig = Rig()
    rig.node("node-0")
    rig.replica()
    rig.lease = LeaseSpec(
        scope="scheduler:one", holder="system:scheduler:two", epoch=4, duration_ms=15_000
    )
    rig.start()
    rig.pass_time(14_000)
    assert rig.binds == []
    rig.pass_time(20_000)
    assert [bind.term.epoch for bind in rig.binds] == [5]


def test_a_scheduler_that_cannot_renew_stops_trying_long_before_another_takes_over() -> None:
    """[E4]"""
    rig = small(slots=4)
    rig.is_cut_off = True
    rig.pass_time(16_000)
    rig.is_deaf, rig.is_cut_off = True, False
    assert not rig.scheduler.election.is_acknowledged(rig.now)
    rig.is_deaf = False
    rig.replica()
    assert rig.binds == []
    rig.pass_time(10_000)
    assert rig.where("web-0-0") == "node-0"


def test_a_shared_scope_is_the_lease_that_is_taken() -> None:
    rig = Rig(scope="scheduler:shard-1")
    rig.start()
    assert [ask.scope for ask in rig.sent(AcquireLease)] == ["scheduler:shard-1"]


# Old snapshots -----------------------------------------------------------------------------------


def test_nothing_is_bound_on_a_snapshot_that_is_too_old() -> None:
    """It waits and reports that, and continues when events arrive again. [E4, E3]"""
    rig = small(slots=4)
    rig.is_deaf = True
    rig.pass_time(OBSERVATION_AGE_MAX_MS + 5_000)
    rig.is_deaf = False
    rig.replica()
    assert rig.binds == []
    assert rig.get("web-0-0").status.pending.reasons == {"ObservationTooOld": 1}
    rig.pass_time(16_000)
    assert rig.where("web-0-0") == "node-0", "before the resync"


def test_the_commit_agrees_with_the_oldest_snapshot_that_a_bind_may_use() -> None:
    """[E4]"""
    context = Context(SCHEDULER, Instant(0, 0), Random(1))
    assert age_refusal(context, OBSERVATION_AGE_MAX_MS) is None
    assert age_refusal(context, OBSERVATION_AGE_MAX_MS + 1) is not None


# The fixed point ---------------------------------------------------------------------------------


def test_nothing_is_written_when_nothing_changes() -> None:
    """One fits nowhere, one has no quota, one is bound: ten minutes without a write. [V4]"""
    rig = small(slots=4)
    rig.replica("bound-0-0")
    rig.replica("large-0-0", cpu="64")
    blocked = refusal(Reason.QUOTA_EXCEEDED, "tenant acme uses 1 of 1 cpu")
    rig.verdicts = [blocked] * 1_000
    rig.replica("poor-0-0")
    rig.pass_time(5_000)
    reports, revision = len(rig.reports), rig.revision
    rig.pass_time(600_000)
    assert len(rig.reports) == reports
    assert rig.revision == revision


def test_other_numbers_under_the_same_reasons_are_written_once_in_a_while() -> None:
    """[V4, E3]"""
    rig = small()
    rig.replica("large-0-0", cpu="64")
    before = len(rig.reports)
    for index in range(1, 20):
        rig.node(f"node-{index}", cpu="1")
    rig.pass_time(200_000)
    assert rig.get("large-0-0").status.pending.reasons == {"NodeFull": 20}
    assert len(rig.reports) - before <= 2


def test_a_report_that_was_not_written_is_written_later() -> None:
    """[E3, V3]"""
    rig = small()
    rig.report_verdicts = [Unavailable("busy")]
    rig.replica("large-0-0", cpu="64")
    assert rig.get("large-0-0").status.pending is None
    rig.pass_time(5_000)
    assert rig.get("large-0-0").status.pending.reasons == {"NodeFull": 1}


# Restarts ----------------------------------------------------------------------------------------


def test_a_scheduler_that_restarts_finds_all_that_is_pending() -> None:
    """Its own earlier lease is no obstacle, and the lost bind is made once. [E1, F6]"""
    rig = small(slots=4)
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    lost = rig.binds[0]
    rig.is_deaf = True
    rig.replica("web-1-0")
    rig.is_deaf = False
    rig.restart()
    rig.pass_time(1_000)
    assert rig.where("web-0-0") == rig.where("web-1-0") == "node-0"
    assert [bind.term.epoch for bind in rig.binds] == [1, 2, 2]
    again = next(bind for bind in rig.binds[1:] if bind.target == lost.target)
    assert again.operation == lost.operation, "a repeated bind has the same id"
    assert rig.get("web-0-0").status.transition_number == 1


# What is not placed ------------------------------------------------------------------------------


def test_a_member_of_a_gang_is_not_placed_alone() -> None:
    """[E3, G5]"""
    rig = small(slots=4)
    rig.put(
        Workload(
            ObjectMeta(name="web", namespace="acme", uid="w"),
            spec=WorkloadSpec(template(), replicas=3, gang=Gang(min_available=3)),
        )
    )
    rig.replica("web-0-0", gang="web")
    rig.pass_time(100_000)
    assert rig.binds == []
    pending = rig.get("web-0-0").status.pending
    assert pending.reasons == {"GangWaits": 1}
    assert pending.message == "gang web waits for 2 of 3 members to be created"
    assert (pending.verdict, pending.owner) == ("Waiting", "scheduler")


@pytest.mark.parametrize("state", [State.RESERVED, State.BOUND, State.RELEASED])
def test_only_pending_replicas_are_placed(state: State) -> None:
    """[F5]"""
    rig = small(slots=4)
    rig.is_deaf = True
    rig.status(rig.replica(), state=state)
    rig.is_deaf = False
    rig.pass_time(61_000)
    assert rig.binds == []


def test_the_policy_in_force_is_named_in_the_bind() -> None:
    """And no policy is, once that one is made inactive. [F1, I7]"""
    rig = small(slots=4)
    for name, stage in (
        ("b", PolicyStage.ACTIVE),
        ("a", PolicyStage.SHADOW),
        ("b", PolicyStage.INACTIVE),
    ):
        spec = SchedulerPolicySpec(stage=stage)
        rig.put(SchedulerPolicy(ObjectMeta(name=name), spec=spec))
        if name == "a":
            rig.replica("web-0-0")
    rig.replica("web-1-0")
    assert [bind.policy for bind in rig.binds] == ["b", ""]
