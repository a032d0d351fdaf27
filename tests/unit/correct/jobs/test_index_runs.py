"""Jobs: completions, parallelism, retries, deadlines, and the account of what has ended."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.correct.jobs.account import ACCOUNT_PAUSE_MS, FAILURES_ANNOTATION, tally
from holdfast.correct.jobs.index_runs import RELEASED_KEPT_MAX
from holdfast.correct.workload.controller import WorkloadController
from holdfast.model.access import identity as who
from holdfast.model.kinds.replica import DEADLINE_PASSED, Process, Replica
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.kinds.tenant import ObjectCaps
from holdfast.model.kinds.workload import (
    FailureAction,
    FailureRule,
    Job,
    JobStatus,
    Workload,
    WorkloadType,
)
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Evict, Move, Remove
from holdfast.model.workload.indexes import parse
from holdfast.model.workload.jobs import finished_condition
from tests.plane import WORKLOADS, refused, template
from tests.unit.correct.controller_rig import ADMIN, LOST_AFTER, Rig, accepted, target
from tests.unit.correct.views import (
    AGENT,
    TEMPLATE,
    TERM,
    at,
    later,
    record,
    replaced,
    replica,
    view,
    workload,
)

KEY, PLACES = ("acme", "web"), ("acme", "web/0")
NEVER = replaced(TEMPLATE, restart=RestartPolicy.NEVER)


def job(replicas: int = 1, account: JobStatus | None = None, **stated: Any) -> Workload:
    made = workload(replicas, type=WorkloadType.JOB, job=Job(**stated), template=NEVER)
    metadata = replaced(made.metadata, creation_timestamp=at())
    status = replaced(made.status, job=account or JobStatus())
    return replaced(made, metadata=metadata, status=status)


def over(
    ordinal: int, code: int | None = 0, incarnation: int = 0, *, ms: int = 0, **more: Any
) -> Replica:
    """A released replica that ended by itself with this code."""
    ended = State.FAILED if code else State.SUCCEEDED
    steps = (
        record(ended, AGENT, ms, State.RUNNING),
        record(State.RELEASED, AGENT, ms, ended),
    )
    more = {"process": Process(exit_code=code), "transitions": steps, **more}
    return replica(State.RELEASED, ordinal, incarnation, **more)


def run(*objects: Object, after_ms: int = 0) -> Any:
    return WorkloadController().reconcile(view(*objects), PLACES, TERM, later(after_ms))


def settled(*objects: Object, after_ms: int = 0) -> Any:
    return WorkloadController().reconcile(view(*objects), KEY, TERM, later(after_ms))


def short(plan: Any) -> list[tuple[str, str]]:
    return [_short(it) for it in plan.requests]


def _short(request: Any) -> tuple[str, str]:
    match request:
        case Create(object=obj):
            return "Create", obj.name
        case Move(target=aim, to=to):
            return to.value, aim.name
        case Evict(target=aim, cause=cause):
            return cause.value, aim.name
        case Remove(plural=plural, name=name):
            return f"Remove {plural}", name
    raise AssertionError(request)


def test_the_lowest_indexes_start_and_no_more_at_once_than_parallelism_says() -> None:
    """What has ended and what is complete makes room for the next."""
    assert short(run(job(5, parallelism=2))) == [("Create", "web-0-0"), ("Create", "web-1-0")]
    mine = [over(0), replica(State.RUNNING, 1)]
    assert short(run(job(5, parallelism=2), *mine)) == [("Create", "web-2-0")]
    known = JobStatus(succeeded=3, completed_indexes="0-2")
    assert short(run(job(4, known, completions=9))) == [
        ("Create", f"web-{index}-0") for index in range(3, 9)
    ]


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.STOPPING, State.UNKNOWN, State.FAILED])
def test_what_was_not_released_holds_its_turn(state: State) -> None:
    """It may still run, and its place is still charged. [INV2, C6.4]"""
    steps = (record(state, AGENT, 0, State.RUNNING),)
    assert short(run(job(5, parallelism=1), replica(state, 0, transitions=steps))) == []


def test_a_parallelism_of_nothing_pauses_a_job() -> None:
    """What runs is stopped, for free, and nothing new starts."""
    mine = [replica(State.RUNNING, 0), replica(State.PENDING, 1), replica(State.STOPPING, 2)]
    assert short(run(job(4, parallelism=0), *mine)) == [
        ("Released", "web-1-0"),
        ("ScaleDown", "web-0-0"),
    ]
    assert short(run(job(4, parallelism=1), *mine)) == [("Released", "web-1-0")]


def test_a_failure_is_tried_again_after_a_pause_and_counted_by_what_follows() -> None:
    """The count goes with the replica, so no controller has to remember it. [I1, E5]"""
    waiting = run(job(1, retries=2), over(0, 1))
    assert (waiting.requests, waiting.wake_after_ms) == ((), 1_000)
    (birth,) = run(job(1, retries=2), over(0, 1), after_ms=1_000).requests
    assert birth.object.name == "web-0-1"
    assert birth.object.metadata.annotations[FAILURES_ANNOTATION] == "1"


def test_one_that_waits_for_its_next_try_keeps_its_turn() -> None:
    """Or a job that fails everywhere would begin all of its indexes."""
    assert short(run(job(9, parallelism=1), over(0, 1))) == []


def test_more_failures_than_retries_fail_the_job_and_the_end_is_written_first() -> None:
    """What is left is stopped once the reason is published. [A7]"""
    mine = [over(0, 1), replica(State.RUNNING, 1)]
    stated = job(2, retries=0)
    assert short(run(stated, *mine)) == []
    (update,) = settled(stated, *mine).requests
    said = finished_condition(update.object)
    assert (said.type, said.reason) == ("Failed", "RetriesExceeded")
    assert update.object.status.job.failed == 1
    assert update.object.status.job.completion_time == at()
    assert short(run(update.object, *mine)) == [("ScaleDown", "web-1-0")]


@pytest.mark.parametrize(
    "code, reason, failures",
    [(3, "FailurePolicy", 1), (7, None, 0), (9, None, 1), (1, None, 1), (None, None, 1)],
)
def test_the_first_rule_that_names_an_exit_code_says_what_it_means(
    code: int | None, reason: str | None, failures: int
) -> None:
    """FailJob ends the job, Ignore costs nothing, and all else uses up a retry."""
    rules = (
        FailureRule((3,), FailureAction.FAIL_JOB),
        FailureRule((7,), FailureAction.IGNORE),
        FailureRule((9,), FailureAction.COUNT),
    )
    steps = (record(State.FAILED, AGENT, 0, State.RUNNING), record(State.RELEASED, AGENT))
    ended = over(0, code, transitions=steps)
    (update,) = settled(job(1, failure_policy=rules), ended).requests
    said = finished_condition(update.object)
    assert (said.reason if said is not None else None) == reason
    assert update.object.status.job.failed == failures


def test_a_signal_counts_as_128_and_its_number() -> None:
    """As shells say it; so an out-of-memory kill can be told apart."""
    rules = (FailureRule((137,), FailureAction.FAIL_JOB),)
    killed = over(0, 1, process=Process(exit_code=None, signal=9))
    (update,) = settled(job(1, failure_policy=rules), killed).requests
    assert finished_condition(update.object).reason == "FailurePolicy"
    assert "signal 9" in finished_condition(update.object).message


@pytest.mark.parametrize(
    "steps, process",
    [
        ((record(State.STOPPING, "system:controller:drain", 0, State.RUNNING),), Process()),
        ((record(State.FAILED, "system:controller:repair", 0, State.UNKNOWN),), Process()),
        ((record(State.FAILED, AGENT, 0, State.UNKNOWN),), Process(exit_code=1)),
        ((record(State.FAILED, AGENT, 0, State.RUNNING),), Process(reason=DEADLINE_PASSED)),
        ((record(State.FAILED, AGENT, 0, State.RUNNING),), Process(reason="Rebooted")),
    ],
)
def test_evictions_and_lost_nodes_are_no_failures(steps: Any, process: Process) -> None:
    """They say nothing about the work, so they cost no retry and the next comes soon."""
    gone = replica(
        State.RELEASED, transitions=(*steps, record(State.RELEASED, AGENT)), process=process
    )
    assert tally(job(1), [gone]).failed == 0
    assert short(run(job(1, retries=0), gone, after_ms=1_000)) == [("Create", "web-0-1")]


def test_restarts_in_place_use_up_retries_too() -> None:
    """Or work that the agent restarts would never fail its job. [A7]"""
    looping = replica(
        State.RUNNING, process=Process(restarts=3), annotations={FAILURES_ANNOTATION: "2"}
    )
    assert tally(job(1), [looping]).failures == {0: 5}
    (update,) = settled(job(1, retries=4), looping).requests
    assert finished_condition(update.object).reason == "RetriesExceeded"


def test_failures_are_counted_once_however_often_they_are_seen() -> None:
    """The account, the failed one and its successor all speak of the same ones."""
    known = JobStatus(failed=2, failures={"0": 2})
    mine = [over(0, 1, 1), replica(State.PENDING, 0, 2, annotations={FAILURES_ANNOTATION: "2"})]
    mine[0] = replaced(
        mine[0], metadata=replaced(mine[0].metadata, annotations={FAILURES_ANNOTATION: "1"})
    )
    assert tally(job(1, known), mine).failures == {0: 2}
    assert tally(job(1), mine[1:]).failures == {0: 2}
    assert tally(job(1), mine[:1]).failures == {0: 2}
    assert tally(job(1, known), []).failures == {0: 2}


def test_a_job_past_its_deadline_fails_and_what_is_left_is_stopped_for_that() -> None:
    """What waits fails by the row that the lifecycle has for it. [A7, E3]"""
    stated, mine = job(2, deadline_seconds=60), [replica(), replica(State.PENDING, 1)]
    early = settled(stated, *mine, after_ms=59_000)
    assert early.wake_after_ms == 1_000
    assert finished_condition(early.requests[0].object) is None
    (update,) = settled(stated, *mine, after_ms=60_000).requests
    assert finished_condition(update.object).reason == "DeadlineExceeded"
    assert short(run(update.object, *mine)) == [("Deadline", "web-0-0"), ("Failed", "web-1-0")]


def test_a_job_that_is_complete_at_its_deadline_is_complete() -> None:
    """What was done in time counts, whenever it is looked at. [A7]"""
    (update,) = settled(job(1, deadline_seconds=60), over(0), after_ms=600_000).requests
    assert finished_condition(update.object).type == "Complete"


def test_a_job_of_nothing_is_complete_at_once() -> None:
    """There is nothing to wait for."""
    (update,) = settled(job(0)).requests
    assert finished_condition(update.object).type == "Complete"


def test_the_account_is_written_when_it_changes_and_not_too_often() -> None:
    """But the end is written at once. [I1]"""
    controller, stated = WorkloadController(), job(3)
    done = [over(0), over(1), over(2)]

    def look(count: int, ms: int) -> Any:
        return controller.reconcile(view(stated, *done[:count]), KEY, TERM, later(ms))

    (first,) = look(1, 0).requests
    account = first.object.status.job
    assert (account.completed_indexes, account.succeeded, account.active) == ("0", 1, 0)
    assert account.start_time == at()
    assert look(2, 10) == look(2, 10)
    assert (look(2, 10).requests, look(2, 10).wake_after_ms) == ((), ACCOUNT_PAUSE_MS - 10)
    assert len(look(3, 10).requests) == 1
    assert settled(first.object, done[0]).requests == ()


def test_a_finished_job_goes_when_its_time_is_over() -> None:
    """With all that is its own; without a time it stays."""
    (update,) = settled(job(1, ttl_seconds_after_finished=5), over(0)).requests
    ended = update.object
    assert (settled(ended, over(0)).requests, settled(ended, over(0)).wake_after_ms) == ((), 5_000)
    assert short(settled(ended, over(0), after_ms=5_000)) == [("Remove workloads", "web")]
    (update,) = settled(job(1), over(0)).requests
    assert settled(update.object, over(0), after_ms=10**9).wake_after_ms is None


def test_only_what_is_in_the_account_is_cleared_away_and_the_last_are_kept() -> None:
    """Until then the replica alone knows that its index is complete."""
    count = RELEASED_KEPT_MAX + 2
    done = [over(index, ms=index) for index in range(count)]
    assert short(run(job(count + 1, parallelism=0), *done)) == []
    known = JobStatus(succeeded=count, completed_indexes=f"0-{count - 1}")
    cleared = run(job(count + 1, known, parallelism=0), *done)
    assert short(cleared) == [("Remove replicas", "web-0-0"), ("Remove replicas", "web-1-0")]


def test_the_last_failed_one_of_an_index_stays_beside_its_successor() -> None:
    """A user will want to inspect it."""
    mine = [over(0, 1), over(0, 1, 1), replica(State.RUNNING, 0, 2)]
    assert short(run(job(1), *mine)) == [("Remove replicas", "web-0-0")]


# On the real authority ----------------------------------------------------------------------------


def rig_with(**stated: Any) -> Rig:
    rig = Rig()
    rig.plane.tenant()
    rig.plane.node("node-a", capacity={"cpu": "64", "memory": "256Gi"})
    made = template(restart=RestartPolicy.NEVER)
    rig.plane.workload(type=WorkloadType.JOB, job=Job(**stated), template=made)
    return rig


def end(rig: Rig, code: int = 0) -> list[int]:
    """All that run end with this code; which indexes that were."""
    rig.bind_all()
    rig.agents()
    found = [it for it in rig.all("replicas") if it.status.state is State.RUNNING]
    for one in found:
        life, to = one.status.binding.node_incarnation, State.FAILED if code else State.SUCCEEDED
        agent, process = who.agent(one.status.binding.node), Process(exit_code=code)
        ended = Move(target(one), to, "Exited", incarnation=life, process=process)
        accepted(rig.plane.ask(agent, ended))
    rig.agents()
    return [it.spec.ordinal for it in found]


def stands(rig: Rig) -> Any:
    return rig.get("workloads", "web", "acme").status


def test_a_job_runs_to_its_end_and_then_rests() -> None:
    """Each index once, never more than two at a time; afterwards nothing is written. [I1]"""
    rig = rig_with(completions=5, parallelism=2)
    ran: list[int] = []
    for _ in range(3):
        rig.run()
        ran += end(rig)
    rig.run()
    assert ran == [0, 1, 2, 3, 4]
    status = stands(rig)
    assert (status.job.completed_indexes, status.job.succeeded) == ("0-4", 5)
    assert finished_condition(rig.get("workloads", "web", "acme")).type == "Complete"
    assert (status.progress.succeeded, status.progress.desired) == (5, 5)
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []


def test_a_job_fails_after_its_retries_and_stops_the_rest() -> None:
    """Two retries are three failures; what runs besides is stopped. [A7]"""
    rig = rig_with(completions=1, retries=2)
    for _ in range(3):
        rig.run(10_000)
        assert finished_condition(rig.get("workloads", "web", "acme")) is None
        assert end(rig, 1) == [0]
    rig.run(10_000)
    assert finished_condition(rig.get("workloads", "web", "acme")).reason == "RetriesExceeded"
    assert stands(rig).job.failed == 3
    assert end(rig) == []


def test_a_deadline_ends_what_waits_and_what_runs_and_all_is_released() -> None:
    """By the rows of the lifecycle, each by its owner. [A7, I5]"""
    rig = rig_with(completions=3, deadline_seconds=30)
    rig.run()
    rig.bind_all()
    rig.agents()
    rig.plane.workload("other", type=WorkloadType.JOB, job=Job(deadline_seconds=30))
    rig.run(31_000)
    assert set(rig.states().values()) == {"Stopping", "Released"}
    rig.agents()
    rig.run()
    assert set(rig.states().values()) == {"Released"}
    assert stands(rig).progress.deadline_state == "Missed"


def test_a_success_that_is_not_in_the_account_cannot_be_deleted_away() -> None:
    """A person's deletion waits for the account, and then the replica goes."""
    rig = rig_with(completions=2, parallelism=1)
    rig.run()
    rig.leases_are_down = True
    end(rig)
    accepted(rig.plane.ask(ADMIN, Remove("replicas", "acme", "web-0-0")))
    assert rig.states() == {"web-0-0": "Released"}
    rig.leases_are_down = False
    rig.start()
    rig.run(30_000)
    assert rig.states() == {"web-1-0": "Pending"}
    assert stands(rig).job.completed_indexes == "0"


