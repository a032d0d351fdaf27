"""When the place of a replica that ended may be taken again."""

from __future__ import annotations

import pytest

from holdfast.correct.workload.endings import (
    ENDINGS_ANNOTATION,
    PAUSE_MAX_MS,
    PAUSE_MIN_MS,
    ending,
    endings,
    replaced_at_ms,
)
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import OnDisconnect, Template
from holdfast.model.lifecycle import State
from holdfast.model.placement.vacancy import NODE_RETURNED, vacates
from tests.unit.correct.views import AGENT, TEMPLATE, WALL_MS, record, replaced, replica


def crashed(before: str = "", after_ms: int = 500, to: State = State.FAILED) -> Replica:
    steps = (
        record(to, AGENT, after_ms, State.RUNNING),
        record(State.RELEASED, AGENT, after_ms, to),
    )
    annotations = {ENDINGS_ANNOTATION: before} if before else {}
    return replica(State.RELEASED, transitions=steps, annotations=annotations)


@pytest.mark.parametrize(
    "before, pause_ms",
    [
        ("", PAUSE_MIN_MS),
        ("1", 2 * PAUSE_MIN_MS),
        ("4", 16 * PAUSE_MIN_MS),
        ("30", PAUSE_MAX_MS),
        ("no number", PAUSE_MIN_MS),
        ("99999999999999999999", PAUSE_MIN_MS),
    ],
)
def test_each_ending_in_a_row_doubles_the_pause(before: str, pause_ms: int) -> None:
    """Up to a longest one; a malformed annotation counts as none. [I1, C7.6]"""
    assert replaced_at_ms(crashed(before)) == WALL_MS + 500 + pause_ms


def test_a_service_that_ends_well_right_away_waits_as_well() -> None:
    """Success is no reason to start a service again and again without a pause. [I1]"""
    assert replaced_at_ms(crashed("1", to=State.SUCCEEDED)) == WALL_MS + 500 + 2_000


def test_work_that_ran_for_long_was_well() -> None:
    """Its end is the first in a row, whatever was before."""
    assert endings(crashed("7", after_ms=600_000)) == 1
    assert endings(crashed("7", after_ms=599_999)) == 8


@pytest.mark.parametrize(
    "by, source", [("system:controller:repair", State.UNKNOWN), (AGENT, State.UNKNOWN)]
)
def test_work_that_was_lost_with_its_node_is_replaced_at_once(by: str, source: State) -> None:
    """A fence says nothing about the next one. [H5, I3]"""
    lost = replica(State.RELEASED, transitions=(record(State.FAILED, by, 0, source),))
    assert ending(lost) is None
    assert endings(lost) == replaced_at_ms(lost) == 0


def test_work_that_was_stopped_on_purpose_is_replaced_at_once() -> None:
    """A drain or a person's delete is no crash."""
    stopped = replica(State.RELEASED, transitions=(record(State.STOPPING, "ada"),))
    assert replaced_at_ms(stopped) == 0


REPAIR = "system:controller:repair"
KEEP = replaced(TEMPLATE, on_disconnect=OnDisconnect.KEEP)


@pytest.mark.parametrize(
    "template, by, source, leaves",
    [
        (KEEP, REPAIR, State.UNKNOWN, True),
        (KEEP, AGENT, State.UNKNOWN, False),
        (KEEP, AGENT, State.RUNNING, False),
        (TEMPLATE, REPAIR, State.UNKNOWN, False),
        (TEMPLATE, "ada", State.UNKNOWN, False),
    ],
)
def test_only_keep_work_that_was_given_up_leaves_its_place_unreleased(
    template: Template, by: str, source: State, leaves: bool
) -> None:
    """Its owner chose two copies rather than none; all others wait for a proof. [C6.4, I3]"""
    steps = (record(State.FAILED, by, 0, source),)
    assert vacates(replica(State.FAILED, template=template, transitions=steps)) is leaves
    assert vacates(replica(State.RELEASED, template=template))
    assert not vacates(replica(State.UNKNOWN, template=template))


def test_keep_work_whose_node_is_back_waits_for_the_proof_that_it_has_stopped() -> None:
    """Its agent is there to stop it, so there are never two copies. [C6.4, H5, SC6]"""
    given_up = record(State.FAILED, REPAIR, 0, State.UNKNOWN)
    back = replaced(given_up, reason=NODE_RETURNED)
    assert vacates(replica(State.FAILED, template=KEEP, transitions=(given_up,)))
    assert not vacates(replica(State.FAILED, template=KEEP, transitions=(back,)))
