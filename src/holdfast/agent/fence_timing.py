"""What this agent's work holds of the plane's times, and when to tell the servers that it changed.

The node's record (`model/fence.py`) is the greatest timing that anything here may hold. The agent
keeps within the record that it knows. When a server wants other times than the record has, the
agent registers again: at once where they are longer, and where they are shorter once nothing here
holds more. From the moment that it says so it takes no more than that of any acknowledgement, for
the servers may act on what it said before it hears of that.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.heartbeats import NodeHeartbeats
from holdfast.model.fence import (
    TIMING_PENDING,
    FenceTiming,
    HeldTimes,
    exceeds,
    greatest_timing,
    limit_timing,
    timing_of,
)
from holdfast.model.kinds.node import HeldTiming, Node
from holdfast.model.meta import ConditionStatus, condition


class FenceTimingClaims:
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(self, renewing: NodeHeartbeats) -> None:
        self._renewing = renewing
        self._record: HeldTiming | None = None
        # What was last claimed, and on which record.
        self._claim: tuple[int, FenceTiming] | None = None
        self.is_asking = False

    def see(self, node: Node) -> None:
        """The node as it was read, never older than what was seen before."""
        record = self._record = node.status.timing
        cap = timing_of(record)
        if self._claim is not None and record is not None and cap is not None:
            number, claim = self._claim
            if record.number == number:
                # Whether the servers have taken it is not known: it binds us all the same.
                cap = limit_timing(cap, claim)
            else:
                self._claim = None
        self._renewing.limit(cap)

    @property
    def grace_max_ms(self) -> int:
        """The longest grace that any shim here may have been given."""
        return self._record.grace_ms if self._record is not None else 0

    def due(self, node: Node, grace_held_ms: int, now_ms: int) -> HeldTimes | None:
        """What to say that our work holds, if that is to be said now."""
        renewing, record = self._renewing, self._record
        wanted, held = renewing.wanted, timing_of(record)
        if wanted is None or record is None or held is None or self.is_asking:
            return None
        left_ms = max(0, (renewing.deadline_ms or now_ms) - now_ms)
        holds = HeldTimes(
            max(wanted.self_stop_after_ms, left_ms),
            max(wanted.grace_ms, grace_held_ms),
            record.number,
        )
        claim = greatest_timing(
            msgspec.structs.replace(
                wanted,
                self_stop_after_ms=holds.self_stop_after_ms,
                grace_ms=holds.grace_ms,
                # It falls with the next life only.
                ack_window_ms=max(wanted.ack_window_ms, held.ack_window_ms),
            )
        )
        if exceeds(wanted, held):
            return holds
        # Servers that are restarted one by one differ for a while: only what all of them want for
        # longer than any of their acknowledgements lasts is worth a change.
        if renewing.wanted_for_ms(now_ms) < held.self_stop_after_ms:
            return None
        said = condition(node.status.conditions, TIMING_PENDING)
        is_said = said is not None and said.status is ConditionStatus.TRUE
        return holds if exceeds(held, claim) or not is_said else None

    def claims(self, holds: HeldTimes) -> None:
        """This is being said: keep to it from now on."""
        self.is_asking = True
        claim = msgspec.structs.replace(
            self._renewing.timing,
            self_stop_after_ms=holds.self_stop_after_ms,
            grace_ms=holds.grace_ms,
        )
        before = self._renewing.cap
        self._claim = (holds.number, claim)
        self._renewing.limit(limit_timing(before, claim) if before is not None else claim)
