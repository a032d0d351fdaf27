"""Cron jobs: one run for each scheduled time, however late, whatever the clocks show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast.correct.jobs.cron import RUNS_AT_ONCE_MAX, only_utc
from holdfast.correct.workload.controller import WorkloadController
from holdfast.model.kinds.workload import (
    Concurrency,
    Cron,
    CronStatus,
    Job,
    MissedRuns,
    Workload,
    WorkloadType,
)
from holdfast.model.meta import Condition, ConditionStatus, Object
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Remove, Update
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.model.workload.cron import Zone
from holdfast.model.workload.jobs import finished_condition, run_of, scheduled_at
from tests.plane import START_WALL_MS, WORKLOADS, refused, template
from tests.unit.correct.controller_rig import ADMIN, LOST_AFTER, LOST_BEFORE, Rig, accepted
from tests.unit.correct.views import TERM, replaced, view, workload

KEY = ("acme", "web")
# 2026-03-01 12:00 UTC, a Sunday.
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BERLIN_HOUR = timedelta(hours=1)


def moment(**after: float) -> Instant:
    ms = wall_ms(NOON + timedelta(**after))
    return Instant(ms % 10**9, ms)


def cron(
    schedule: str = "*/5 * * * *", status: CronStatus | None = None, **stated: Any
) -> Workload:
    """A cron job that was made at noon, and is known since then."""
    made = workload(1, type=WorkloadType.CRON, cron=Cron(schedule, **stated))
    metadata = replaced(made.metadata, creation_timestamp=NOON)
    known = CronStatus(observed_generation=1, counts_from=NOON)
    return replaced(made, metadata=metadata, status=replaced(made.status, cron=status or known))


def known(**more: Any) -> CronStatus:
    return CronStatus(observed_generation=1, counts_from=NOON, **more)


def run(of: Workload, minutes: int, *, over: bool = False, dying: bool = False) -> Workload:
    """The run of this many minutes after noon."""
    made = run_of(of, NOON + timedelta(minutes=minutes))
    metadata = replaced(
        made.metadata,
        uid=f"uid-{made.name}",
        resource_version="14",
        deletion_timestamp=NOON if dying else None,
    )
    made = replaced(made, metadata=metadata)
    if over:
        said = Condition("Complete", ConditionStatus.TRUE, 1, last_transition_time=NOON)
        made = replaced(made, status=replaced(made.status, conditions=(said,)))
    return made


def look(*objects: Object, zones: Any = only_utc, **after: float) -> Any:
    now = moment(**after)
    return WorkloadController(zones).reconcile(view(*objects, now=now), KEY, TERM, now)


def minutes_of(request: Any) -> float:
    """How many minutes after noon a run that is asked for is scheduled."""
    found = scheduled_at("web", request.object.name)
    assert found is not None
    return (found - NOON) / timedelta(minutes=1)


def started(plan: Any) -> list[float]:
    births = [it for it in plan.requests if isinstance(it, Create)]
    return [minutes_of(it) for it in births]


def said(plan: Any) -> CronStatus:
    (update,) = [it for it in plan.requests if isinstance(it, Update)]
    found: CronStatus = update.object.status.cron
    return found


def test_a_new_cron_job_says_when_it_runs_and_waits() -> None:
    """It counts from its creation, and the next moment is known at once."""
    fresh = cron(status=CronStatus())
    plan = look(fresh, minutes=1)
    assert (said(plan).counts_from, said(plan).observed_generation) == (NOON, 1)
    assert said(plan).next_schedule == NOON + timedelta(minutes=5)
    assert plan.wake_after_ms == 60_000, "a calendar may be set while it waits"
    assert not started(plan)


def test_a_run_is_a_job_named_after_its_minute() -> None:
    """Its spec is the cron job's, its owner too, and asking twice asks for the same."""
    of = cron(status=known(next_schedule=NOON))
    plan = look(of, minutes=5, seconds=1)
    assert started(plan) == [5]
    (create,) = plan.requests
    born = create.object
    assert (born.spec.type, born.spec.cron) == (WorkloadType.JOB, None)
    assert born.spec.template == of.spec.template
    (owner,) = born.metadata.owner_references
    assert (owner.name, owner.uid, owner.controller) == ("web", "uid-web", True)
    assert plan == look(of, minutes=5, seconds=1)
    assert plan.wake_after_ms == 60_000


def test_of_several_missed_moments_the_last_is_run_once() -> None:
    """However long no controller ran."""
    assert started(look(cron(), hours=30)) == [30 * 60]
    of = cron(status=known(last_schedule=NOON + timedelta(minutes=10)))
    assert started(look(of, minutes=29)) == [25]
    assert started(look(of, minutes=14)) == []


