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
PRE_STOP_MS = 1_500
# Of work that has the hiccups, so many questions in a row are answered before one is not.
HICCUP_EVERY = 3


class BehaviourKind(StrEnum):
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
    BehaviourKind.SLOW: Probes(startup=PATIENT, readiness=READINESS, liveness=LIVENESS),
    BehaviourKind.STUCK: Probes(startup=IMPATIENT),
    BehaviourKind.SULKS: Probes(readiness=READINESS, liveness=LIVENESS),
    BehaviourKind.SICKENS: Probes(readiness=READINESS, liveness=LIVENESS),
    BehaviourKind.HICCUPS: Probes(liveness=LIVENESS),
}


class Behaviour(msgspec.Struct, frozen=True, gc=False):
    """What one command says."""

    kind: BehaviourKind
    at_ms: int

    @property
    def ends_itself(self) -> bool:
        return self.kind in (BehaviourKind.CRASHES, BehaviourKind.FINISHES, BehaviourKind.EATS)

    def answers(self, kind: Check, age_ms: int, asked_before: int) -> bool:
        """Whether it gives a good answer to a probe."""
        match self.kind:
            case BehaviourKind.SLOW:
                return age_ms >= self.at_ms
            case BehaviourKind.STUCK:
                return kind is not Check.STARTUP
            case BehaviourKind.SULKS:
                return kind is not Check.READINESS or age_ms < self.at_ms
            case BehaviourKind.SICKENS:
                return kind is not Check.LIVENESS or age_ms < self.at_ms
            case BehaviourKind.HICCUPS:
                return asked_before % HICCUP_EVERY != HICCUP_EVERY - 1
        return True

    def ill_at_ms(self) -> int | None:
        """From which age on it is right to end it, if ever."""
        match self.kind:
            case BehaviourKind.STUCK:
                return 0
            case BehaviourKind.SICKENS:
                return self.at_ms
        return None

    def is_ready(self, age_ms: int) -> bool:
        """Whether it is ready at an age."""
        match self.kind:
            case BehaviourKind.SLOW:
                return age_ms >= self.at_ms
            case BehaviourKind.SULKS:
                return age_ms < self.at_ms
        return self.kind is not BehaviourKind.STUCK


def behaviour_of(launch: Launch) -> Behaviour:
    """How the work of a launch behaves."""
    _, kind, at_ms = launch.template.command
    return Behaviour(BehaviourKind(kind), int(at_ms))
