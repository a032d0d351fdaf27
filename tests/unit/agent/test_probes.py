"""What answers to probes mean, one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.probes import ProbeHealth, action_of, with_port_number
from holdfast.agent.runtime_protocol import Check
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import ExecAction, HttpAction, PreStop, Probe, Probes, TcpAction

PORT = TcpAction(port=80)


def probe(**more: Any) -> Probe:
    return Probe(tcp=PORT, **{"period_seconds": 10, "failure_threshold": 3, **more})


def tell(health: ProbeHealth, kind: Check, answers: str, now_ms: int = 0) -> int:
    """Ask and answer, `+` well and `-` badly, each as soon as it is due; the time at the end."""
    for answer in answers:
        now_ms = max(now_ms, health.next_ms or now_ms)
        asked = [it for it, _ in health.due(now_ms)]
        assert kind in asked, (asked, answer)
        for each in asked:
            health.take_result(each, answer == "+" if each is kind else True, "no", now_ms)
    return now_ms


@pytest.mark.parametrize(
    "answers, ready",
    [
        ("", False),
        ("+", False),
        ("++", True),
        ("+-+", False),
        ("+-++", True),
        ("++--", True),
        ("++--+--", True),
        ("++---", False),
        ("++---+", False),
        ("++---++", True),
    ],
)
def test_readiness_turns_at_its_thresholds(answers: str, ready: bool) -> None:
    """[A6]"""
    health = ProbeHealth(Probes(readiness=probe(success_threshold=2)), 0)
    tell(health, Check.READINESS, answers)
    assert health.is_ready is ready
    assert not health.ill


def test_without_probes_work_is_ready_when_it_runs() -> None:
    """[A6]"""
    health = ProbeHealth(Probes(), 0)
    assert health.is_ready
    assert health.next_ms is None
    assert health.due(10**9) == []


def test_the_start_up_probe_holds_back_the_others() -> None:
    """[A6, H3]"""
    health = ProbeHealth(Probes(startup=probe(), readiness=probe(), liveness=probe()), 0)
    assert [kind for kind, _ in health.due(0)] == [Check.STARTUP]
    assert health.due(5_000) == []
    health.take_result(Check.STARTUP, False, "no", 5_000)
    assert health.next_ms == 10_000
    assert [kind for kind, _ in health.due(10_000)] == [Check.STARTUP]
    health.take_result(Check.STARTUP, True, "", 10_000)
    assert [kind for kind, _ in health.due(10_000)] == [Check.READINESS, Check.LIVENESS]
    assert not health.is_ready
    health.take_result(Check.READINESS, True, "", 10_500)
    assert health.is_ready
    assert health.next_ms == 20_000


@pytest.mark.parametrize(
    "name, kind, reason",
    [
        ("startup", Check.STARTUP, "StartupProbeFailed: no"),
        ("liveness", Check.LIVENESS, "LivenessProbeFailed: no"),
    ],
)
def test_what_fails_for_good_ends_the_attempt(name: str, kind: Check, reason: str) -> None:
    """Nothing is asked of it any more. [H3]"""
    health = ProbeHealth(Probes(**{name: probe()}), 0)
    now_ms = tell(health, kind, "--")
    assert not health.ill
    tell(health, kind, "-", now_ms)
    assert health.ill == reason
    assert health.next_ms is None
    assert health.due(10**9) == []


def test_the_first_question_waits_and_the_next_ones_keep_their_period() -> None:
    health = ProbeHealth(Probes(liveness=probe(initial_delay_seconds=7)), 1_000, spread=0.5)
    assert health.next_ms == 1_000 + 7_000 + 5_000
    assert health.due(12_999) == []
    assert health.due(13_000)
    # Nothing else is asked until it has answered, however long that takes.
    assert health.next_ms is None
    assert health.due(60_000) == []
    health.take_result(Check.LIVENESS, True, "", 60_000)
    assert health.next_ms == 60_000
    health.take_result(Check.LIVENESS, False, "not awaited", 60_000)
    assert health.next_ms == 60_000


def test_why_it_is_not_ready_is_reported_when_there_is_a_reason() -> None:
    """[E3]"""
    health = ProbeHealth(Probes(startup=probe(failure_threshold=100), readiness=probe()), 0)
    now_ms = tell(health, Check.STARTUP, "--")
    assert health.complaint == ""
    now_ms = tell(health, Check.STARTUP, "-", now_ms)
    assert health.complaint == "NotReady: startup probe: no"
    now_ms = tell(health, Check.STARTUP, "+", now_ms)
    assert health.complaint == ""
    tell(health, Check.READINESS, "---", now_ms)
    assert health.complaint == "NotReady: readiness probe: no"


def test_work_that_was_ready_stays_so_until_a_probe_says_otherwise() -> None:
    """A new agent knows nothing yet, which is no failure of the work. [H4]"""
    health = ProbeHealth(Probes(startup=probe(), readiness=probe()), 0, was_ready=True)
    assert health.is_ready
    tell(health, Check.READINESS, "--")
    assert health.is_ready
    health = ProbeHealth(Probes(readiness=probe()), 0, was_ready=True)
    tell(health, Check.READINESS, "---")
    assert not health.is_ready


def test_named_ports_become_the_numbers_that_were_given() -> None:
    process = Process(addresses={"web": "10.0.0.1:20001", "six": "[::1]:20002"})
    assert with_port_number(HttpAction(port="web", path="/x"), process) == HttpAction(20001, "/x")
    assert with_port_number(TcpAction(port="six"), process) == TcpAction(port=20002)
    assert with_port_number(TcpAction(port="none"), process) is None
    assert with_port_number(PORT, process) == PORT
    command = ExecAction(command=("x",))
    assert with_port_number(command, process) == command
    assert action_of(PreStop(exec=command)) == command
    assert action_of(PreStop()) is None
