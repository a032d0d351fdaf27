"""How the work of this world behaves: its command says it, as in `work crashes 2000`.

`people` writes such commands, `table` lets the work behave so, and checkers judge by them what the
agent was right to do. Ages are milliseconds since the start of the attempt.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.agent.runtime_protocol import Check, Launch
from holdfast.model.kinds.template import ExecAction, Probe, Probes

_ASK = ExecAction(("ask",))
# A start-up probe that gives up soon, and one that waits for as long as any start here takes.
IMPATIENT = Probe(exec=_ASK, period_seconds=1, failure_threshold=4)
PATIENT = Probe(exec=_ASK, period_seconds=1, failure_threshold=40)
READINESS = Probe(exec=_ASK, period_seconds=2, failure_threshold=2)
LIVENESS = Probe(exec=_ASK, period_seconds=2, failure_threshold=2)
# How long the farewell of work takes that says it in time.
FAREWELL_MS = 1_500
# Of work that has the hiccups, so many questions in a row are answered before one is not.
HICCUP_EVERY = 3


class Sort(StrEnum):
    """The sorts of work."""

    STEADY = "steady"
    # It ends by itself at an age: with an error, well, or killed for want of memory.
    CRASHES = "crashes"
    FINISHES = "finishes"
    EATS = "eats"
    # It has started only at an age; never; or it is not ready any more from an age on.
    SLOW = "slow"
    STUCK = "stuck"
    SULKS = "sulks"
    # It does not live any more from an age on; or now and then does not answer, and is well.
    SICKENS = "sickens"
    HICCUPS = "hiccups"
    # It ignores every signal and never finishes its farewell.
    HANGS = "hangs"


PROBES = {
    Sort.SLOW: Probes(startup=PATIENT, readiness=READINESS, liveness=LIVENESS),
    Sort.STUCK: Probes(startup=IMPATIENT),
    Sort.SULKS: Probes(readiness=READINESS, liveness=LIVENESS),
    Sort.SICKENS: Probes(readiness=READINESS, liveness=LIVENESS),
    Sort.HICCUPS: Probes(liveness=LIVENESS),
}


class Manner(msgspec.Struct, frozen=True, gc=False):
    """What one command says."""

    sort: Sort
    at_ms: int

    @property
    def ends_itself(self) -> bool:
        return self.sort in (Sort.CRASHES, Sort.FINISHES, Sort.EATS)

    def answers(self, kind: Check, age_ms: int, asked_before: int) -> bool:
        """Whether it gives a good answer to a probe."""
        match self.sort:
            case Sort.SLOW:
                return age_ms >= self.at_ms
            case Sort.STUCK:
                return kind is not Check.STARTUP
            case Sort.SULKS:
                return kind is not Check.READINESS or age_ms < self.at_ms
            case Sort.SICKENS:
                return kind is not Check.LIVENESS or age_ms < self.at_ms
            case Sort.HICCUPS:
                return asked_before % HICCUP_EVERY != HICCUP_EVERY - 1
        return True

    def ill_at_ms(self) -> int | None:
        """From which age on it is right to end it, if ever."""
        match self.sort:
            case Sort.STUCK:
                return 0
            case Sort.SICKENS:
                return self.at_ms
        return None

    def is_ready(self, age_ms: int) -> bool:
        """Whether it is ready at an age."""
        match self.sort:
            case Sort.SLOW:
                return age_ms >= self.at_ms
            case Sort.SULKS:
                return age_ms < self.at_ms
        return self.sort is not Sort.STUCK


def manner_of(launch: Launch) -> Manner:
    """How the work of a launch behaves."""
    _, sort, at_ms = launch.template.command
    return Manner(Sort(sort), int(at_ms))
