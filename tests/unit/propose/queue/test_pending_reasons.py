"""What is published of a replica that waits: at once when it is new, never when it is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, ReportPending, Term
from holdfast.model.time import Instant, timestamp
from holdfast.propose.feasibility.outcome import Miss, PlacementReport, Verdict
from holdfast.propose.queue.pending_reasons import (
    MESSAGE_MAX,
    NOTICE_EVERY_MS,
    NOTICE_RETRY_MS,
    Notices,
)
from tests.plane import START_WALL_MS, template

KEY = ("acme", "web-0-0")
TERM = Term("scheduler:one", 3)


def at(ms: int) -> Instant:
    return Instant(ms, START_WALL_MS + ms)


def replica(number: int = 0, revision: int = 5, **status: Any) -> Replica:
    meta = ObjectMeta(
        name=KEY[1], namespace=KEY[0], uid="uid", resource_version=object_version(revision)
    )
    spec = ReplicaSpec(workload="web", workload_uid="w", template=template())
    return Replica(meta, spec=spec, status=ReplicaStatus(transition_number=number, **status))


def full(
    count: int = 1, reason: str = "NodeFull", verdict: Verdict = Verdict.WAITING
) -> PlacementReport:
    return PlacementReport(
        {reason: count}, f"{count} nodes", verdict, (), Miss("n", reason, "no room")
    )


class NoticesRig:
    """Notices with what they would send."""

    def __init__(self) -> None:
        self.notices = Notices()

    def say(self, report: PlacementReport, ms: int, seen: Replica | None = None) -> None:
        self.notices.say(seen or replica(), report, 3, ms + 60_000, at(ms))

    def sent(self, ms: int, room: int = 10) -> list[ReportPending]:
        return [request for _, request in self.notices.due(room, ms, TERM)]

    def written(self, ms: int, revision: int = 6) -> ReportPending:
        (request,) = self.sent(ms)
        self.notices.answered(KEY, request, Accepted(revision), ms)
        return request


def test_the_first_reason_is_published_at_once_with_all_details() -> None:
    """[E3, V3]"""
    desk = NoticesRig()
    desk.say(full(), 100)
    assert desk.notices.next_ms == 100
    (request,) = desk.sent(100)
    pending = request.pending
    assert pending.reasons == {"NodeFull": 1}
    assert (pending.message, pending.verdict) == ("1 nodes", "Waiting")
    assert pending.nearest_miss == "node n: no room"
    assert (pending.attempts, pending.owner) == (3, "scheduler")
    assert pending.since == timestamp(START_WALL_MS + 100)
    assert pending.next_wake == timestamp(START_WALL_MS + 60_100)
    assert desk.notices.next_ms is None


def test_what_the_status_says_already_is_not_written_again() -> None:
    """Neither by this scheduler nor by one that restarts and reads it. [V4]"""
    desk = NoticesRig()
    desk.say(full(), 0)
    pending = desk.written(0).pending
    desk.say(full(), 500_000)
    assert desk.sent(1_000_000) == []
    fresh = NoticesRig()
    fresh.say(full(), 0, replica(pending=pending))
    assert fresh.sent(1_000_000) == []


def test_other_counts_wait_and_other_reasons_do_not() -> None:
    """[V4, E3]"""
    desk = NoticesRig()
    desk.say(full(), 0)
    desk.written(0)
    desk.say(full(2), 1_000)
    assert desk.sent(NOTICE_EVERY_MS - 1) == []
    desk.say(full(3), 2_000)
    assert desk.written(NOTICE_EVERY_MS).pending.reasons == {"NodeFull": 3}
    desk.say(full(3, "Tainted"), NOTICE_EVERY_MS + 1)
    assert desk.written(NOTICE_EVERY_MS + 1).pending.reasons == {"Tainted": 3}


def test_a_reason_that_holds_again_before_it_was_replaced_is_not_written() -> None:
    """[V4]"""
    desk = NoticesRig()
    desk.say(full(), 0)
    desk.written(0)
    desk.say(full(2), 1_000)
    desk.say(full(1), 2_000)
    assert desk.sent(1_000_000) == []


def test_what_another_scheduler_says_meanwhile_is_not_overwritten_by_what_was_to_be_said() -> None:
    """What has to wait for its turn is out of date by then; the next decision compares. [V4]"""
    desk = NoticesRig()
    desk.say(full(), 0)
    mine = desk.written(0).pending
    desk.say(full(2), 1_000)
    desk.notices.seen(replica(5), replica(revision=6, pending=mine))
    assert desk.notices.next_ms == NOTICE_EVERY_MS, "its own report came back"
    other = msgspec.structs.replace(mine, message="5 nodes")
    desk.notices.seen(replica(revision=6, pending=mine), replica(revision=7, pending=other))
    assert desk.sent(1_000_000) == []
    desk.say(full(2), 2_000_000, replica(revision=7, pending=other))
    assert desk.sent(2_000_000)


def test_since_is_kept_from_the_first_reason() -> None:
    """[E3]"""
    desk = NoticesRig()
    desk.say(full(), 0)
    first = desk.written(0).pending
    desk.say(full(1, "Tainted"), 9_000, replica(revision=6, pending=first))
    assert desk.written(9_000).pending.since == first.since


def test_what_another_writer_wrote_afterwards_is_corrected() -> None:
    """[E3]"""
    desk = NoticesRig()
    desk.say(full(), 0)
    pending = desk.written(0).pending
    other = msgspec.structs.replace(pending, reasons={"Tainted": 1})
    desk.say(full(), 1_000, replica(revision=5, pending=other))
    assert desk.sent(1_000) == [], "an older picture than our own write says nothing"
    desk.say(full(), 2_000, replica(revision=7, pending=other))
    assert desk.written(2_000, 8).pending.reasons == {"NodeFull": 1}


@pytest.mark.parametrize("error", [Unavailable("busy"), OutcomeUnknown("?")])
def test_what_could_not_be_written_is_written_later(error: Exception) -> None:
    """[E3, E5]"""
    desk = NoticesRig()
    desk.say(full(), 0)
    (request,) = desk.sent(0)
    desk.notices.answered(KEY, request, error, 0)
    assert desk.sent(NOTICE_RETRY_MS - 1) == []
    assert desk.sent(NOTICE_RETRY_MS) == [request]


def test_a_replica_that_moved_on_is_not_reported_any_more() -> None:
    """[V4]"""
    desk = NoticesRig()
    desk.say(full(), 0)
    (request,) = desk.sent(0)
    desk.notices.answered(KEY, request, Refusal(Reason.STALE_REPLICA, ""), 0)
    assert desk.sent(1_000_000) == []
    desk.say(full(), 0)
    desk.notices.forget(KEY)
    assert desk.sent(1_000_000) == []
    assert desk.notices.next_ms is None


def test_a_later_transition_is_reported_again() -> None:
    """[E3]"""
    desk = NoticesRig()
    desk.say(full(), 0)
    desk.written(0)
    desk.say(full(), 1_000, replica(number=2, revision=9))
    assert desk.written(1_000).target.number == 2


def test_two_reports_of_one_replica_are_never_in_flight_at_once() -> None:
    """They could arrive in the wrong order."""
    desk = NoticesRig()
    desk.say(full(), 0)
    (first,) = desk.sent(0)
    desk.say(full(1, "Tainted"), 10)
    assert desk.sent(10) == []
    desk.notices.answered(KEY, first, Accepted(6), 20)
    assert [r.pending.reasons for r in desk.sent(10_000)] == [{"Tainted": 1}]


def test_no_more_are_sent_than_there_is_room_for() -> None:
    desk = NoticesRig()
    for index in range(5):
        meta = ObjectMeta(name=f"web-{index}-0", namespace="acme", uid=str(index))
        desk.say(full(), 0, msgspec.structs.replace(replica(), metadata=meta))
    assert len(desk.sent(0, room=2)) == 2
    assert len(desk.sent(0, room=10)) == 3


def test_long_messages_are_cut() -> None:
    desk = NoticesRig()
    desk.say(PlacementReport({"NodeFull": 1}, "x" * 10_000, Verdict.NEVER, ()), 0)
    (request,) = desk.sent(0)
    assert len(request.pending.message) == MESSAGE_MAX
    assert request.pending.owner == "user"
