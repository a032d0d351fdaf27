"""One piece of work: ends, pauses, and which of two snapshots counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.agent.runtime_protocol import DEADLINE_PASSED, DISK_PRESSURE, Attempt
from holdfast.agent.work import RESTART_MAX_MS, STEADY_MS, ReplicaWork, describe, outcome
from holdfast.model.kinds.replica import Process, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import RestartPolicy, Template
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import WorkProgress
from tests.unit.agent.rig import Half

ALWAYS, ON_FAILURE, NEVER = RestartPolicy


@pytest.mark.parametrize(
    "policy, process, ends",
    [
        (ALWAYS, Process(exit_code=0), None),
        (ALWAYS, Process(signal=9), None),
        (ON_FAILURE, Process(exit_code=0), State.SUCCEEDED),
        (ON_FAILURE, Process(exit_code=1), None),
        (ON_FAILURE, Process(signal=15), None),
        (ON_FAILURE, Process(exit_code=0, reason=DEADLINE_PASSED), None),
        (ON_FAILURE, Process(reason="Rebooted"), None),
        (NEVER, Process(exit_code=0), State.SUCCEEDED),
        (NEVER, Process(exit_code=2), State.FAILED),
        (NEVER, Process(signal=9), State.FAILED),
        (NEVER, Process(exit_code=0, reason=DEADLINE_PASSED), State.FAILED),
        (NEVER, Process(exit_code=0, reason=f"{DISK_PRESSURE}: why"), State.FAILED),
    ],
)
def test_the_policy_decides_what_an_end_means(
    policy: RestartPolicy, process: Process, ends: State | None
) -> None:
    """Work that its deadline stopped has not succeeded, whatever it says itself. [A3]"""
    assert outcome(policy, process) is ends


def work() -> ReplicaWork:
    it = ReplicaWork("u", "acme", "web-0-0")
    it.launching(Attempt("u", 0))
    return it


def ends(it: ReplicaWork, now_ms: int, **process: Any) -> int:
    it.ended(Process(id="1", **process), True, now_ms, Half())
    return it.resume_ms - now_ms


def test_pauses_double_up_to_five_minutes_and_a_steady_run_resets_them() -> None:
    """With half of the jitter: three quarters of the full pause. [E5, C7.6]"""
    it = work()
    pauses = [ends(it, 0, exit_code=1) for _ in range(16)]
    assert pauses[:4] == [75, 150, 300, 600]
    assert pauses[-1] == RESTART_MAX_MS * 3 // 4
    it.launched(Process(id="2"), 1_000)
    assert ends(it, 1_000 + STEADY_MS - 1, exit_code=1) == RESTART_MAX_MS * 3 // 4
    it.launched(Process(id="3"), 1_000)
    assert ends(it, 1_000 + STEADY_MS, exit_code=1) == 75


def test_a_deadline_that_strikes_is_no_crash() -> None:
    """The servers were silent; the work did nothing wrong."""
    it = work()
    assert [ends(it, 0, reason=DEADLINE_PASSED) for _ in range(5)] == [0] * 5
    assert it.crashes == 0


def replica(version: str, number: int = 1, **process: Any) -> Replica:
    return Replica(
        ObjectMeta(name="web-0-0", namespace="acme", uid="u", resource_version=version),
        spec=ReplicaSpec(workload="web", workload_uid="w", template=Template()),
        status=ReplicaStatus(
            state=State.RUNNING, transition_number=number, process=Process(**process)
        ),
    )


def test_of_two_pictures_the_later_version_counts_whenever_it_came() -> None:
    """Streams and answers overtake each other."""
    it = work()
    assert it.take(replica("20", 5))
    assert not it.take(replica("18", 4))
    assert it.replica is not None
    assert it.replica.status.transition_number == 5
    assert it.take(replica("9", 3)) is False
    assert it.take(replica("100", 6))


def test_an_end_is_unsaid_until_the_servers_know_of_it() -> None:
    """[M2]"""
    it = work()
    it.take(replica("2", id="1"))
    assert it.unsaid is None
    ends(it, 0, exit_code=1)
    assert it.unsaid is WorkProgress.ENDED
    it.take(replica("4", id="1", exit_code=1))
    assert it.unsaid is None
    it.is_gone = True
    assert it.unsaid is None


def test_a_crash_loop_that_an_earlier_process_of_the_agent_saw_goes_on() -> None:
    """Otherwise work that also crashes its agent escapes every pause. [E5]"""
    it = work()
    it.take(replica("2", reason="CrashLoop: exit code 1; next start after 9 ms", restarts=6))
    assert ends(it, 0, exit_code=1) == 100 * 64 * 3 // 4
    calm = work()
    calm.take(replica("2", reason="Exited", restarts=6))
    assert ends(calm, 0, exit_code=1) == 75


def test_requests_that_fail_wait_longer_each_time_and_not_beyond_a_bound() -> None:
    """Until one succeeds. [E5, C7.5]"""
    it = work()
    waits = []
    for _ in range(12):
        it.failed(0, Half())
        waits.append(it.retry_ms)
    assert waits[:3] == [75, 150, 300]
    assert waits[-1] == 22_500
    it.succeeded()
    assert it.retry_ms == 0


@pytest.mark.parametrize(
    "process, text",
    [
        (Process(exit_code=3), "exit code 3"),
        (Process(signal=9, oom_killed=True), "signal 9, out of memory"),
        (Process(reason="NoSuchFile"), "no exit (NoSuchFile)"),
    ],
)
def test_an_end_is_reported_as_text(process: Process, text: str) -> None:
    """The evidence is for people. [A8, M1]"""
    assert describe(msgspec.structs.replace(process, id="7")) == text
