"""Planted bugs about work that ends: jobs and cron jobs."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite, swap
from tests.sim.all_controllers.planting import CALENDARS, COMMIT, CORRECT, bug

JOBS = (
    bug(
        "cleared-before-counted",
        "replicas are cleared away before their success is in the account",
        rewrite(CORRECT + "jobs.index_runs:JobReplicas._go_on", "if ordinal in known:", "if True:"),
        swap(CORRECT + "jobs.index_runs:RELEASED_KEPT_MAX", 0),
        swap(
            COMMIT + "lifecycle.replica_birth:is_success_uncounted", lambda _draft, _replica: False
        ),
    ),
    bug(
        "failed-index-given-up",
        "an index that has failed once is not run again, and the job waits for it",
        rewrite(CORRECT + "jobs.index_runs:JobReplicas._go_on", "retries.append(ordinal)", "pass"),
    ),
    bug(
        "parallelism-ignored",
        "all indexes that are left are started, however many run",
        rewrite(
            CORRECT + "jobs.index_runs:JobReplicas._go_on", "most - taken, term)\n", "most, term)\n"
        ),
    ),
    bug(
        "complete-too-early",
        "a job is complete when all of its indexes were started",
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
            CORRECT + "jobs.account:succeeded",
            "step.to is State.SUCCEEDED",
            "step.to in (State.SUCCEEDED, State.STOPPING)",
        ),
    ),
    bug(
        "lost-nodes-cost-retries",
        "work that its node has lost counts as failed",
        rewrite(
            CORRECT + "jobs.account:verdict_on",
            "if step is None or step.to is not State.FAILED or process.reason in _OF_THE_NODE:",
            "if step is None or step.to is not State.FAILED:",
        ),
    ),
    bug(
        "end-written-again-and-again",
        "the moment of the end is written anew at every look",
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
        "a job has missed its deadline when a controller says so, whatever its calendar shows",
        swap(COMMIT + "objects.job_times:end_refusal", lambda *_: None),
        world=CALENDARS,
    ),
    bug(
        "removed-by-the-controllers-clock",
        "a job is over for long enough when a controller says so, whatever its calendar shows",
        swap(COMMIT + "objects.job_times:life_refusal", lambda *_: None),
        world=CALENDARS,
    ),
)

CRONS = (
    bug(
        "blocked-by-a-moment-to-come",
        "a moment that was written by a calendar ahead keeps a cron job from running until then",
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
        "a pause ends when the calendar says so, wherever it was set meanwhile",
        rewrite(
            CORRECT + "pacing:MonotonicWaits.left_ms",
            "return max(0, known[1] + pause_ms - now.monotonic_ms)",
            "return max(0, wall_ms(began) + pause_ms - now.wall_ms)",
        ),
    ),
    bug(
        "forbid-ignored",
        "a run is started while the last one goes on",
        rewrite(
            CORRECT + "jobs.cron:_skipped_because",
            "if stated.concurrency is Concurrency.FORBID and active:",
            "if False:",
        ),
    ),
    bug(
        "history-grows",
        "finished runs are never cleared away",
        rewrite(
            CORRECT + "jobs.cron:_outdated", "over[: max(0, len(over) - stated.history)]", "()"
        ),
    ),
    bug(
        "runs-while-it-rests",
        "a cron job that rests is started all the same, and the commit takes it",
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
