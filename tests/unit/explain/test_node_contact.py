"""Diagnoses of replicas out of contact: one case for each reason."""

from __future__ import annotations

import pytest

from holdfast.explain.answer import AGENT_LOOKS_MS, CONTROLLER_LOOKS_MS, ProgressStep, StuckReason
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import Operation
from holdfast.model.nodes.heartbeat import HeartbeatReport, ServerReport
from tests.unit.correct.views import AGENT, at, node, record, replaced, replica
from tests.unit.explain.questions import (
    KEEP,
    LOOK_MS,
    NODES,
    TIMING,
    asked,
    due_in_ms,
    heard,
    lease,
    says,
    unknown,
)


def test_a_node_that_is_silent_is_given_up_after_its_time() -> None:
    """Counted from its last renewal. [M2]"""
    answer = asked(replica(), node(phase=NodePhase.SUSPECT), heard=(heard(age_ms=22_000),))
    says(answer, StuckReason.SILENT, ProgressStep.SERVING, "controller:nodes")
    assert answer.finding.then == "controller:repair"
    assert due_in_ms(answer) == LOOK_MS - 22_000 + 35_000


def test_without_a_known_heartbeat_its_phase_decides() -> None:
    """[M2]"""
    judged = Operation(f"{NODES}/uid/7/Suspect", "d", at(-1_000))
    there = node(phase=NodePhase.SUSPECT)
    there = replaced(there, metadata=replaced(there.metadata, operations=(judged,)))
    assert due_in_ms(asked(replica(), there)) == -1_000 + 15_000
    # Usually another server receives its renewals; this one last did long ago.
    assert due_in_ms(asked(replica(), there, heard=(heard(age_ms=90_000),))) == -1_000 + 15_000
    answer = asked(replica(), node(phase=NodePhase.SUSPECT))
    assert "the time of its last renewal is unknown" in answer.finding.no_deadline


@pytest.mark.parametrize("phase", [NodePhase.SUSPECT, NodePhase.UNKNOWN])
def test_no_node_is_given_up_where_most_of_a_zone_is_silent(phase: NodePhase) -> None:
    """The same limit as controller:nodes has. [M2, SC6]"""
    mark = int(phase is NodePhase.UNKNOWN)
    silent = [node(f"node-{it}", phase, mark=mark) for it in "abc"]
    elsewhere = HeartbeatReport("one", 60_000, {"node-d": 900_000}, TIMING)
    answer = asked(unknown(), *silent, node("node-d"), heard=(elsewhere,))
    says(answer, StuckReason.BRAKE, ProgressStep.SERVING, "controller:nodes")
    assert "3 of 4 nodes of zone eu/a are silent" in answer.finding.no_deadline


@pytest.mark.parametrize("heard_there, wait_ms", [(0, 90_000), (1, 30_000)])
def test_a_silent_zone_is_held_back_until_its_wait_is_over(heard_there: int, wait_ms: int) -> None:
    """Counted from when enough of its nodes were suspected. [M2, H10]"""

    def suspected(name: str, at_ms: int) -> Node:
        judged = Operation(f"{NODES}/uid/7/Suspect", "d", at(at_ms))
        there = node(name, NodePhase.SUSPECT)
        return replaced(there, metadata=replaced(there.metadata, operations=(judged,)))

    other = ServerReport("two", "", 0, 60_000, TIMING, heard_there)
    report = HeartbeatReport("one", 60_000, {"node-d": 1}, TIMING, words=(other,), heard=1)
    silent = [suspected("node-a", -9_000), suspected("node-b", -4_000), suspected("node-c", -2_000)]
    found = asked(replica(), *silent, node("node-d"), heard=(report,))
    says(found, StuckReason.BRAKE, ProgressStep.SERVING, "controller:nodes")
    assert due_in_ms(found) == -2_000 + wait_ms
    long_ago = [suspected(f"node-{it}", -wait_ms) for it in "abc"]
    found = asked(replica(), *long_ago, node("node-d"), heard=(report,))
    says(found, StuckReason.SILENT, ProgressStep.SERVING, "controller:nodes")


