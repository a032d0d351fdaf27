"""The two flow controllers of a server with their default seats, and which request uses which.

Reads and writes have one each, so that writes that wait for a stalled store take no seat of a read.
The figures are initial values; measurements scale them afterwards
(`commit/flow/concurrency_limit`). `docs/overload.md` says where they come from. They are no fields
of any object, so a plane cannot change them by accident.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.commit.flow.concurrency_limit import ConcurrencyLimit
from holdfast.commit.flow.fair_queues import QueueBounds
from holdfast.commit.flow.flow_control import FlowController, Seats
from holdfast.commit.flow.request_classes import RequestClass, RequestPurpose
from holdfast.model.machine import Rng

# The waiting time of people's requests while others are refused. A refused client gets its answer
# within 100 ms, part of which a busy server needs for itself.
PATIENCE_MS = 35
# The same while none are refused: a pause of the server shorter than this refuses no request.
CALM_PATIENCE_MS = 250
# Our own components wait rather than retry: each would have to ask twice otherwise.
SYSTEM_PATIENCE_MS = 2_000
# A renewal is worth little after this; the agent has sent another one by then.
LIFELINE_PATIENCE_MS = 5_000
# Renewals that wait for a stalled store are bounded by the machine that answers them.
_LIFELINES = 10_000

# This many returned seats may stay pending while no request waits: returning each by itself would
# cost more than flow control.
LEFT_MAX = 8

_PEOPLE = QueueBounds(all_max=4_096, tenant_max=1_024, user_max=1_024)
_COMPONENTS = QueueBounds(all_max=10_000, tenant_max=10_000, user_max=64)

Table = Mapping[RequestClass, Seats]

WRITES: Table = {
    RequestClass.LIFELINE: Seats(
        _LIFELINES, _LIFELINES, _LIFELINES, _COMPONENTS, LIFELINE_PATIENCE_MS
    ),
    RequestClass.SYSTEM: Seats(64, 256, 1_024, _COMPONENTS, SYSTEM_PATIENCE_MS),
    RequestClass.OPERATOR: Seats(16, 64, 128, _PEOPLE, PATIENCE_MS, CALM_PATIENCE_MS),
    RequestClass.TENANT: Seats(16, 32, 96, _PEOPLE, PATIENCE_MS, CALM_PATIENCE_MS, newcomers=16),
    RequestClass.BACKGROUND: Seats(2, 8, 64, _PEOPLE, PATIENCE_MS, CALM_PATIENCE_MS),
}
READS: Table = {
    RequestClass.LIFELINE: Seats(
        _LIFELINES, _LIFELINES, _LIFELINES, _COMPONENTS, LIFELINE_PATIENCE_MS
    ),
    RequestClass.SYSTEM: Seats(32, 128, 1_024, _COMPONENTS, SYSTEM_PATIENCE_MS),
    RequestClass.OPERATOR: Seats(8, 64, 192, _PEOPLE, PATIENCE_MS, CALM_PATIENCE_MS),
    RequestClass.TENANT: Seats(16, 32, 128, _PEOPLE, PATIENCE_MS, CALM_PATIENCE_MS, newcomers=16),
    RequestClass.BACKGROUND: Seats(1, 4, 64, _PEOPLE, PATIENCE_MS, CALM_PATIENCE_MS),
}


class FlowControlSettings(msgspec.Struct, frozen=True):
    """The seats of writes and of reads, and whether they follow measurements."""

    writes: Table = msgspec.field(default_factory=lambda: WRITES)
    reads: Table = msgspec.field(default_factory=lambda: READS)
    is_measured: bool = True


DEFAULT_FLOW_CONTROL = FlowControlSettings()


class FlowControllers:
    """Both flow controllers of one server."""

    def __init__(self, rng: Rng, settings: FlowControlSettings = DEFAULT_FLOW_CONTROL) -> None:
        def controller(table: Table, name: str) -> FlowController:
            most = table[RequestClass.TENANT].most
            return FlowController(
                table, rng, name, ConcurrencyLimit(most) if settings.is_measured else None
            )

        self.writes, self.reads = (
            controller(settings.writes, "writes"),
            controller(settings.reads, "reads"),
        )
        self.writes.sibling, self.reads.sibling = self.reads, self.writes

    @property
    def all(self) -> tuple[FlowController, FlowController]:
        return self.writes, self.reads

    @property
    def patience_ms(self) -> int:
        """How long requests of people may wait at either while others are refused."""
        return max(controller.patience_ms for controller in self.all)

    def observe_turn(self, took_ms: int) -> None:
        """Note one turn of the event loop that both share."""
        limits = [controller.limit for controller in self.all if controller.limit is not None]
        most_ms = max((it.turn_max_ms for it in limits), default=0)
        for controller in self.all:
            controller.observe_turn(took_ms, most_ms)

    def of(self, purpose: RequestPurpose) -> FlowController:
        """The flow controller of a request. Lifelines have reserved seats at both."""
        return self.reads if purpose in (RequestPurpose.READ, RequestPurpose.SWEEP) else self.writes
