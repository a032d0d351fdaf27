"""For each sentence of the overload scenarios bugs of which that very sentence becomes untrue."""

from __future__ import annotations

from holdfast.sim.mutants import Mutant, Plant, rewrite, swap
from tests.sim.scenarios.bugs import Bug, bug
from tests.sim.scenarios.storm_bugs import LEASES_NOT_FIRST

QUARTER, USUAL, SLOW_STORE = "overload-quarter", "overload", "overload-slow-store"
GROWTH = "holdfast.sim.scenarios.overload_speeds:GROWTH"
GREEDY = "holdfast.sim.scenarios.overload_speeds:GREEDY_TENANT"
FLOW = "holdfast.commit.flow.flow_control:"
LIMIT = "holdfast.commit.flow.concurrency_limit:ConcurrencyLimit."

# What every server had before anything was measured.
CONSTANT = rewrite(
    "holdfast.commit.flow.seats:FlowControllers.__init__", "if settings.is_measured", "if False"
)
NEVER_GROWS = rewrite(LIMIT + "_look", "if self.is_short and", "if False and")


def _bug(scenario: str, sentence: str, mistake: str, *plants: Plant) -> Bug:
    """A bug in a scenario that has no short name."""
    return Bug(scenario, sentence, Mutant(sentence, mistake, scenario, plants))


BUGS: tuple[Bug, ...] = (
    bug(QUARTER, "overload.lifeline", "seats and patience are constants", CONSTANT),
    bug(
        QUARTER,
        "overload.lifeline",
        "the limit never shrinks",
        swap(LIMIT + "_shrink", lambda *_: None),
    ),
    bug(QUARTER, "overload.lifeline", "leases wait in line with all others", LEASES_NOT_FIRST),
    bug(
        SLOW_STORE,
        "overload.calm",
        "the first probe of the time alone never ends",
        swap(LIMIT + "_end_probe", lambda *_: None),
    ),
    _bug(GROWTH, "overload.peak", "a limit that has shrunk never grows again", NEVER_GROWS),
    bug(SLOW_STORE, "overload.recovered", "a limit that has shrunk never grows again", NEVER_GROWS),
    bug(
        QUARTER,
        "overload.goodput",
        "refused callers may come back at once",
        rewrite(FLOW + "FlowController._retry_after_s", "return 1 + int(", "return int(0 * "),
    ),
    bug(
        QUARTER,
        "overload.refusals",
        "requests that will be refused wait as long as the others",
        swap(FLOW + "CALM_AFTER_MS", 0),
        swap("holdfast.commit.flow.concurrency_limit:CALM_FACTOR", 10),
    ),
    bug(
        USUAL,
        "overload.stalled",
        "reads and writes share one flow controller",
        swap("holdfast.commit.flow.seats:FlowControllers.of", lambda own, _errand: own.writes),
    ),
    _bug(
        GREEDY,
        "overload.fair",
        "turns count only requests that have waited, and pauses save up few turns",
        swap(FLOW + "FlowController.charge", lambda *_: None),
        swap("holdfast.commit.flow.fair_queues:CREDIT", 8),
    ),
)