@pytest.mark.parametrize(
    "stated, late, because",
    [
        ({"missed": MissedRuns.SKIP}, {"minutes": 5, "seconds": 60}, None),
        ({"missed": MissedRuns.SKIP}, {"minutes": 5, "seconds": 61}, "Missed"),
        ({"starting_deadline_seconds": 100}, {"minutes": 5, "seconds": 100}, None),
        ({"starting_deadline_seconds": 100}, {"minutes": 5, "seconds": 101}, "TooLate"),
        ({"starting_deadline_seconds": 10**8}, {"minutes": 9}, None),
    ],
)
def test_what_is_too_late_is_skipped_and_said(
    stated: dict[str, Any], late: dict[str, float], because: str | None
) -> None:
    """A run that did not happen has a reason that people can see. [E3]"""
    plan = look(cron(**stated), **late)
    if because is None:
        assert started(plan) == [5]
        return
    assert not started(plan)
    assert said(plan).skipped_because == because
    assert said(plan).last_skipped == NOON + timedelta(minutes=5)
    assert not started(look(cron(status=said(plan), **stated), **late))


@pytest.mark.parametrize(
    "concurrency, starts, removes",
    [
        (Concurrency.FORBID, [], []),
        (Concurrency.ALLOW, [10], []),
        (Concurrency.REPLACE, [10], [5]),
    ],
)
def test_a_run_that_still_goes_on(
    concurrency: Concurrency, starts: list[float], removes: list[int]
) -> None:
    """Forbid skips, Allow runs both, Replace stops the old one once the new one is there: a run
    that is refused must not cost the last one."""
    status = known(last_schedule=NOON + timedelta(minutes=5))
    of = cron(concurrency=concurrency, status=status)
    plan = look(of, run(of, 0, over=True), run(of, 5), minutes=10)
    assert started(plan) == starts
    assert not [it for it in plan.requests if isinstance(it, Remove)]
    after = cron(
        concurrency=concurrency, status=replaced(status, last_schedule=NOON + timedelta(minutes=10))
    )
    later = look(after, run(of, 5), run(of, 10), minutes=11)
    gone = [it.name for it in later.requests if isinstance(it, Remove)]
    assert gone == [run(of, at).name for at in removes]
    if concurrency is Concurrency.FORBID:
        assert said(plan).skipped_because == "StillRunning"


def test_runs_that_never_end_do_not_pile_up_for_ever() -> None:
    """Also where all of them may run at once."""
    of = cron("* * * * *", concurrency=Concurrency.ALLOW)
    going = [run(of, -number) for number in range(RUNS_AT_ONCE_MAX)]
    plan = look(of, *going, minutes=1)
    assert not started(plan)
    assert said(plan).skipped_because == "TooManyRuns"
    assert len(said(plan).active) == 20


def test_a_run_that_is_leaving_does_not_hold_up_the_next() -> None:
    """Who deleted it does not want to wait for it."""
    of = cron()
    assert started(look(of, run(of, 0, dying=True), minutes=5)) == [5]


def test_a_suspended_cron_job_starts_nothing_and_makes_up_for_nothing() -> None:
    """Resuming is a change of the spec, from which its schedule restarts."""
    of = cron(suspend=True)
    assert not started(look(of, minutes=62))
    metadata = replaced(of.metadata, generation=2)
    resumed = replaced(cron(status=of.status.cron), metadata=metadata)
    first = look(resumed, minutes=62)
    assert not started(first)
    again = replaced(resumed, status=replaced(resumed.status, cron=said(first)))
    assert not started(look(again, minutes=64))
    assert started(look(again, minutes=65)) == [65]


def test_a_change_in_the_very_minute_of_a_run_does_not_cancel_it() -> None:
    """A new image at noon sharp is no wish to skip the run at noon."""
    of = cron()
    changed = replaced(of, metadata=replaced(of.metadata, generation=2))
    plan = look(changed, minutes=5, seconds=20)
    changed = replaced(changed, status=replaced(changed.status, cron=said(plan)))
    assert started(look(changed, minutes=5, seconds=21)) == [5]


def test_a_clock_that_is_set_back_starts_nothing_again() -> None:
    """What was started is known by its moment, not by the clock. [E5]"""
    moments = tuple(NOON + timedelta(minutes=it) for it in range(5, 31, 5))
    of = cron(status=known(last_schedule=moments[-1], recent_schedules=moments))
    for minutes in (4, 5, 12, 30, 34):
        assert not started(look(of, minutes=minutes))
    assert started(look(of, minutes=35)) == [35]


def test_old_finished_runs_go_and_the_last_stay() -> None:
    """As many as `history` says; what still goes on does not count."""
    of = cron(history=2)
    runs = [run(of, at, over=True) for at in (-20, -15, -10)]
    plan = look(of, *runs, run(of, -5), minutes=1)
    assert [it.name for it in plan.requests if isinstance(it, Remove)] == [runs[0].name]


