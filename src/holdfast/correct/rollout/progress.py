"""The progress of a rollout: the next rollout status of a workload.

controller:rollout computes the next status after each survey, writes it if it differs, and stops
nothing before it is committed.

    Idle ──another template──▶ Progressing ──all healthy──▶ Idle
                                 │  ▲
              deadline, or a user│  │what was begun is healthy, or the user resumes
                                 ▼  │
    Failed ◀──all healthy── Reverting  Paused
                               ▲ deadline, where autoRevert is set

A deadline stops no replica: it ends the expansion to further ordinals, or it begins the rollback,
which stops a healthy replica only while enough others are healthy. Progress means that more
ordinals are healthy than ever before, that more are begun, or that a canary step is passed.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.correct.pacing import MonotonicWaits
from holdfast.correct.rollout.survey import RolloutPlace, RolloutSurvey
from holdfast.correct.rollout.widening import hold_seconds, ordinals_allowed, text_of, widen
from holdfast.model.kinds.workload import (
    Rollout,
    RolloutPhase,
    RolloutStatus,
    RolloutStrategy,
    Workload,
)
from holdfast.model.time import Instant, sooner, timestamp
from holdfast.model.workload.rollouts import goal, rollout_of

COMPLETE, ROLLING_OUT = "Complete", "RollingOut"
PAUSED, OVERDUE, REVERTED = "Paused", "ProgressDeadlineExceeded", "Reverted"
HEALTHY_LEFT = "RevertWouldStopHealthy"

_OVER = (RolloutPhase.IDLE, RolloutPhase.FAILED)


class RolloutDecision(msgspec.Struct, frozen=True):
    """The status as it should be now, and when it may have to change without any event."""

    status: RolloutStatus
    wake_ms: int | None = None


def next_decision(
    workload: Workload, seen: RolloutSurvey, revision: str, waits: MonotonicWaits, now: Instant
) -> RolloutDecision:
    """The next status of a rollout. `revision` is that of the stated template."""
    spec, before = workload.spec.rollout, workload.status.rollout
    if not before.current or (before.current != revision and not spec.paused):
        return RolloutDecision(_begin(workload, revision, now))
    # Before the first revision was ever healthy there is nothing that a pause could protect.
    is_paused = spec.paused and bool(before.stable) and before.phase not in _OVER
    if before.current != revision or is_paused:
        return RolloutDecision(_pause(before, now))
    if before.phase in _OVER:
        return RolloutDecision(before)
    if before.phase is RolloutPhase.PAUSED and before.reason == PAUSED:
        return RolloutDecision(_resume(before, now))
    return _Step(workload, seen, waits, now).decision()


def _begin(workload: Workload, revision: str, now: Instant) -> RolloutStatus:
    """The status at the first sight of a new template.

    Ordinals that took the last template go straight on to this one. There are no canary steps on
    the way back to the stable revision, nor for the first revision.
    """
    before, spec = workload.status.rollout, workload.spec.rollout
    is_back = revision == before.stable or not before.stable
    return msgspec.structs.replace(
        _resume(before, now),
        current=revision,
        updated="" if is_back else before.updated,
        step=len(spec.canary) if is_back else 0,
        held=False,
        ready=0,
    )


def _resume(before: RolloutStatus, now: Instant) -> RolloutStatus:
    at = timestamp(now.wall_ms)
    return msgspec.structs.replace(
        before,
        phase=RolloutPhase.PROGRESSING,
        reason=ROLLING_OUT,
        message="",
        since=at,
        progressed_at=at,
    )


def _pause(before: RolloutStatus, now: Instant) -> RolloutStatus:
    """Paused by a user. That also pauses a rollback, which resumes as a rollback."""
    if before.phase is RolloutPhase.REVERTING or before.reason == PAUSED:
        return before
    return _halt(before, PAUSED, "paused by its owner", now)


def _halt(before: RolloutStatus, reason: str, message: str, now: Instant) -> RolloutStatus:
    at = timestamp(now.wall_ms)
    return msgspec.structs.replace(
        before, phase=RolloutPhase.PAUSED, reason=reason, message=message, since=at
    )


class _Step:
    """One decision about a rollout that is under way."""

    def __init__(
        self, workload: Workload, seen: RolloutSurvey, waits: MonotonicWaits, now: Instant
    ) -> None:
        self._workload, self._seen, self._waits, self._now = workload, seen, waits, now
        self._spec: Rollout = rollout_of(workload)
        self._before = workload.status.rollout
        self._aim = goal(workload)
        # The ordinals that take the new revision by now, and how many of them are not healthy.
        self._begun = [it for it in seen.places if it.target == self._aim]
        self._lag = sum(not it.is_done for it in self._begun)

    def decision(self) -> RolloutDecision:
        status = self._with_progress()
        if self._is_complete():
            return RolloutDecision(self._finished(status))
        further = self._further(status)
        if further is not None:
            return RolloutDecision(further)
        left_ms = self._left_ms(status)
        if not left_ms and status.phase is RolloutPhase.PROGRESSING:
            status = self._overdue(status)
        return RolloutDecision(status, self._wake_ms(left_ms))

    def _with_progress(self) -> RolloutStatus:
        """The highest count of healthy ordinals measures progress: work that crashes again and
        again makes none.
        """
        ready = sum(it.is_done for it in self._begun)
        if ready <= self._before.ready:
            return self._before
        at = timestamp(self._now.wall_ms)
        return msgspec.structs.replace(self._before, ready=ready, progressed_at=at)

    def _is_complete(self) -> bool:
        seen = self._seen
        is_done = not seen.unplaced and all(
            it.is_done and it.target == self._aim for it in seen.lasting
        )
        return is_done and not self._before.held and hold_seconds(self._workload) is None

    def _finished(self, status: RolloutStatus) -> RolloutStatus:
        is_back = status.phase is RolloutPhase.REVERTING
        return msgspec.structs.replace(
            status,
            stable=status.stable if is_back else status.current,
            phase=RolloutPhase.FAILED if is_back else RolloutPhase.IDLE,
            reason=REVERTED if is_back else COMPLETE,
            message=f"revision {self._aim} is ready everywhere",
            since=timestamp(self._now.wall_ms),
            updated="",
            surge=0,
            step=0,
        )

    # Expansion -----------------------------------------------------------------------------------

    def _further(self, status: RolloutStatus) -> RolloutStatus | None:
        """The status with more ordinals, or with the next canary step; None if neither is due."""
        is_back = status.phase is RolloutPhase.REVERTING
        if self._spec.strategy is RolloutStrategy.RECREATE:
            # Nothing is created before the last replica of another revision is proven stopped.
            held = self._seen.strays > 0
            updated = text_of(self._seen, (it.number for it in self._seen.lasting))
            after = msgspec.structs.replace(status, held=held)
            if not is_back and status.stable and status.stable != status.current:
                after = msgspec.structs.replace(after, updated=updated)
        elif status.held:
            # The strategy was Recreate when the rollout began, and no longer is.
            after = msgspec.structs.replace(status, held=False)
        elif is_back or not self._may_expand():
            return None
        elif self._is_gate_passed():
            # Where a deadline had paused it, the begun ordinals have become healthy after all.
            after = msgspec.structs.replace(
                widen(self._workload, self._seen, status, self._lag), step=status.step + 1
            )
        else:
            after = widen(self._workload, self._seen, status, self._lag)
        if after == status:
            return None
        if is_back:
            return after
        return msgspec.structs.replace(
            _resume(after, self._now), since=self._since(status), message=self._message(after)
        )

    def _since(self, status: RolloutStatus) -> datetime | None:
        is_on = status.phase is RolloutPhase.PROGRESSING
        return status.since if is_on else timestamp(self._now.wall_ms)

    def _may_expand(self) -> bool:
        """After the deadline, only once all begun ordinals are healthy."""
        return self._before.phase is RolloutPhase.PROGRESSING or not self._lag

    def _is_gate_passed(self) -> bool:
        """Whether all ordinals of a canary step have been healthy for long enough."""
        hold_s = hold_seconds(self._workload)
        begun = [it for it in self._begun if not it.is_surge]
        if hold_s is None or self._lag or len(begun) < ordinals_allowed(self._workload, self._seen):
            return False
        return not any(self._holds_ms(it, hold_s) for it in self._begun)

    def _holds_ms(self, place: RolloutPlace, hold_s: int) -> int:
        return max(0, hold_s * 1_000 - place.ready_ms) if place.holder is not None else 0

    def _message(self, status: RolloutStatus) -> str:
        return f"revision {status.current} goes to ordinals {status.updated or 'all'}"

    # Time ----------------------------------------------------------------------------------------

    def _left_ms(self, status: RolloutStatus) -> int:
        """The time left for the next progress. The hold of a canary step is added to it.

        A wall clock that was set must not end a rollout: only time on the monotonic clock counts.
        """
        if status.progressed_at is None:
            return 0
        limit_s = self._spec.progress_deadline_seconds + (hold_seconds(self._workload) or 0)
        uid, since = self._workload.metadata.uid, status.progressed_at
        return self._waits.left_ms(uid, "progress", since, limit_s * 1_000, self._now, credit=False)

    def _wake_ms(self, left_ms: int) -> int | None:
        waits = [it.left_ms for it in self._seen.places if it.left_ms]
        hold_s = hold_seconds(self._workload)
        if hold_s is not None:
            waits += [self._holds_ms(it, hold_s) for it in self._begun if it.is_ready]
        wake_ms = min((it for it in waits if it), default=None)
        return sooner(wake_ms, left_ms or None)

    def _lacks(self) -> str:
        """What the rollout waits for."""
        lagging = [it for it in self._begun if not it.is_done]
        if not lagging:
            return "all begun ordinals are ready"
        first = lagging[0]
        state = (
            "has no replica" if first.holder is None else f"is {first.holder.status.state.value}"
        )
        return f"{len(lagging)} ordinals are not ready: ordinal {first.number} {state}"

    def _overdue(self, status: RolloutStatus) -> RolloutStatus:
        """The deadline has passed. That stops nothing."""
        can_revert = self._spec.auto_revert and status.stable not in ("", status.current)
        says = f"no progress for {self._spec.progress_deadline_seconds} s, {self._lacks()}; "
        if not can_revert:
            return _halt(status, OVERDUE, f"{says}the rollout goes no further", self._now)
        is_any_ready = any(it.is_ready for it in self._begun)
        if self._spec.strategy is RolloutStrategy.RECREATE and is_any_ready:
            message = f"{says}a rollback with strategy Recreate would stop all ready replicas"
            return _halt(status, HEALTHY_LEFT, message, self._now)
        is_surge_used = any(it.is_surge and it.is_ready for it in self._seen.places)
        return msgspec.structs.replace(
            status,
            phase=RolloutPhase.REVERTING,
            reason=OVERDUE,
            message=f"{says}rolling back to revision {status.stable}",
            since=timestamp(self._now.wall_ms),
            updated="",
            surge=status.surge if is_surge_used else 0,
            held=False,
            ready=0,
        )
