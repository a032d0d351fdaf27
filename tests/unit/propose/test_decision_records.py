"""The record of each round, when it is archived, and that it suffices for a replay."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.explain.decision_object import decision_of
from holdfast.explain.replay import decide_again
from holdfast.model.errors import Invalid
from holdfast.model.refusal import Reason
from holdfast.propose.decision_records import OPEN_MS
from holdfast.propose.decision_rounds import AssumedMembers
from tests.unit.propose.recorded import Recorded
from tests.unit.propose.rig import Lost, Silence, refusal


def started(nodes: int = 3) -> Recorded:
    rig = Recorded()
    for number in range(nodes):
        rig.node(f"node-{number}", cpu="2")
    rig.start()
    return rig


def many(rig: Recorded, count: int) -> None:
    """`count` replicas of one workload that are decided in one round."""
    rig.is_cut_off = True
    for number in range(count):
        rig.replica(f"web-{number}-0")
    rig.is_cut_off = False
    rig.pass_time(130_000)


def test_a_placement_records_its_basis_and_its_outcome() -> None:
    """[F8, M1, M4, N1.2, C8]"""
    rig = started()
    rig.replica()
    (decided,) = rig.rounds.values()
    (case,) = decided.cases
    assert (decided.scheduler, decided.scope, decided.epoch) == (
        "system:scheduler:one",
        "scheduler:one",
        1,
    )
    assert decided.seen["replicas"] >= decided.snapshot_revision > 0
    assert (case.replicas, case.results, case.attempts) == (["web-0-0"], ["Accepted"], [1])
    assert case.nodes == [rig.where("web-0-0")]
    assert case.node_revisions == [rig.binds[0].node_revision]
    assert decision_of(decided, case, 0, 0).spec.node_revision == rig.binds[0].node_revision > 0
    assert (case.candidates, case.looked_at, len(case.best)) == (3, 3, 3)
    assert rig.handed_over == 1


def test_a_decision_has_the_generation_that_the_scheduler_saw() -> None:
    """Not one that is assumed; rounds of earlier versions say that they do not know it. [M4]"""
    rig = started()
    rig.is_cut_off = True
    replica = rig.replica()
    metadata = msgspec.structs.replace(replica.metadata, generation=4)
    rig.put(msgspec.structs.replace(replica, metadata=metadata))
    rig.is_cut_off = False
    rig.pass_time(130_000)
    decided = list(rig.rounds.values())[-1]
    (case,) = decided.cases
    assert case.generations == [4]
    assert decision_of(decided, case, 0, 0).spec.generation == 4
    case.generations = []
    assert decision_of(decided, case, 0, 0).spec.generation == 0


def test_a_decision_says_how_old_its_snapshot_might_be() -> None:
    """The setting that applied, as the scheduler's lease said; 0 in earlier records. [C9]"""
    rig = started()
    rig.scheduler.election.observation_age_max_ms = 7_000
    rig.replica()
    (decided,) = rig.rounds.values()
    (case,) = decided.cases
    assert decision_of(decided, case, 0, 0).spec.snapshot_age_max_ms == 7_000
    decided.snapshot_age_max_ms = 0
    assert decision_of(decided, case, 0, 0).spec.snapshot_age_max_ms == 0


def test_many_replicas_of_one_class_are_one_record() -> None:
    """[M4]"""
    rig = started()
    many(rig, 5)
    assert max(decided.size for decided in rig.rounds.values()) == 5
    assert sum(decided.size for decided in rig.rounds.values()) == 5


@pytest.mark.parametrize(
    "verdicts, results",
    [
        ([refusal(Reason.NODE_FULL, "no room")], ["NodeFull", "Accepted"]),
        ([refusal(Reason.STALE_REPLICA)], ["StaleReplica"]),
        ([Lost(committed=True)], ["Accepted"]),
        ([Lost(committed=False)], ["Accepted"]),
    ],
)
def test_every_attempt_has_its_result(verdicts: list[object], results: list[str]) -> None:
    """Refusals are kept like anything else. [F9, M1, M4]"""
    rig = started()
    rig.verdicts = verdicts
    rig.replica()
    rig.pass_time(5_000)
    assert [it.cases[0].results[0] for it in rig.rounds.values()] == results
    if results[0] == "NodeFull":
        first, second = rig.rounds.values()
        assert first.cases[0].messages == {0: "no room"}
        assert second.shunned == {first.cases[0].nodes[0]: ("NodeFull", "no room")}


def test_a_waiting_replica_is_recorded_with_all_that_people_read() -> None:
    """[E3, M4]"""
    rig = started(1)
    rig.replica(cpu="64")
    (decided,) = rig.rounds.values()
    (case,) = decided.cases
    assert (case.results, case.filtered, case.looked_at) == (["Pending"], {"NodeFull": 1}, 1)
    assert case.waits is not None
    assert (case.waits.verdict, case.waits.owner) == ("NotWithThisFleet", "operator")
    assert case.waits.smallest_change == "a node with 64 cpu and 1Gi memory free"


def test_a_round_without_answers_is_archived_and_later_again() -> None:
    """[M4]"""
    rig = started()
    rig.verdicts = [Silence()]
    rig.replica()
    assert rig.handed_over == 0
    rig.pass_time(OPEN_MS)
    assert rig.rounds[1].cases[0].results == [""]
    rig.answer(rig.commit(rig.binds[0]))
    assert rig.handed_over == 2
    assert rig.rounds[1].cases[0].results == ["Accepted"]


def test_what_was_assumed_is_named_by_the_round_that_placed_it() -> None:
    """[F4, M4]"""
    rig = started()
    rig.verdicts = [Silence(), Silence()]
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    rig.replica("web-2-0")
    rig.pass_time(OPEN_MS)
    assert rig.rounds[3].assumed == (AssumedMembers(1, "1"), AssumedMembers(2, "1"))
    assert rig.again(rig.rounds[3]) == []


def test_a_round_that_was_decided_otherwise_is_detected() -> None:
    """Otherwise a replay would prove nothing. [M4]"""
    rig = started()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.replica("web-1-0", cpu="2")
    rig.pass_time(OPEN_MS)
    decided = rig.rounds[2]
    forgot = msgspec.structs.replace(decided, assumed=())
    other = msgspec.structs.replace(decided, cases=[moved(decided.cases[0])])
    assert rig.again(decided) == []
    assert [it.now for it in rig.again(other)] == [f"to {decided.cases[0].nodes[0]}"]
    salts = [msgspec.structs.replace(forgot, salt=salt) for salt in range(40)]
    assert any(rig.again(it) for it in salts), "what was assumed ruled a node out"


def moved(case: object) -> object:
    return msgspec.structs.replace(case, nodes=["node-9"])


def test_a_record_that_does_not_suffice_is_not_guessed_at() -> None:
    """[M4]"""
    rig = started()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    rig.pass_time(OPEN_MS)
    decided = rig.rounds[2]
    objects = rig.objects_at(decided.seen)
    with pytest.raises(Invalid, match="it assumed placements of round 1"):
        decide_again(decided, objects, {})
    with pytest.raises(Invalid, match="lacks 3 assumed placements"):
        decide_again(msgspec.structs.replace(decided, left_out=3), objects, rig.rounds)
    with pytest.raises(Invalid, match="did not exist at that revision"):
        decide_again(decided, {**objects, "replicas": []}, rig.rounds)
