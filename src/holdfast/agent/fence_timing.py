"""Which fence timing the work on this node holds, and when to report a change to the servers.

The node's record (`model/nodes/fence.py`) is the greatest timing that any work here may hold. The
agent stays within the record that it knows. When a server wants other times than the record, the
agent registers again: at once where they are longer, and where they are shorter once no work here
holds more. From that registration on it takes no longer time from any acknowledgement, since the
servers may act on the registration before its answer arrives.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.heartbeats import NodeHeartbeats
from holdfast.model.kinds.node import HeldTiming, Node
from holdfast.model.meta import ConditionStatus, condition
from holdfast.model.nodes.fence import (
    TIMING_PENDING,
    FenceTiming,
    HeldTimes,
    exceeds,
    greatest_timing,
    limit_timing,
    timing_of,
)


class FenceTimingClaims:
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(self, heartbeats: NodeHeartbeats) -> None:
        self._heartbeats = heartbeats
        self._record: HeldTiming | None = None
        # The last claim, and the number of its record.
        self._claim: tuple[int, FenceTiming] | None = None
        self.is_asking = False

    def see(self, node: Node) -> None:
        """Process the node as it was read; never older than the last one."""
        record = self._record = node.status.timing
        cap = timing_of(record)
        if self._claim is not None and record is not None and cap is not None:
            number, claim = self._claim
            if record.number == number:
                # Whether the servers accepted the claim is unknown: it binds the agent in any case.
                cap = limit_timing(cap, claim)
            else:
                self._claim = None
        self._heartbeats.limit(cap)

    @property
    def grace_max_ms(self) -> int:
        """The longest grace that any shim here may have received."""
        return self._record.grace_ms if self._record is not None else 0

    def due(self, node: Node, grace_held_ms: int, now_ms: int) -> HeldTimes | None:
        """The claim to report now, if one is due."""
        heartbeats, record = self._heartbeats, self._record
        wanted, held = heartbeats.wanted, timing_of(record)
        if wanted is None or record is None or held is None or self.is_asking:
            return None
        left_ms = max(0, (heartbeats.deadline_ms or now_ms) - now_ms)
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
                # It decreases only with the next incarnation.
                ack_window_ms=max(wanted.ack_window_ms, held.ack_window_ms),
            )
        )
        if exceeds(wanted, held):
            return holds
        # Servers that restart one by one differ for a while: a change needs all of them to want the
        # same for longer than any of their acknowledgements lasts.
        if heartbeats.wanted_for_ms(now_ms) < held.self_stop_after_ms:
            return None
        pending = condition(node.status.conditions, TIMING_PENDING)
        is_pending = pending is not None and pending.status is ConditionStatus.TRUE
        return holds if exceeds(held, claim) or not is_pending else None

    def claims(self, holds: HeldTimes) -> None:
        """The claim is being sent: stay within it from now on."""
        self.is_asking = True
        claim = msgspec.structs.replace(
            self._heartbeats.timing,
            self_stop_after_ms=holds.self_stop_after_ms,
            grace_ms=holds.grace_ms,
        )
        before = self._heartbeats.cap
        self._claim = (holds.number, claim)
        self._heartbeats.limit(limit_timing(before, claim) if before is not None else claim)
