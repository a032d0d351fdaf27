"""Bugs planted in the end-to-end world, and benign controls.

    python -m holdfast.sim mutants tests.sim.end_to_end.mutants:MUTANTS \
        --record tests/sim/end_to_end/found.json

searches for each over many seeds and records the seed that found it; the tests run each at its
seed.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.sim.mutants import rewrite, swap
from tests.sim.end_to_end.hung_bugs import HANGING
from tests.sim.end_to_end.installation_bugs import INSTALLATIONS
from tests.sim.end_to_end.node_bugs import DEADLINES, LIVES
from tests.sim.end_to_end.plane_bugs import CACHES, NODES, WORK
from tests.sim.end_to_end.planting import AGENT, CORRECT, MARKED_EARLY, OBSERVE, benign
from tests.sim.end_to_end.tight_bugs import COUNTING, LATER_LIVES, OBSERVERS, SENDERS, WAITING
from tests.sim.end_to_end.timing_bugs import TIMINGS

RECORDED = Path(__file__).with_name("found.json")

CONTROLS = (
    benign(
        "acts-on-an-old-lease",
        "a controller acts on a lease that was not acknowledged lately; the commit refuses what "
        "is stale",
        rewrite(
            CORRECT + "controller_worker:ControllerWorker.term",
            "if not self.election.is_acknowledged(now):",
            "if False:",
        ),
    ),
    benign(
        "lost-answers-not-read",
        "after a lost answer the same request is sent again, under the same id, without a read",
        rewrite(
            CORRECT + "controller_worker:ControllerWorker.answered",
            "return call",
            "flight.is_failed = True",
        ),
    ),
    benign(
        "old-life-left-to-its-deadline",
        "an agent does not stop work of an earlier life of its node: nothing renews its deadline, "
        "and the next life waits for its end",
        rewrite(AGENT + "next_step:_of_another_life", "if not work.is_kept:", "if False:"),
    ),
    benign(
        "marked-early",
        "nodes are marked after one and a half missed renewals: safety does not rest on late marks",
        MARKED_EARLY,
    ),
    benign(
        "impatient-streams",
        "streams are opened again after shorter pauses",
        swap(OBSERVE + "cache:RETRY_MAX_MS", 2_500),
    ),
    benign(
        "looks-less-often-than-it-renews",
        "a standby reads a lease twice in its duration",
        swap(OBSERVE + "leader_election:LOOKS_PER_LEASE", 2),
    ),
    benign(
        "fewer-starts-at-once",
        "an agent starts two attempts at a time",
        swap(AGENT + "replica_workers:LAUNCHES_MAX", 2),
    ),
)

MUTANTS = (
    *DEADLINES,
    *LIVES,
    *NODES,
    *WORK,
    *CACHES,
    *COUNTING,
    *OBSERVERS,
    *LATER_LIVES,
    *WAITING,
    *SENDERS,
    *HANGING,
    *INSTALLATIONS,
    *TIMINGS,
    *CONTROLS,
)
