"""The record of the greatest timing that work on a node may hold, and what a fence waits for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.context import PlaneSettings
from holdfast.host.server.fence_options import SECONDS_MAX
from holdfast.model.kinds.node import Node
from holdfast.model.meta import INT_MAX, ConditionStatus, ObjectMeta, condition
from holdfast.model.nodes.fence import (
    TIMING_PENDING,
    FenceTiming,
    HeldTimes,
    fence_after_min_ms,
    timing_of,
)
from holdfast.model.refusal import Reason
from holdfast.model.requests import NodeAction, RegisterNode
from tests.furnished import AGENT, Furnished
from tests.plane import NODES, refused


def safe(**changes: int) -> FenceTiming:
    timing = FenceTiming(**changes)
    return msgspec.structs.replace(timing, fence_after_ms=fence_after_min_ms(timing))


SHORT = safe()
LONG_GRACE = safe(grace_ms=120_000)
LONG_SILENCE = safe(self_stop_after_ms=90_000, ack_window_ms=5_000)


def restarted(it: Furnished, timing: FenceTiming) -> None:
    """The servers come back with another timing."""
    it.plane.settings = PlaneSettings(fence=timing)
    it.plane.authority = it.plane.new_authority()


def record(it: Furnished) -> Any:
    return it.get(it.node).status.timing


def said(it: Furnished, holds: HeldTimes | None) -> Any:
    """What comes of a registration that says what the node's work holds."""
    node = it.get(it.node)
    given = Node(ObjectMeta(name=node.name), spec=node.spec)
    return it.ask(AGENT, RegisterNode(given, holds=holds))


def held(it: Furnished, timing: FenceTiming) -> HeldTimes:
    return HeldTimes(timing.self_stop_after_ms, timing.grace_ms, record(it).number)


@pytest.mark.parametrize("before", [LONG_GRACE, LONG_SILENCE])
def test_a_fence_waits_for_what_work_was_given_and_not_for_the_present_settings(
    before: FenceTiming,
) -> None:
    """Servers that were restarted with shorter times find the node cut off. [INV2, C6.4, H7]"""
    it = Furnished(settings=PlaneSettings(fence=before))
    mark = it.marked()
    restarted(it, SHORT)
    for waited_ms in (None, SHORT.fence_after_ms, before.fence_after_ms - 1):
        fence = it.judge(NodeAction.FENCE, mark=mark, waited_ms=waited_ms)
        answer = it.ask(NODES, fence)
        refused(answer, Reason.NOT_FENCED)
        assert answer.details["waitMs"] == str(before.fence_after_ms)
    it.yes(NODES, it.judge(NodeAction.FENCE, mark=mark, waited_ms=before.fence_after_ms))


def test_longer_times_count_as_soon_as_any_server_has_written_them_down() -> None:
    """The greatest of each is kept, and the fence waits for all of them together. [INV2]"""
    it = Furnished(settings=PlaneSettings(fence=LONG_GRACE))
    restarted(it, LONG_SILENCE)
    said(it, None)
    both = timing_of(record(it))
    assert both is not None
    assert both.grace_ms == LONG_GRACE.grace_ms
    assert both.self_stop_after_ms == LONG_SILENCE.self_stop_after_ms
    assert both.fence_after_ms == fence_after_min_ms(both)


def test_only_the_agent_that_knows_the_record_says_that_less_is_held() -> None:
    """A lowered setting is said to be pending until then. [INV2, A9]"""
    it = Furnished(settings=PlaneSettings(fence=LONG_GRACE))
    restarted(it, SHORT)
    for holds in (None, HeldTimes(0, 0), HeldTimes(0, 0, record(it).number + 5)):
        said(it, holds)
        assert record(it).grace_ms == LONG_GRACE.grace_ms
    pending = condition(it.get(it.node).status.conditions, TIMING_PENDING)
    assert pending.status is ConditionStatus.TRUE
    assert str(LONG_GRACE.fence_after_ms) in pending.message
    said(it, msgspec.structs.replace(held(it, SHORT), grace_ms=60_000))
    assert record(it).grace_ms == 60_000
    said(it, held(it, SHORT))
    assert timing_of(record(it)) == SHORT
    done = condition(it.get(it.node).status.conditions, TIMING_PENDING)
    assert done.status is ConditionStatus.FALSE