def test_an_unknown_zone_is_reported_and_nothing_is_started() -> None:
    """Rather than at a wrong time. [E3]"""
    of = cron(time_zone="Mars/Olympus")
    plan = look(of, minutes=7)
    assert not started(plan)
    assert "Mars/Olympus" in said(plan).trouble
    assert plan.wake_after_ms == 60_000


def _clocks_jump(name: str) -> Zone | None:
    """One hour ahead of UTC until 01:00 UTC on 29 March 2026, then two, until 25 October."""
    begins, ends = datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)

    def ahead(at: datetime) -> timedelta:
        return 2 * BERLIN_HOUR if begins <= at < ends else BERLIN_HOUR

    return ahead if name == "Europe/Berlin" else None


@pytest.mark.parametrize(
    "day, runs",
    [
        # 02:30 does not exist on this day: the run is made up for when clocks have jumped.
        (datetime(2026, 3, 29, tzinfo=UTC), ["01:00"]),
        # It comes twice on this day, and is run once.
        (datetime(2026, 10, 25, tzinfo=UTC), ["00:30"]),
        (datetime(2026, 7, 1, tzinfo=UTC), ["00:30"]),
    ],
)
def test_a_time_of_the_day_comes_once_a_day_also_where_clocks_jump(
    day: datetime, runs: list[str]
) -> None:
    """Looked at every quarter of an hour, for a whole day in UTC."""
    status = CronStatus(observed_generation=1, counts_from=day)
    found = []
    for quarter in range(96):
        at = wall_ms(day + timedelta(minutes=15 * quarter))
        of = cron("30 2 * * *", status=status, time_zone="Europe/Berlin")
        now = Instant(at % 10**9, at)
        plan = WorkloadController(_clocks_jump).reconcile(view(of, now=now), KEY, TERM, now)
        for create in (it for it in plan.requests if isinstance(it, Create)):
            when = scheduled_at("web", create.object.name)
            assert when is not None
            found.append(when.strftime("%H:%M"))
            status = replaced(status, last_schedule=when)
    assert found == runs


def test_a_dying_cron_job_takes_its_runs_along_and_waits_for_them() -> None:
    """Each is asked to go once."""
    of = cron()
    dying = replaced(of, metadata=replaced(of.metadata, deletion_timestamp=NOON))
    both = [run(of, 0), run(of, 5, dying=True)]
    (remove,) = look(dying, *both, minutes=6).requests
    assert remove.name == both[0].name
    assert look(dying, both[1], minutes=6).requests == ()
    (let_go,) = look(dying, minutes=6).requests
    assert isinstance(let_go, Update)


# On the real authority ----------------------------------------------------------------------------


def rig_with(schedule: str = "* * * * *", **stated: Any) -> Rig:
    rig = Rig()
    rig.plane.tenant()
    rig.plane.node("node-a")
    rig.plane.workload(
        type=WorkloadType.CRON,
        cron=Cron(schedule, **stated),
        template=template(),
        job=Job(completions=1),
    )
    return rig


def runs_in(rig: Rig) -> list[str]:
    return [it.name for it in rig.all("workloads") if it.name != "web"]


def test_a_cron_job_runs_every_minute_and_keeps_its_history() -> None:
    """Each run is a job that ends; the cron job says what was started."""
    rig = rig_with(history=2, concurrency=Concurrency.ALLOW)
    names: dict[str, None] = {}
    for _ in range(5 * 6):
        rig.run(10_000)
        rig.bind_all()
        rig.agents()
        for one in rig.all("replicas"):
            if one.status.state.value == "Running":
                rig.ends(one, state=type(one.status.state)("Succeeded"))
        names.update(dict.fromkeys(runs_in(rig)))
    rig.run(5_000)
    minutes = sorted(scheduled_at("web", it) for it in names)
    assert len(minutes) == 5
    assert {later - sooner for sooner, later in pairwise(minutes)} == {timedelta(minutes=1)}
    left = [it for it in rig.all("workloads") if it.name != "web" and finished_condition(it)]
    assert len(left) == 2
    status = rig.get("workloads", "web", "acme").status.cron
    assert status.last_schedule == minutes[-1]


@pytest.mark.parametrize("fate", [LOST_AFTER, LOST_BEFORE])
def test_no_moment_is_run_twice_though_answers_are_lost_and_controllers_die(fate: str) -> None:
    """Nor after its run is gone again: the cron job itself says what was started. [E5, N1.1]"""
    rig = rig_with(concurrency=Concurrency.ALLOW)
    born: list[str] = []
    turns = 0

    def spoil(ask: Any) -> str:
        nonlocal turns
        turns += 1
        return fate if turns % 3 == 0 else "done"

    rig.fate = spoil
    for turn in range(20):
        rig.crash_after = len(rig.sent) + 1 + turn % 4
        rig.run(20_000)
        for name in runs_in(rig):
            born.append(name)
            accepted(rig.plane.ask(ADMIN, Remove("workloads", "acme", name)))
        rig.run(5_000)
    assert len(born) == len(set(born))
    assert len(born) >= 7


