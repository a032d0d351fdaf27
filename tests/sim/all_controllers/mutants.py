"""Bugs planted in the controllers, and benign controls.

    python -m holdfast.sim mutants tests.sim.all_controllers.mutants:MUTANTS \
        --record tests/sim/all_controllers/found.json

searches for each over many seeds and records the seed that found it; the tests run each at its
seed.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.sim.mutants import rewrite, swap
from tests.sim.all_controllers.job_bugs import CLOCKS, CRONS, JOBS
from tests.sim.all_controllers.planting import CORRECT, benign
from tests.sim.all_controllers.status_bugs import (
    BUDGETS,
    COUNTS,
    LISTS,
    MEMORY,
    PLACES,
    ROLLOUTS,
    SILENCE,
)

RECORDED = Path(__file__).with_name("found.json")

CONTROLS = (
    benign(
        "account-written-seldom",
        "the account of a job is written every three seconds at most",
        swap(CORRECT + "jobs.account:ACCOUNT_PAUSE_MS", 3_000),
    ),
    benign(
        "fewer-kept",
        "one released replica of a job is kept for inspection",
        swap(CORRECT + "jobs.index_runs:RELEASED_KEPT_MAX", 1),
    ),
    benign(
        "highest-index-first",
        "jobs begin with indexes that never started, and then return to those that failed",
        rewrite(
            CORRECT + "jobs.index_runs:JobReplicas._creations",
            "(*retries, *_first(fresh, room))",
            "(*_first(fresh, room), *retries)",
        ),
    ),
    benign(
        "young-caches-only",
        "controllers do nothing on a cache that is older than 20 s",
        swap(
            CORRECT + "controller_runner:is_too_old",
            lambda age_ms, age_max_ms: age_ms > min(age_max_ms, 20_000),
        ),
    ),
)

MUTANTS = (
    *(*JOBS, *CLOCKS, *CRONS, *PLACES, *LISTS, *COUNTS, *SILENCE, *MEMORY, *ROLLOUTS, *BUDGETS),
    *CONTROLS,
)
