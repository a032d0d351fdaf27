"""How a piece of work is stopped: its farewell first, if it has one, then the signal, then the end.

`tend` calls this for every stop that somebody asked for. Work that serves lingers at first, for
whoever read its address a moment ago may still come (docs/controllers.md says how far that goes).
The farewell (the template's preStop) begins at once. Both and the stop share one grace; the shim
kills when that is over, whatever the farewell does. A stop that the deadline brings about, or the
end of the node's life, has neither.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.probes import action_of, resolved
from holdfast.agent.words import Attempt, Check, Halt, Probe
from holdfast.agent.work import Phase, Work
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Stage

# So much of a grace is left for the stop itself, however long the farewell takes: a quarter of a
# short one, two seconds of a long one.
STOP_KEEPS_MS = 2_000


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Nothing to do before this moment, or before something changes."""

    until_ms: int | None = None


class Farewell(msgspec.Struct, frozen=True):
    """Let the work do what it wants to do before it is stopped, or just serve on for a moment."""

    probe: Probe | None
    grace_ms: int


def kept_ms(grace_ms: int) -> int:
    """How much of a grace no farewell may use up."""
    return min(STOP_KEEPS_MS, grace_ms // 4)


def farewell(work: Work, replica: Replica) -> Probe | None:
    """What the work wants to be told before it is stopped."""
    pre_stop = replica.spec.template.pre_stop
    action = action_of(pre_stop) if pre_stop is not None else None
    action = resolved(action, work.process) if action is not None else None
    if action is None:
        return None
    return Probe(Attempt(work.uid, work.attempt), Check.PRE_STOP, action, 0)


def lingering_ms(replica: Replica) -> int:
    """How long it goes on for clients that have yet to learn that it leaves."""
    if replica.status.stage is not Stage.SERVING:
        return 0
    return replica.spec.template.drain_seconds * 1_000


def stop(
    work: Work, grace_ms: int, now_ms: int, first: Probe | None = None, linger_ms: int = 0
) -> Wait | Farewell | Halt | None:
    """Stop what runs; None once nothing does. Whoever asks again with a shorter grace is heard."""
    attempt = Attempt(work.uid, work.attempt)
    match work.phase:
        case Phase.RUNNING if first is not None and grace_ms > 0:
            timeout_ms = grace_ms - kept_ms(grace_ms)
            return Farewell(msgspec.structs.replace(first, timeout_ms=timeout_ms), grace_ms)
        case Phase.RUNNING if linger_ms > 0 and grace_ms > 0:
            return Farewell(None, grace_ms)
        case Phase.LAUNCHING | Phase.RUNNING:
            return Halt(attempt, grace_ms)
        case Phase.LEAVING:
            until_ms = work.stop_by_ms - kept_ms(work.halt_grace_ms)
            if first is None or work.has_left:
                began_ms = work.stop_by_ms - work.halt_grace_ms
                until_ms = min(until_ms, began_ms + linger_ms)
            if now_ms < until_ms and grace_ms >= work.halt_grace_ms:
                return Wait(until_ms)
            return Halt(attempt, min(max(0, work.stop_by_ms - now_ms), grace_ms))
        case Phase.HALTING:
            return Halt(attempt, grace_ms) if grace_ms < work.halt_grace_ms else Wait()
        case Phase.NONE | Phase.ENDED:
            return None