def unborn(replica: Replica, name: str) -> ObjectMeta:
    """The metadata of one like it that is to be born under this name."""
    return replaced(replica.metadata, name=name, resource_version="")


@pytest.mark.parametrize("ordinal", [0, 7])
def test_no_birth_of_a_complete_or_unknown_index_is_accepted(ordinal: int) -> None:
    """Any sender is refused, also under a lease that was valid once."""
    rig = rig_with(completions=2, parallelism=1)
    rig.run()
    end(rig)
    rig.run()
    owner = rig.get("workloads", "web", "acme")
    born = replaced(
        rig.get("replicas", "web-1-0", "acme"),
        metadata=unborn(rig.get("replicas", "web-1-0", "acme"), name=f"web-{ordinal}-9"),
    )
    born = replaced(born, spec=replaced(born.spec, ordinal=ordinal, incarnation=9))
    assert 0 in parse(owner.status.job.completed_indexes)
    refused(rig.plane.ask(WORKLOADS, Create(born)), Reason.WRONG_STATE)


def test_no_birth_for_a_finished_job_is_accepted() -> None:
    """What is over stays over."""
    rig = rig_with(completions=1)
    rig.run()
    first = rig.get("replicas", "web-0-0", "acme")
    end(rig)
    rig.run()
    again = replaced(first, metadata=unborn(first, name="web-0-1"))
    again = replaced(again, spec=replaced(again.spec, incarnation=1))
    answer = refused(rig.plane.ask(WORKLOADS, Create(again)), Reason.WRONG_STATE)
    assert "has ended: Complete" in answer.message