def test_a_longer_window_of_answers_counts_until_the_next_life() -> None:
    """A server may answer from a read that it sent before the record fell, and the node be marked
    in between. [INV2]"""
    it = Furnished(settings=PlaneSettings(fence=LONG_SILENCE))
    restarted(it, SHORT)
    said(it, held(it, SHORT))
    after = timing_of(record(it))
    assert after.ack_window_ms == LONG_SILENCE.ack_window_ms > SHORT.ack_window_ms
    assert after.self_stop_after_ms == SHORT.self_stop_after_ms
    assert after.fence_after_ms >= fence_after_min_ms(after)


def test_a_claim_of_a_process_that_is_gone_does_not_count() -> None:
    """The next one has started by then, and holds what the record allowed it. [INV2]"""
    it = Furnished(settings=PlaneSettings(fence=LONG_GRACE))
    restarted(it, SHORT)
    late = held(it, SHORT)
    said(it, HeldTimes(0, 0))
    said(it, late)
    assert record(it).grace_ms == LONG_GRACE.grace_ms


def test_nothing_is_lowered_under_a_mark_and_no_claim_begins_a_new_life() -> None:
    """The countdown began when more was held. [INV2]"""
    it = Furnished(settings=PlaneSettings(fence=LONG_GRACE))
    mark = it.marked()
    restarted(it, SHORT)
    said(it, held(it, SHORT))
    assert record(it).grace_ms == LONG_GRACE.grace_ms
    it.yes(NODES, it.judge(NodeAction.FENCE, mark=mark, waited_ms=LONG_GRACE.fence_after_ms))
    refused(said(it, held(it, SHORT)), Reason.STALE_INCARNATION)
    # Nothing of the old incarnation runs when its agent begins another one.
    said(it, HeldTimes(0, 0))
    assert timing_of(record(it)) == SHORT


def test_every_time_that_a_server_may_be_given_can_be_written_down() -> None:
    """A record that cannot be read again would hide its node from all readers. [INV2]"""
    day_ms = SECONDS_MAX * 1_000
    longest = safe(
        ack_window_ms=day_ms,
        self_stop_after_ms=day_ms,
        grace_ms=day_ms,
        kill_bound_ms=day_ms,
        margin_ms=day_ms,
    )
    it = Furnished(settings=PlaneSettings(fence=longest))
    assert timing_of(record(it)) == longest


@pytest.mark.parametrize("claimed_ms", [2**63, INT_MAX, 10_000_000])
def test_no_agent_puts_its_fence_off_by_claiming_more_than_it_was_given(claimed_ms: int) -> None:
    """Nothing was ever acknowledged beyond the record: a node that lies would keep its work from
    being replaced for ever, or leave a record that cannot be read. [INV2, C6.4]"""
    it = Furnished(settings=PlaneSettings(fence=LONG_GRACE))
    before = record(it)
    for number in (0, before.number):
        said(it, HeldTimes(claimed_ms, claimed_ms, number))
        assert timing_of(record(it)) == timing_of(before)
    mark = it.marked()
    it.yes(NODES, it.judge(NodeAction.FENCE, mark=mark, waited_ms=LONG_GRACE.fence_after_ms))


def test_the_number_of_a_record_has_room_for_every_start_of_an_agent() -> None:
    """Each start counts one; the millionth writes a record that can be read. [INV2]"""
    it = Furnished()
    node = it.get(it.node)
    many = msgspec.structs.replace(node.status.timing, number=1_000_000)
    status = msgspec.structs.replace(node.status, timing=many)
    text = msgspec.json.encode(msgspec.structs.replace(node, status=status))
    read = msgspec.json.decode(text.replace(b"1000000", b"1000001"), type=Node)
    assert read.status.timing is not None
    assert read.status.timing.number == 1_000_001