def test_a_run_is_refused_that_was_started_before_or_is_not_due_or_not_of_its_cron() -> None:
    """The commit proves it, whatever a controller believes. [A9]"""
    rig = rig_with()
    rig.run(61_000)
    of = rig.get("workloads", "web", "acme")
    last = of.status.cron.last_schedule
    assert last is not None
    (name,) = runs_in(rig)

    def ask(run: Workload) -> Any:
        return rig.plane.ask(WORKLOADS, Create(run))

    refused(ask(run_of(of, last)), Reason.EXISTS)
    accepted(rig.plane.ask(ADMIN, Remove("workloads", "acme", name)))
    rig.run(2_000)
    assert runs_in(rig) == []
    refused(ask(run_of(of, last)), Reason.EXISTS)
    refused(ask(run_of(of, last - timedelta(minutes=9))), Reason.EXISTS)
    refused(ask(run_of(of, last + timedelta(minutes=9))), Reason.WRONG_STATE)
    other = run_of(of, last + timedelta(minutes=1))
    named = replaced(other, metadata=replaced(other.metadata, name="web-more"))
    refused(ask(named), Reason.NOT_ALLOWED)
    odd = replaced(other, spec=replaced(other.spec, replicas=7))
    refused(ask(odd), Reason.STALE_OBJECT)
    orphan = replaced(other, metadata=replaced(other.metadata, owner_references=()))
    refused(ask(orphan), Reason.MISSING)
    of = rig.get("workloads", "web", "acme")
    service = replaced(of, spec=replaced(of.spec, replicas=3))
    refused(rig.plane.ask(WORKLOADS, Update(service)), Reason.NOT_OWNER)


@pytest.mark.parametrize("state", ["suspended", "dying"])
def test_no_run_is_created_once_its_cron_job_was_suspended_or_deleted(state: str) -> None:
    """A controller that does not know it yet is refused. [A9]"""
    rig = rig_with()
    rig.run(1_000)
    of = rig.get("workloads", "web", "acme")
    rig.plane.elapsed_ms += 120_000
    due = timestamp((START_WALL_MS + rig.now_ms) // 60_000 * 60_000)
    if state == "dying":
        accepted(rig.plane.ask(ADMIN, Remove("workloads", "acme", "web")))
        reason = Reason.TERMINATING
    else:
        stated = replaced(of.spec, cron=replaced(of.spec.cron, suspend=True))
        accepted(rig.plane.ask(ADMIN, Update(replaced(of, spec=stated))))
        reason = Reason.WRONG_STATE
    refused(rig.plane.ask(WORKLOADS, Create(run_of(of, due))), reason)


def test_a_run_that_is_refused_says_why_on_its_cron_job() -> None:
    """Here a tenant that accepts no new work. [E3]"""
    rig = rig_with()
    rig.run(1_000)
    tenant = rig.get("tenants", "acme")
    held = replaced(tenant, spec=replaced(tenant.spec, suspended=True))
    accepted(rig.plane.ask(ADMIN, Update(held)))
    rig.writes()
    rig.run(62_000)
    assert "accepts no new work" in rig.get("workloads", "web", "acme").status.cron.trouble
    # It is tried again after pauses that grow, and not as fast as answers come.
    assert rig.writes().count("Create") < 12
    free = rig.get("tenants", "acme")
    accepted(
        rig.plane.ask(ADMIN, Update(replaced(free, spec=replaced(free.spec, suspended=False))))
    )
    rig.run(62_000)
    assert len(runs_in(rig)) == 1
    assert rig.get("workloads", "web", "acme").status.cron.trouble == ""


def test_deleting_a_cron_job_leaves_nothing() -> None:
    """Neither runs nor their replicas."""
    rig = rig_with()
    rig.run(61_000)
    assert len(runs_in(rig)) == 1
    accepted(rig.plane.ask(ADMIN, Remove("workloads", "acme", "web")))
    rig.run(10_000)
    assert (rig.all("workloads"), rig.all("replicas")) == ([], [])


def test_what_is_still_to_come_keeps_nothing_from_being_started() -> None:
    """It was written when a calendar was ahead."""
    ahead = NOON + timedelta(days=30)
    status = known(last_schedule=ahead, recent_schedules=(ahead,), last_skipped=ahead)
    assert started(look(cron(status=status), minutes=5, seconds=1)) == [5]
    newly = replaced(status, counts_from=ahead)
    assert started(look(cron(status=newly), minutes=5, seconds=1)) == [5]
    assert not started(look(cron(status=newly), minutes=6, seconds=1))
