"""Timings that change: what the agent takes, what it says that its work holds, and when."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.runtime_protocol import Extend, Launch
from holdfast.commit.context import PlaneSettings
from holdfast.model.nodes.fence import (
    FenceTiming,
    fence_after_min_ms,
    greatest_timing,
    limit_timing,
    timing_of,
)
from holdfast.model.requests import RegisterNode
from tests.unit.agent.rig import Rig
from tests.unit.agent.running_work import asked, made, running


def safe(**changes: int) -> FenceTiming:
    timing = FenceTiming(**changes)
    return msgspec.structs.replace(timing, fence_after_ms=fence_after_min_ms(timing))


SHORT, LONG = FenceTiming(), safe(grace_ms=120_000, self_stop_after_ms=60_000)


class Retimed(Rig):
    """A rig whose servers have settings, and answer renewals by them and the node's record."""

    def set(self, timing: FenceTiming) -> None:
        self.timing = timing
        self.plane.settings = PlaneSettings(fence=timing)
        self.plane.authority = self.plane.new_authority()

    def verdict(self, body: Any) -> Any:
        answer = super().verdict(body)
        if type(body).__name__ != "Renew":
            return answer
        held = self.record
        wanted = self.timing if held != greatest_timing(self.timing) else None
        given = limit_timing(self.timing, held)
        return msgspec.structs.replace(answer, timing=given, wanted=wanted)

    @property
    def record(self) -> FenceTiming:
        found = timing_of(self.it.get(self.it.node).status.timing)
        assert found is not None
        return found

    def go_on(self, ms: int) -> None:
        for _ in range(ms // 5_000):
            self.wait(5_000)
            self.settle()


def begun(timing: FenceTiming) -> Retimed:
    rig = Retimed()
    rig.set(timing)
    rig.up()
    rig.go_on(10_000)
    assert rig.record == timing
    return rig


def test_a_shorter_grace_counts_when_the_work_that_was_given_a_longer_one_has_ended() -> None:
    """Until then the node's record, and so its fence, has the longer one. [INV2, C6.4, H7]"""
    rig = begun(LONG)
    replica = running(rig, grace_seconds=120)
    assert made(rig, Launch)[-1].grace_ms == 120_000
    rig.set(SHORT)
    rig.go_on(200_000)
    assert rig.record.grace_ms == 120_000
    assert rig.record.self_stop_after_ms == SHORT.self_stop_after_ms
    rig.exited(replica.name, code=1)
    rig.go_on(200_000)
    # It was started again, with no more than what the agent has said since.
    assert made(rig, Launch)[-1].grace_ms == SHORT.grace_ms
    assert rig.record == SHORT


def test_an_agent_that_has_just_started_knows_what_the_shims_were_given() -> None:
    """By what the runtime wrote down of them. [INV2, C7.4]"""
    rig = begun(LONG)
    running(rig, grace_seconds=120)
    rig.set(SHORT)
    rig.stop()
    rig.up()
    rig.go_on(200_000)
    assert rig.record.grace_ms == 120_000


def test_longer_times_are_used_after_the_record_has_them_and_not_before() -> None:
    """A server acknowledges no more than the record that it has read. [INV2]"""
    rig = begun(SHORT)
    rig.trace.clear()
    rig.set(LONG)
    rig.wait(10_000)
    rig.push_changes()
    before_ms = rig.now_ms
    rig.answer("Renew")
    (first,) = made(rig, Extend)
    assert first.deadline_ms <= before_ms + SHORT.self_stop_after_ms
    rig.settle()
    assert rig.record == LONG
    rig.go_on(20_000)
    assert made(rig, Extend)[-1].deadline_ms > rig.now_ms + SHORT.self_stop_after_ms


def test_what_was_said_binds_before_it_is_answered() -> None:
    """An acknowledgement by the old times that arrives late gives no more than that. [INV2]"""
    rig = begun(LONG)
    rig.set(SHORT)
    while not [it for it in asked(rig, RegisterNode) if it.holds and it.holds.number]:
        rig.wait(5_000)
        rig.push_changes()
        for kind in ("Renew", "Get"):
            if [it for it in rig.calls.values() if type(it.body).__name__ == kind]:
                rig.answer(kind)
    # The registration is on its way; a server that has not been restarted yet answers.
    rig.timing = LONG
    rig.wait(20_000)
    rig.trace.clear()
    sent_ms = rig.now_ms
    rig.answer("Renew")
    assert isinstance(rig.agent, Agent)
    for it in made(rig, Extend):
        assert it.deadline_ms <= sent_ms + SHORT.self_stop_after_ms
