"""Planted bugs about work that ends: jobs and cron jobs."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite, swap
from tests.sim.keeping.planting import CALM, COMMIT, CORRECT, bug

JOBS = (
    bug(
        "account-forgets",
        "what is complete is counted from the replicas alone, and the commit lets it shrink",
        rewrite(
            CORRECT + "tally:tally",
            "parse(account.completed_indexes).plus(done)",
            "parse('').plus(done)",
        ),
        rewrite(
            COMMIT + "replicas:_done_refusal",
            "elif ordinal in parse(workload.status.job.completed_indexes):",
            "elif False:",
        ),
    ),
    bug(
        "cleared-before-counted",
        "replicas are cleared away before their success is in the account",
        rewrite(CORRECT + "jobs:Jobs._go_on", "if ordinal in known:", "if True:"),
        swap(CORRECT + "jobs:RELEASED_KEPT_MAX", 0),
        swap(COMMIT + "replicas:uncounted", lambda _draft, _replica: False),
    ),
    bug(
        "failed-index-given-up",
        "an index that has failed once is not run again, and the job waits for it",
        rewrite(CORRECT + "jobs:Jobs._go_on", "retries.append(ordinal)", "pass"),
    ),
    bug(
        "failures-not-carried",
        "the next incarnation does not know how often its index has failed",
        rewrite(CORRECT + "jobs:Jobs._births_of", "if counted.failures.get(ordinal):", "if False:"),
        rewrite(
            CORRECT + "tally:tally",
            "{int(index): count for index, count in account.failures.items()}",
            "{}",
        ),
    ),
    bug(
        "parallelism-ignored",
        "all indexes that are left are started, however many run",
        rewrite(CORRECT + "jobs:Jobs._go_on", "most - taken, term)\n", "most, term)\n"),
    ),
    bug(
        "pause-not-heeded",
        "work of a job that was paused runs on",
        rewrite(CORRECT + "jobs:_surplus", "if count <= 0:", "if True:"),
    ),
    bug(
        "deadline-not-kept",
        "a job may take as long as it likes",
        rewrite(CORRECT + "verdict:verdict", "now.wall_ms >= due_ms", "False"),
    ),
    bug(
        "left-running-after-the-end",
        "nobody stops what is left of a job that has ended",
        rewrite(CORRECT + "jobs:Jobs._wound_up", "yield from stop(replica, cause, term)", "pass"),
    ),
    bug(
        "complete-too-early",
        "a job is complete when all of its indexes were started",
        rewrite(
            CORRECT + "verdict:verdict",
            "len(counted.completed)",
            "len({*counted.lives, *range(len(counted.completed))})",
        ),
    ),
    bug(
        "stopped-counts-as-done",
        "a replica that was stopped counts as one that has succeeded",
        rewrite(
            CORRECT + "tally:succeeded",
            "step.to is State.SUCCEEDED",
            "step.to in (State.SUCCEEDED, State.STOPPING)",
        ),
    ),
    bug(
        "lost-nodes-cost-retries",
        "work that its node has lost counts as failed",
        rewrite(
            CORRECT + "tally:verdict_on",
            "if step is None or step.to is not State.FAILED or process.reason in _OF_THE_NODE:",
            "if step is None or step.to is not State.FAILED:",
        ),
    ),
    bug(
        "finished-jobs-stay",
        "nobody removes a job whose time after its end is over",
        rewrite(
            CORRECT + "accounts:Accounts.settled",
            "return Plan((_removed(job),))",
            "return Plan()",
        ),
    ),
    bug(
        "end-written-again-and-again",
        "the moment of the end is written anew at every look",
        rewrite(
            CORRECT + "accounts:_account",
            "timestamp(now.wall_ms) if has_ended else before.completion_time",
            "timestamp(now.wall_ms)",
        ),
    ),
)

CRONS = (
    bug(
        "moment-run-twice",
        "nobody asks whether a moment had its run, neither the controller nor the commit",
        rewrite(
            CORRECT + "crons:_frontier",
            "(status.last_schedule, status.last_skipped, status.counts_from)",
            "(status.last_skipped, status.counts_from)",
        ),
        rewrite(
            COMMIT + "runs:_time_refusal", "if last is not None and scheduled <= last:", "if False:"
        ),
    ),
    bug(
        "forbid-ignored",
        "a run is started while the last one goes on",
        rewrite(
            CORRECT + "crons:_skipped_because",
            "if stated.concurrency is Concurrency.FORBID and active:",
            "if False:",
        ),
    ),
    bug(
        "history-grows",
        "finished runs are never cleared away",
        rewrite(CORRECT + "crons:_outdated", "over[: max(0, len(over) - stated.history)]", "()"),
    ),
    bug(
        "nobody-wakes-for-the-moment",
        "the next moment of a schedule is found when somebody happens to look",
        swap(CORRECT + "crons:_until", lambda _coming, _now: None),
    ),
    bug(
        "runs-while-it-rests",
        "a cron job that rests is started all the same, and the commit takes it",
        rewrite(
            CORRECT + "crons:Crons.kept",
            "due = None if stated.suspend else last_fire",
            "due = last_fire",
        ),
        rewrite(COMMIT + "runs:run_refusal", "if cron.spec.cron.suspend:", "if False:"),
    ),
    bug(
        "skipped-and-not-said",
        "a moment that is skipped is skipped without a word",
        rewrite(
            CORRECT + "crons:Crons.kept",
            "before = msgspec.structs.replace(before, last_skipped=due, skipped_because=because)",
            "pass",
        ),
        world=CALM,
    ),
)
