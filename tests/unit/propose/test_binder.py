"""What each answer to a bind leads to, with an authority that says what the test wants."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.errors import Forbidden, OutcomeUnknown, Unavailable
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.schedulerpolicy import PolicyStage, SchedulerPolicy, SchedulerPolicySpec
from holdfast.model.kinds.tenant import Quota, QuotaSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Reason
from holdfast.model.requests import AcquireLease
from holdfast.propose.bind_operation import SENDS_MAX
from holdfast.propose.feasibility.fleet import ASSUMED_MS, SHUNNED_MS
from holdfast.propose.feasibility.outcome import SCHEDULING_RETRYING, SERVERS_UNAVAILABLE
from tests.plane import template
from tests.unit.propose.rig import Lost, Rig, Silence, refusal


def started(nodes: int = 1, **more: object) -> Rig:
    rig = Rig(**more)
    for index in range(nodes):
        rig.node(f"node-{index}")
    rig.start()
    return rig


def test_a_pending_replica_is_bound_and_the_bind_says_on_what_it_rested() -> None:
    """[F5, V2, F8]"""
    rig = started()
    rig.replica()
    assert rig.where("web-0-0") == "node-0"
    (bind,) = rig.binds
    assert bind.operation == f"system:scheduler:one/{bind.target.uid}/0/bind-node-0"
    assert (bind.term.scope, bind.term.epoch) == ("scheduler:one", 1)
    assert bind.snapshot_revision > 0
    assert bind.devices is None


def test_a_bind_carries_the_version_of_its_node_and_not_of_another() -> None:
    """[C8]"""
    rig = started(nodes=2)
    seen = {
        it.name: object_revision(it.metadata.resource_version)
        for it in rig.scheduler.cache.all("nodes")
    }
    assert len(set(seen.values())) == 2
    for number in range(8):
        rig.replica(f"web-{number}-0")
    assert {bind.node for bind in rig.binds} == set(seen)
    assert all(bind.node_revision == seen[bind.node] for bind in rig.binds)


# The answer is lost ------------------------------------------------------------------------------


def test_a_bind_that_committed_before_its_answer_was_lost_is_not_repeated() -> None:
    """The watch event arrives in time, and says what the answer would have said. [F6, E5, SC3]"""
    rig = started(nodes=3)
    rig.verdicts = [Lost(committed=True)]
    rig.replica()
    assert rig.where("web-0-0") == rig.binds[0].node
    rig.pass_time(300_000)
    assert len(rig.binds) == 1
    assert rig.get("web-0-0").status.transition_number == 1


def test_a_lost_answer_is_looked_up_while_the_cache_knows_nothing() -> None:
    """Read by stable identity; the place stays assumed; no second bind, no report. [F6, E5, SC3]"""
    rig = started(nodes=3)
    rig.verdicts = [Silence()]
    replica = rig.replica()
    rig.is_deaf = True
    rig.commit(rig.binds[0])
    rig.answer(OutcomeUnknown("timed out"))
    assert rig.looks == [Get("replicas", "web-0-0", "acme")]
    assert rig.scheduler.fleet.assumed(replica.metadata.uid) is not None
    rig.pass_time(40_000)
    assert len(rig.binds) == 1
    assert rig.reports == []
    rig.pass_time(60_000)
    assert rig.scheduler.cache.missed == 1, "only the resync brought it to light"
    assert rig.scheduler.fleet.assumed(replica.metadata.uid) is None


def test_a_node_whose_heartbeat_is_late_takes_no_new_work_while_its_bind_is_looked_up() -> None:
    """Neither a new placement of the same replica nor anything destructive. [F6, SC3]"""
    rig = started(nodes=1)
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.is_deaf = True
    rig.commit(rig.binds[0])
    rig.is_deaf = False
    node = rig.objects["nodes"]["", "node-0"]
    status = msgspec.structs.replace(node.status, phase=NodePhase.SUSPECT)
    rig.put(msgspec.structs.replace(node, status=status))
    rig.answer(OutcomeUnknown("timed out"))
    rig.replica("web-1-0")
    rig.pass_time(200_000)
    assert [bind.target.name for bind in rig.binds] == ["web-0-0"]
    assert rig.get("web-0-0").status.state is State.BOUND
    assert rig.get("web-1-0").status.pending.reasons == {"NodeNotReady": 1}


def test_a_bind_that_did_not_commit_is_sent_again_as_it_was_after_a_pause() -> None:
    """The same request under the same id, to the same node; the status says so. [F6, E5, SC3]"""
    rig = started(nodes=3)
    rig.verdicts = [Lost(committed=False), Lost(committed=False)]
    rig.replica()
    assert len(rig.looks) == 1
    assert len(rig.binds) == 1, "a pause comes before the second copy"
    pending = rig.get("web-0-0").status.pending
    assert pending.reasons == {SCHEDULING_RETRYING: 1}
    assert pending.next_wake is not None
    rig.pass_time(10_000)
    first, *others = rig.binds
    assert others == [first, first]
    assert rig.where("web-0-0") == first.node
    rig.pass_time(200_000)
    assert len(rig.binds) == 3


def test_after_enough_lost_copies_a_fresh_candidate_is_bound_once() -> None:
    """[F6, E5, SC3]"""
    rig = started(nodes=3)
    rig.verdicts = [Lost(committed=False)] * SENDS_MAX
    rig.replica()
    rig.pass_time(30_000)
    assert len(rig.binds) == SENDS_MAX + 1
    assert rig.get("web-0-0").status.state is State.BOUND
    rig.pass_time(200_000)
    assert len(rig.binds) == SENDS_MAX + 1


def test_no_other_node_is_tried_while_looking_fails() -> None:
    """[F6, E5]"""
    rig = started(nodes=3)
    rig.verdicts = [Lost(committed=False)]
    usual = rig.answer_get
    rig.answer_get = lambda get: Unavailable("busy") if get.plural == "replicas" else usual(get)
    rig.replica()
    rig.pass_time(100_000)
    assert len(rig.binds) == 1
    assert 3 < len(rig.looks) < 12, "it looks again, with pauses that grow"
    rig.answer_get = usual
    rig.pass_time(60_000)
    assert rig.binds == [rig.binds[0]] * 2
    assert rig.where("web-0-0") == rig.binds[0].node


def test_the_copy_that_comes_late_is_the_same_bind() -> None:
    """The first copy arrives after the second: the authority remembers it as done. [F6, E5]"""
    rig = started(nodes=2)
    rig.verdicts = [Silence()]
    rig.replica()
    rig.answer(OutcomeUnknown("timed out"))
    rig.pass_time(5_000)
    again = rig.commit(rig.binds[0])
    assert getattr(again, "replayed", False)
    assert rig.get("web-0-0").status.transition_number == 1


def test_a_watch_event_settles_a_bind_before_its_answer() -> None:
    """A late answer about what the cache has shown already changes nothing. [F4]"""
    rig = started()
    rig.verdicts = [Silence()]
    rig.replica()
    accepted = rig.commit(rig.binds[0])
    assert rig.scheduler.fleet.next_ms is None, "seen, so not assumed any more"
    rig.answer(accepted)
    rig.pass_time(200_000)
    assert len(rig.binds) == 1


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", [Reason.NODE_FULL, Reason.NODE_DRAINING, Reason.DEVICE_TAKEN, Reason.NODE_CHANGED]
)
def test_a_refusal_about_a_node_leads_to_the_next_one_at_once(reason: Reason) -> None:
    """[C4, F4, F9]"""
    rig = started(nodes=3)
    rig.verdicts = [refusal(reason)]
    rig.replica()
    assert len(rig.binds) == 2, "no pause"
    assert rig.binds[0].node != rig.binds[1].node
    assert rig.where("web-0-0") == rig.binds[1].node


def test_the_third_conflict_in_a_row_leads_to_a_pause_and_a_reason() -> None:
    """[E3, E5, F9, C7.2]"""
    rig = started(nodes=5)
    rig.verdicts = [refusal(Reason.NODE_FULL, "it is full")] * 3
    rig.replica()
    assert len(rig.binds) == 3
    assert rig.get("web-0-0").status.pending.reasons == {"NodeFull": 1}
    rig.pass_time(1_000)
    assert len(rig.binds) == 4
    assert len({bind.node for bind in rig.binds}) == 4
    assert rig.where("web-0-0")


def test_the_only_node_is_tried_again_when_it_was_avoided_for_long_enough() -> None:
    """No event announces the end of that, so a pause does. [V2, C7.2]"""
    rig = started(nodes=1)
    rig.verdicts = [refusal(Reason.NODE_FULL)]
    rig.replica()
    assert len(rig.binds) == 1
    rig.pass_time(SHUNNED_MS * 3)
    assert rig.where("web-0-0") == "node-0"


def test_a_refused_place_is_free_for_others_again() -> None:
    """[F4]"""
    rig = Rig()
    rig.node("node-0", cpu="1")
    rig.start()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0", priority=5)
    rig.replica("web-1-0")
    assert [bind.target.name for bind in rig.binds] == ["web-0-0"]
    rig.answer(refusal(Reason.QUOTA_EXCEEDED))
    rig.pass_time(1_000)
    assert rig.where("web-1-0") == "node-0"


def test_a_refused_place_wakes_a_replica_that_waits_for_it() -> None:
    """Long before the resync. [F4, E1]"""
    rig = Rig()
    rig.node("node-0", cpu="1")
    rig.start()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    rig.pass_time(10_000)
    assert rig.get("web-1-0").status.pending.reasons == {"NodeFull": 1}
    rig.answer(refusal(Reason.QUOTA_EXCEEDED))
    assert rig.where("web-1-0") == "node-0"


def test_what_was_accepted_is_not_proposed_again_before_it_is_seen() -> None:
    """Another policy wakes every waiting replica, but not this one. [F4]"""
    rig = started(nodes=2)
    rig.verdicts = [Silence()]
    rig.replica()
    rig.is_deaf = True
    rig.answer(rig.commit(rig.binds[0]))
    rig.is_deaf = False
    spec = SchedulerPolicySpec(stage=PolicyStage.ACTIVE)
    rig.put(SchedulerPolicy(ObjectMeta(name="p"), spec=spec))
    rig.pass_time(1_000)
    assert len(rig.binds) == 1


def test_a_class_that_becomes_urgent_does_not_repeat_a_bind_in_flight() -> None:
    """[F4]"""
    rig = started(nodes=2)
    rig.verdicts = [Silence()]
    rig.replica(template=template(priority_class="now"))
    rig.urgent("now")
    rig.pass_time(70_000)
    assert len(rig.binds) == 1


def test_a_stale_replica_is_parked_until_it_changes() -> None:
    """[C4, E5]"""
    rig = started(nodes=3)
    rig.verdicts = [refusal(Reason.STALE_REPLICA)]
    replica = rig.replica()
    rig.pass_time(20_000)
    assert len(rig.binds) == 1
    assert rig.reports == []
    rig.status(replica, state=State.PENDING)
    assert len(rig.binds) == 2
    assert rig.binds[1].target.number == 1


def test_quota_parks_with_its_reason_until_the_quota_changes() -> None:
    """[D2, E3]"""
    rig = started()
    quota = rig.put(
        Quota(ObjectMeta(name="default", namespace="acme"), spec=QuotaSpec(hard={"cpu": "1"}))
    )
    rig.verdicts = [refusal(Reason.QUOTA_EXCEEDED, "tenant acme uses 1 of 1 cpu")]
    rig.replica()
    pending = rig.get("web-0-0").status.pending
    assert pending.reasons == {"QuotaExceeded": 1}
    assert (pending.verdict, pending.owner) == ("BlockedBy", "operator")
    assert pending.message == "tenant acme uses 1 of 1 cpu"
    assert pending.next_wake is not None
    rig.pass_time(10_000)
    assert len(rig.binds) == 1
    status = msgspec.structs.replace(quota.status, used={"hard": {"cpu": "1"}})
    rig.put(msgspec.structs.replace(quota, status=status))
    assert len(rig.binds) == 1, "a copy of the ledger for people is no reason to try"
    spec = msgspec.structs.replace(quota.spec, hard={"cpu": "2"})
    rig.put(msgspec.structs.replace(quota, spec=spec))
    assert rig.where("web-0-0") == "node-0"


def test_quota_that_a_replica_released_wakes_its_tenant() -> None:
    """[D2]"""
    rig = started()
    rig.replica("web-0-0")
    rig.verdicts = [refusal(Reason.QUOTA_EXCEEDED)]
    rig.replica("web-1-0")
    assert len(rig.binds) == 2
    rig.status(rig.get("web-0-0"), state=State.RELEASED)
    assert rig.where("web-1-0") == "node-0"


def test_a_lost_lease_is_taken_again_before_the_next_bind() -> None:
    rig = started()
    rig.verdicts = [refusal(Reason.STALE_EPOCH)]
    rig.replica()
    assert len(rig.binds) == 1
    rig.pass_time(20_000)
    assert len(rig.sent(AcquireLease)) == 2
    assert [bind.term.epoch for bind in rig.binds] == [1, 2]
    assert rig.where("web-0-0") == "node-0"


def test_a_refusal_of_an_earlier_term_says_nothing_about_the_current_one() -> None:
    rig = started(nodes=2)
    rig.verdicts = [Silence(), refusal(Reason.STALE_EPOCH)]
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    rig.pass_time(20_000)
    assert rig.scheduler.election.term is not None
    assert rig.scheduler.election.term.epoch == 2
    rig.answer(refusal(Reason.STALE_EPOCH))
    assert rig.scheduler.election.term is not None
    rig.pass_time(20_000)
    assert len(rig.sent(AcquireLease)) == 2
    assert rig.where("web-0-0")


def test_what_an_earlier_run_did_under_the_same_id_is_looked_up() -> None:
    """[E5, F6]"""
    rig = started(nodes=1)
    rig.verdicts = [refusal(Reason.OPERATION_REUSED)]
    rig.replica()
    assert len(rig.looks) == 1


# Faults ------------------------------------------------------------------------------------------


def test_what_did_not_happen_is_tried_again_after_pauses_that_grow() -> None:
    """[E5]"""
    rig = started()
    rig.verdicts = [Unavailable("busy")] * 6
    rig.replica()
    assert rig.reports == [], "servers that come back have better things to do"
    moments = [rig.now_ms]
    while len(rig.binds) < 6:
        rig.pass_time(10)
        if len(rig.binds) > len(moments):
            moments.append(rig.now_ms)
    gaps = [after - before for before, after in pairwise(moments)]
    assert gaps[0] <= 210
    assert gaps[-1] > 4 * gaps[0]
    assert rig.get("web-0-0").status.pending.reasons == {SERVERS_UNAVAILABLE: 1}
    rig.pass_time(30_000)
    assert rig.where("web-0-0") == "node-0"


def test_an_error_by_decision_is_published_with_its_code() -> None:
    """[E3]"""
    rig = started()
    rig.verdicts = [Forbidden("no role lets it bind", code="NotAllowed")]
    rig.replica()
    assert rig.get("web-0-0").status.pending.reasons == {"NotAllowed": 1}
    rig.pass_time(5_000)
    assert rig.where("web-0-0") == "node-0"


def test_an_accepted_place_that_is_never_seen_is_given_up_after_its_time() -> None:
    """The bind of the other one is refused by then if it must be. [F4]"""
    rig = Rig(resync_ms=10_000_000)
    rig.node("node-0", cpu="1")
    rig.start()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.is_deaf = True
    rig.answer(rig.commit(rig.binds[0]))
    rig.is_deaf = False
    rig.replica("web-1-0")
    rig.pass_time(ASSUMED_MS - 10_000)
    assert len(rig.binds) == 1
    rig.pass_time(20_000)
    assert len(rig.binds) >= 2


def test_a_replica_that_is_never_seen_bound_is_tried_again_under_the_same_id() -> None:
    """However old its snapshot is, the scheduler does not wait without a reason. [F4, E5]"""
    rig = Rig(resync_ms=10_000_000)
    rig.node("node-0")
    rig.start()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.is_deaf = True
    rig.answer(rig.commit(rig.binds[0]))
    rig.is_deaf = False
    rig.pass_time(ASSUMED_MS + 10_000)
    first, second = rig.binds
    assert first.operation == second.operation
    assert rig.get("web-0-0").status.transition_number == 1


def test_the_place_of_a_bind_without_an_answer_stays_assumed() -> None:
    """[F4, F6]"""
    rig = Rig()
    rig.node("node-0", cpu="1")
    rig.start()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    rig.pass_time(3 * ASSUMED_MS)
    assert [bind.target.name for bind in rig.binds] == ["web-0-0"]


def test_a_replica_that_is_deleted_while_its_bind_is_in_flight_frees_its_place() -> None:
    """[F4]"""
    rig = Rig()
    rig.node("node-0", cpu="1")
    rig.start()
    rig.verdicts = [Silence()]
    gone = rig.replica("web-0-0")
    rig.replica("web-1-0")
    rig.remove(gone)
    rig.pass_time(1_000)
    assert rig.where("web-1-0") == "node-0"
    rig.answer(refusal(Reason.MISSING))
    rig.pass_time(100_000)
    assert len(rig.binds) == 2