@pytest.mark.parametrize("cap", ["replicas", "pending"])
def test_a_tenant_without_room_for_what_is_over_has_it_cleared_away(cap: str) -> None:
    """Released replicas count towards a tenant's cap, so they must not stop the job. [E3]"""
    rig = Rig()
    rig.plane.tenant()
    rig.plane.node("node-a")
    rig.plane.quota(objects=ObjectCaps(**{cap: 2}))
    made = template(restart=RestartPolicy.NEVER)
    rig.plane.workload(type=WorkloadType.JOB, job=Job(completions=5, parallelism=1), template=made)
    for _ in range(12):
        rig.run(10_000)
        end(rig)
    rig.run(10_000)
    assert finished_condition(rig.get("workloads", "web", "acme")).type == "Complete"


def test_a_job_comes_to_the_same_end_though_every_answer_is_lost_once() -> None:
    """And with a crash after every third write. [E5, I1, N1.1]"""
    rig = rig_with(completions=4, parallelism=2, ttl_seconds_after_finished=120)
    seen: set[str] = set()

    def fate(ask: Any) -> str:
        name = repr(ask.body)
        if name in seen:
            return "done"
        seen.add(name)
        return LOST_AFTER

    rig.fate = fate
    ran: list[int] = []
    for turn in range(12):
        rig.crash_after = len(rig.sent) + 3 if turn < 6 else None
        rig.run(8_000)
        ran += end(rig)
    assert sorted(ran) == [0, 1, 2, 3]
    assert stands(rig).job.completed_indexes == "0-3"
    rig.run(240_000)
    assert rig.get("workloads", "web", "acme") is None
    assert rig.states() == {}


def test_deadline_is_the_cause_that_the_table_gives_this_controller() -> None:
    """[A9]"""
    (update,) = settled(job(1, deadline_seconds=1), replica(), after_ms=1_000).requests
    (evict,) = run(update.object, replica()).requests
    assert (evict.cause, evict.term) == (Cause.DEADLINE, TERM)
