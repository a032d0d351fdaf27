"""Planted bugs in jobs and cron jobs."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite, swap
from tests.sim.all_controllers.planting import CALENDARS, COMMIT, CORRECT, bug

JOBS = (
    bug(
        "cleared-before-counted",
        "replicas are removed before their success is in the account",
        rewrite(CORRECT + "jobs.index_runs:JobReplicas._go_on", "if ordinal in known:", "if True:"),
        swap(CORRECT + "jobs.index_runs:RELEASED_KEPT_MAX", 0),
        swap(
            COMMIT + "lifecycle.replica_birth:is_success_uncounted", lambda _draft, _replica: False
        ),
    ),
    bug(
        "failed-index-given-up",
        "an index that has failed once is not run again, and the job never finishes",
        rewrite(CORRECT + "jobs.index_runs:JobReplicas._go_on", "retries.append(ordinal)", "pass"),
    ),
    bug(
        "parallelism-ignored",
        "all remaining indexes are started, however many run",
        rewrite(
            CORRECT + "jobs.index_runs:JobReplicas._go_on", "most - taken, term)\n", "most, term)\n"
        ),
    ),
    bug(
        "complete-too-early",
        "a job is complete when all of its indexes have started",
        rewrite(
            CORRECT + "jobs.account:verdict",
            "len(counted.completed)",
            "len({*counted.lives, *range(len(counted.completed))})",
        ),
    ),
    bug(
        "stopped-counts-as-done",
        "a replica that was stopped counts as one that has succeeded",
        rewrite(
            CORRECT + "jobs.account:has_succeeded",
            "step.to is State.SUCCEEDED",
            "step.to in (State.SUCCEEDED, State.STOPPING)",
        ),
    ),
    bug(
        "lost-nodes-cost-retries",
        "work that was lost with its node counts as failed",
        rewrite(
            CORRECT + "jobs.account:verdict_on",
            "if step is None or step.to is not State.FAILED or process.reason in _OF_THE_NODE:",
            "if step is None or step.to is not State.FAILED:",
        ),
    ),
    bug(
        "end-written-again-and-again",
        "the completion time is rewritten at every round",
        rewrite(
            CORRECT + "jobs.account:_account",
            "timestamp(now.wall_ms) if has_ended else before.completion_time",
            "timestamp(now.wall_ms)",
        ),
    ),
)

CLOCKS = (
    bug(
        "deadline-by-the-controllers-clock",
        "a job misses its deadline by the controller's clock, whatever the servers' calendars show",
        swap(COMMIT + "objects.job_times:end_refusal", lambda *_: None),
        world=CALENDARS,
    ),
    bug(
        "removed-by-the-controllers-clock",
        "a finished job expires by the controller's clock, whatever the servers' calendars show",
        swap(COMMIT + "objects.job_times:life_refusal", lambda *_: None),
        world=CALENDARS,
    ),
)

CRONS = (
    bug(
        "blocked-by-a-future-time",
        "a time that was written while a calendar was ahead blocks a cron job until then",
        rewrite(
            CORRECT + "jobs.cron:_frontier",
            "known = (last_run(status, at), status.last_skipped, status.counts_from)",
            "known = (status.last_schedule, status.last_skipped, status.counts_from)\n"
            "    return max((it for it in known if it is not None), default=_minute_of(at))",
        ),
        rewrite(
            COMMIT + "objects.job_times:_time_refusal",
            "last = last_run(cron.status.cron, now)",
            "last = cron.status.cron.last_schedule",
        ),
        world=CALENDARS,
    ),
    bug(
        "pauses-by-the-calendar",
        "a pause ends by the calendar, even if the calendar was set meanwhile",
        rewrite(
            CORRECT + "pacing:MonotonicWaits.left_ms",
            "return max(0, known[1] + pause_ms - now.monotonic_ms)",
            "return max(0, wall_ms(began) + pause_ms - now.wall_ms)",
        ),
    ),
    bug(
        "forbid-ignored",
        "a run is started while the last one is active",
        rewrite(
            CORRECT + "jobs.cron:_skipped_because",
            "if stated.concurrency is Concurrency.FORBID and active:",
            "if False:",
        ),
    ),
    bug(
        "history-grows",
        "finished runs are never removed",
        rewrite(
            CORRECT + "jobs.cron:_outdated", "over[: max(0, len(over) - stated.history)]", "()"
        ),
    ),
    bug(
        "runs-while-suspended",
        "a suspended cron job is run all the same, and the commit accepts it",
        rewrite(
            CORRECT + "jobs.cron:CronRuns.reconcile",
            "due = None if stated.suspend else last_fire",
            "due = last_fire",
        ),
        rewrite(
            COMMIT + "objects.job_times:run_refusal", "if cron.spec.cron.suspend:", "if False:"
        ),
    ),
)
