"""How the work of this world behaves: its command states it, as in `work crashes 2000`.

`people` writes such commands, `process_table` performs them, and the checkers derive from them what
the agent has to do. Ages are milliseconds since the start of the attempt.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.agent.runtime_protocol import Check, Launch
from holdfast.model.kinds.template import ExecAction, Probe, Probes

_ASK = ExecAction(("ask",))
# A start-up probe that gives up soon, and one that waits as long as any start here takes.
IMPATIENT = Probe(exec=_ASK, period_seconds=1, failure_threshold=4)
PATIENT = Probe(exec=_ASK, period_seconds=1, failure_threshold=40)
READINESS = Probe(exec=_ASK, period_seconds=2, failure_threshold=2)
LIVENESS = Probe(exec=_ASK, period_seconds=2, failure_threshold=2)
# How long a pre-stop hook takes that ends by itself.
PRE_STOP_MS = 1_500
# Of work with HICCUPS, one probe in this many fails.
HICCUP_EVERY = 3


class BehaviourKind(StrEnum):
    """The kinds of behaviour."""

    STEADY = "steady"
    # It ends by itself at an age: with an error, with success, or killed out of memory.
    CRASHES = "crashes"
    FINISHES = "finishes"
    EATS = "eats"
    # It has started only at an age; it never starts; or it is no longer ready from an age on.
    SLOW = "slow"
    STUCK = "stuck"
    SULKS = "sulks"
    # Its liveness probe fails from an age on; or single probes fail although it is healthy.
    SICKENS = "sickens"
    HICCUPS = "hiccups"
    # It ignores every signal, and its pre-stop hook never ends.
    HANGS = "hangs"


PROBES = {
    BehaviourKind.SLOW: Probes(startup=PATIENT, readiness=READINESS, liveness=LIVENESS),
    BehaviourKind.STUCK: Probes(startup=IMPATIENT),
    BehaviourKind.SULKS: Probes(readiness=READINESS, liveness=LIVENESS),
    BehaviourKind.SICKENS: Probes(readiness=READINESS, liveness=LIVENESS),
    BehaviourKind.HICCUPS: Probes(liveness=LIVENESS),
}


class Behaviour(msgspec.Struct, frozen=True, gc=False):
    """The behaviour that one command states."""

    kind: BehaviourKind
    at_ms: int

    @property
    def ends_itself(self) -> bool:
        return self.kind in (BehaviourKind.CRASHES, BehaviourKind.FINISHES, BehaviourKind.EATS)

    def answers(self, kind: Check, age_ms: int, asked_before: int) -> bool:
        """Whether it passes a probe."""
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
        """The age from which on the agent has to restart it, if any."""
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
