"""What the counts of a workload mean: Available, Bound, SchedulingRetrying."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.correct.status import (
    AVAILABLE,
    BOUND,
    RETRYING,
    StatusController,
    workload_conditions,
)
from holdfast.correct.workload.endings import BACKOFF_REASON
from holdfast.model.kinds.workload import Progress, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus
from holdfast.model.requests import Update
from tests.unit.correct.views import NOW, TERM, later, replaced, replica, view, workload

SERVICE, JOB = WorkloadType.SERVICE, WorkloadType.JOB


def said(
    kind: WorkloadType = SERVICE, known: tuple[Condition, ...] = (), **counts: Any
) -> dict[str, Condition]:
    return {it.type: it for it in workload_conditions(kind, Progress(**counts), known, 7)}


@pytest.mark.parametrize(
    "counts, status, reason, message",
    [
        ({"desired": 2, "admitted": 2, "bound": 2}, "True", "AllBound", "0 of 2 replicas wait"),
        ({"desired": 0}, "True", "AllBound", "0 of 0 replicas wait"),
        ({"desired": 2, "admitted": 2, "queued": 1}, "False", "WaitingForPlace", "1 of 2 replicas"),
        ({"desired": 2, "admitted": 2, "scheduled": 2}, "False", "WaitingForPlace", "2 of 2"),
        ({"desired": 2, "admitted": 1, "bound": 1}, "False", "NotAllMade", "1 of 2 replicas are"),
    ],
)
def test_bound_says_whether_anything_waits_for_a_place(
    counts: dict[str, int], status: str, reason: str, message: str
) -> None:
    """[A12]"""
    got = said(**counts)[BOUND]
    assert (got.status.value, got.reason, got.observed_generation) == (status, reason, 7)
    assert got.message.startswith(message)


def test_what_is_tried_again_is_named_with_what_most_of_it_lacks() -> None:
    """The reason is for machines, the message counts the others. [A12]"""
    reasons = {"NodeFull": 2, "QuotaExceeded": 5, "ZoneMissing": 2, "A": 1, "B": 1}
    got = said(JOB, queued=6, pending_reasons=reasons)
    assert list(got) == [RETRYING]
    assert (got[RETRYING].status, got[RETRYING].reason) == (ConditionStatus.TRUE, "QuotaExceeded")
    counts = "QuotaExceeded 5, NodeFull 2, ZoneMissing 2, A 1, …"
    assert got[RETRYING].message == f"6 replicas wait for a node: {counts}"


def test_nothing_is_said_of_retries_before_there_were_any() -> None:
    """A replica that was not tried yet, or pauses after a crash, is not retried. [A12]"""
    waits = {"WaitingForScheduler": 3, BACKOFF_REASON: 1}
    assert list(said(queued=3, pending_reasons=waits)) == [AVAILABLE, BOUND]
    before = (Condition(RETRYING, ConditionStatus.TRUE),)
    got = said(known=before, queued=3, pending_reasons=waits)[RETRYING]
    assert (got.status, got.reason) == (ConditionStatus.FALSE, "NothingWaits")
    assert not said(WorkloadType.CRON, before, pending_reasons={"NodeFull": 1})


def test_a_status_is_written_once_in_an_interval() -> None:
    """The first change at once, later ones together, and nothing at rest. [I1]"""
    controller, key = StatusController(200), ("acme", "web")
    one, two = view(workload(1), replica(State.PENDING)), view(workload(1), replica(State.BOUND))
    (first,) = controller.reconcile(one, key, TERM, NOW).requests
    assert isinstance(first, Update)
    again = controller.reconcile(two, key, TERM, later(50))
    assert (again.requests, again.wake_after_ms) == ((), 150)
    (second,) = controller.reconcile(two, key, TERM, later(200)).requests
    assert second.object.status.progress.bound == 1
    settled = view(replaced(workload(1), status=second.object.status), replica(State.BOUND))
    assert controller.reconcile(settled, key, TERM, later(400)).requests == ()