def test_work_of_a_node_that_was_given_up_waits_for_the_fence() -> None:
    """Counted from the mark, or from when a new holder took over. [M2, SC4]"""
    there = node(phase=NodePhase.UNKNOWN, mark=1)
    answer = asked(unknown(), there)
    says(answer, StuckReason.FENCE, ProgressStep.SERVING, "controller:nodes")
    assert answer.finding.then == "controller:repair"
    held = lease("controller:nodes", acquired=at(4_000), renewed=at(5_000))
    assert due_in_ms(asked(unknown(), there, held)) == 4_000 + TIMING.fence_after_ms
    held = lease("controller:nodes", acquired=at(-60_000), renewed=at(5_000))
    assert due_in_ms(asked(unknown(), there, held)) == TIMING.fence_after_ms


@pytest.mark.parametrize("phase", [NodePhase.FENCED, NodePhase.LOST])
def test_after_the_fence_the_repair_controller_says_that_it_is_over(phase: NodePhase) -> None:
    """[M2, H5]"""
    answer = asked(unknown(), node(phase=phase, mark=1))
    says(answer, StuckReason.REPAIR, ProgressStep.SERVING, "controller:repair")
    assert due_in_ms(answer) == CONTROLLER_LOOKS_MS


def test_another_life_of_the_node_ends_what_was_bound_to_the_last_one() -> None:
    """`keep` work is its agent's to stop. [M2]"""
    there = node(incarnation=2)
    says(asked(unknown(), there), StuckReason.REPAIR, ProgressStep.SERVING, "controller:repair")
    kept = replica(State.FAILED, template=KEEP, transitions=(record(State.FAILED, "x"),))
    says(asked(kept, there), StuckReason.RELEASE, ProgressStep.RELEASE, AGENT)


def test_another_machine_under_the_name_leaves_keep_work_to_the_first_one() -> None:
    """The machine where a copy may still run is named. [M2]"""
    there = node(incarnation=2)
    there = replaced(there, status=replaced(there.status, installation="second"))
    about = unknown(template=KEEP)
    binding = replaced(about.status.binding, installation="first", address="10.0.0.7:7000")
    about = replaced(about, status=replaced(about.status, binding=binding))
    answer = asked(about, there)
    says(answer, StuckReason.WORD, ProgressStep.SERVING, "operator")
    assert "10.0.0.7:7000" in answer.finding.message
    assert "installation first" in answer.finding.message
    impatient = replaced(KEEP, replace_after_seconds=60)
    about = replaced(about, spec=replaced(about.spec, template=impatient))
    says(asked(about, there), StuckReason.SILENT, ProgressStep.SERVING, "controller:repair")


def test_a_node_that_is_gone_and_one_that_never_was() -> None:
    """[M2]"""
    says(asked(unknown()), StuckReason.REPAIR, ProgressStep.SERVING, "controller:repair")
    says(
        asked(replica(State.FAILED, binding=None)),
        StuckReason.REPAIR,
        ProgressStep.RELEASE,
        "controller:repair",
    )
    kept = replica(State.FAILED, template=KEEP)
    says(asked(kept), StuckReason.WORD, ProgressStep.RELEASE, "operator")


def test_a_node_that_renews_again_is_explained_by_its_agent() -> None:
    """[M2]"""
    answer = asked(unknown(), node())
    says(answer, StuckReason.RETURN, ProgressStep.SERVING, AGENT)
    assert due_in_ms(answer) == AGENT_LOOKS_MS


def test_kept_work_waits_for_its_node_its_owners_patience_or_an_operator() -> None:
    """[M2, H8]"""
    about, marked = unknown(template=KEEP), node(phase=NodePhase.UNKNOWN, mark=1)
    answer = asked(about, marked)
    says(answer, StuckReason.SILENT, ProgressStep.SERVING, AGENT)
    assert "replaceAfterSeconds" in answer.finding.no_deadline
    says(
        asked(about, node(phase=NodePhase.FENCED)),
        StuckReason.WORD,
        ProgressStep.SERVING,
        "operator",
    )
    impatient = unknown(template=replaced(KEEP, replace_after_seconds=60))
    answer = asked(impatient, marked)
    says(answer, StuckReason.SILENT, ProgressStep.SERVING, "controller:repair")
    assert due_in_ms(answer) == 60_000 + 3_000 + CONTROLLER_LOOKS_MS


def test_work_that_was_being_stopped_is_on_its_way_out() -> None:
    """[M3]"""
    about = unknown(cause=Cause.DRAIN)
    says(
        asked(about, node(phase=NodePhase.UNKNOWN, mark=1)),
        StuckReason.FENCE,
        ProgressStep.RELEASE,
        NODES[7:],
    )
