"""The two gates of a server with the figures that it ships with, and which request goes where.

Reads and writes have a gate each, so that writes that wait for a store that stalls take no seat of
a read. The figures are what a gate begins with; how many times that it has afterwards follows what
is measured (`commit/flow/concurrency_limit`). `docs/overload.md` says where they come from; a plane
changes none of them by accident, since they are no settings of any object.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.commit.flow.concurrency_limit import ConcurrencyLimit
from holdfast.commit.flow.fair_queues import QueueBounds
from holdfast.commit.flow.flow_control import FlowController, Seats
from holdfast.commit.flow.request_classes import RequestClass, RequestPurpose
from holdfast.model.machine import Rng

# How long a request of people may wait when others are sent away. Whoever is one of them hears it
# within 100 ms, of which the server needs some for itself when it is busy.
PATIENCE_MS = 35
# And when nobody is: a pause of the server as short as this sends nobody away.
CALM_PATIENCE_MS = 250
# Our own components wait rather than come back: each would have to ask twice otherwise.
SYSTEM_PATIENCE_MS = 2_000
# A renewal is worth little after this; the agent has sent another one by then.
LIFELINE_PATIENCE_MS = 5_000
# Renewals that wait for a store that stalls are bounded by the machine that answers them.
_LIFELINES = 10_000

# So many seats that came back may lie about while nobody waits: giving each back by itself would
# cost more than the gate.
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
    """The seats before writes and before reads, and whether they follow what is measured."""

    writes: Table = msgspec.field(default_factory=lambda: WRITES)
    reads: Table = msgspec.field(default_factory=lambda: READS)
    is_measured: bool = True


DEFAULT_GATES = FlowControlSettings()


class FlowControllers:
    """Both gates of one server."""

    def __init__(self, rng: Rng, settings: FlowControlSettings = DEFAULT_GATES) -> None:
        def gate(table: Table, name: str) -> FlowController:
            most = table[RequestClass.TENANT].most
            return FlowController(
                table, rng, name, ConcurrencyLimit(most) if settings.is_measured else None
            )

        self.writes, self.reads = gate(settings.writes, "writes"), gate(settings.reads, "reads")

    @property
    def all(self) -> tuple[FlowController, FlowController]:
        return self.writes, self.reads

    @property
    def patience_ms(self) -> int:
        """How long people may wait at either gate while others are refused."""
        return max(gate.patience_ms for gate in self.all)

    def turned(self, took_ms: int) -> None:
        """The event loop that both share has gone round once, in so many milliseconds."""
        limits = [gate.limit for gate in self.all if gate.limit is not None]
        most_ms = max((it.turn_max_ms for it in limits), default=0)
        for gate in self.all:
            gate.turned(took_ms, most_ms)

    def of(self, errand: RequestPurpose) -> FlowController:
        """The gate that a request passes. Lifelines have seats of their own at either."""
        return self.reads if errand in (RequestPurpose.READ, RequestPurpose.SWEEP) else self.writes
