"""Whether the owner of the next step is active, and what an explanation shows of it."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.correct.events.event_recorder import event_of
from holdfast.explain.answer import Explanation
from holdfast.explain.evidence import EVENTS_MAX
from holdfast.model.kinds.node import NodePhase
from holdfast.model.lifecycle import State
from holdfast.model.pulse import Beat, Pulse, Pulses, ReceivedPulse
from tests.unit.correct.views import at, node, replaced, replica
from tests.unit.explain.questions import LOOK_MS, LOST, asked, lease, unknown


def pulses(age_ms: int = 1_000, picture_ms: int = 10, epoch: int = 3) -> tuple[Pulses, ...]:
    pulse = Pulse("controllers one", (Beat("controller:repair", epoch),), picture_ms=picture_ms)
    return (Pulses("one", 60_000, (ReceivedPulse("system:controllers", age_ms, pulse),)),)


@pytest.mark.parametrize(
    "felt, acts",
    [
        (pulses(), True),
        (pulses(age_ms=20_000), False),
        (pulses(picture_ms=40_000), False),
        # It stands by, and no process holds the lease.
        (pulses(epoch=0), False),
        ((), False),
    ],
)
def test_a_deadline_without_a_replica_to_keep_it_is_none(
    felt: tuple[Pulses, ...], acts: bool
) -> None:
    answer = asked(unknown(), node(phase=NodePhase.FENCED), pulses=felt)
    assert (answer.finding.deadline is not None) is acts
    if not acts:
        inactive = "controller:repair is not active: no process holds its lease"
        assert answer.finding.no_deadline == inactive


def test_a_lease_that_was_not_renewed_has_no_holder() -> None:
    old = lease("controller:repair", renewed=at(-60_000))
    answer = asked(unknown(), node(phase=NodePhase.FENCED), old, pulses=())
    assert "is not active" in answer.finding.no_deadline
    (sign,) = [it for it in answer.signs if it.what == "lease controller:repair"]
    assert (sign.says, sign.age_ms) == ("held by somebody in epoch 3", 65_000)
    young = lease("controller:repair", renewed=at(-10_000))
    answer = asked(unknown(), node(phase=NodePhase.FENCED), young, pulses=())
    assert answer.finding.deadline is not None


def test_a_deadline_that_has_passed_says_for_how_long() -> None:
    answer = asked(replica(State.BOUND), node(), ms=700_000)
    assert answer.late_ms == 100_000
    assert answer.signs[0].age_ms is None
    assert answer.revision == 40


def test_its_events_are_part_of_the_evidence() -> None:
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
    answer = asked(unknown(), node(phase=NodePhase.UNKNOWN, mark=1))
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Explanation) == answer
    assert answer.timeline == LOST
