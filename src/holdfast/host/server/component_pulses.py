"""The last pulse of each component of a plane, as this server received it.

`host/api/plane/heartbeat_routes.py` takes pulses in and shows them; the metrics here export them.
They are kept in memory only: after a restart every component sends again within seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from holdfast.host.process import clock
from holdfast.host.process.metrics import Labels, Metrics
from holdfast.model.plane import Plane
from holdfast.model.pulse import Backlog, Beat, Pulse, Pulses, ReceivedPulse, TenantStanding
from holdfast.model.quantity import units_per_one

# Far more processes than a plane has. The one that was silent longest makes room.
PROCESSES_MAX = 256
# A process that ended is shown for this long, so that people see that it did.
FORGET_AFTER_MS = 600_000
# After this much silence of a scheduler, its backlog may be with another scheduler.
BACKLOG_MAX_MS = 30_000


class _Heard(msgspec.Struct, frozen=True):
    at_ms: int
    pulse: Pulse


class ComponentPulses:
    """The last pulse of each process, by sender and name."""

    def __init__(self, server: str, plane: Plane | None = None) -> None:
        self._server, self._since_ms = server, clock.monotonic_ms()
        self._plane = plane
        # The one received longest ago comes first.
        self._heard: dict[tuple[str, str], _Heard] = {}

    def take(self, sender: str, pulse: Pulse) -> None:
        """Store the pulse of a process."""
        who = (sender, pulse.process)
        self._heard.pop(who, None)
        self._heard[who] = _Heard(clock.monotonic_ms(), pulse)
        self._forget()

    def recent_pulses(self) -> Pulses:
        """Return all recent pulses."""
        self._forget()
        now_ms = clock.monotonic_ms()
        felt = [
            ReceivedPulse(sender, now_ms - it.at_ms, it.pulse)
            for (sender, _), it in self._heard.items()
        ]
        felt.sort(key=lambda it: (it.pulse.process, it.sender))
        return Pulses(self._server, now_ms - self._since_ms, tuple(felt), self._plane)

    def _forget(self) -> None:
        oldest_ms = clock.monotonic_ms() - FORGET_AFTER_MS
        while self._heard:
            who, it = next(iter(self._heard.items()))
            if it.at_ms >= oldest_ms and len(self._heard) <= PROCESSES_MAX:
                return
            del self._heard[who]

    def count(self, metrics: Metrics) -> None:
        """Add these metrics to the server's."""
        by_process, by_part = ("process",), ("component", "process")
        metrics.gauges(
            "component_heartbeat_age_seconds",
            "Since the last pulse of a process was received.",
            by_process,
            lambda: (((it.pulse.process,), it.age_ms / 1_000) for it in self.recent_pulses().felt),
        )
        metrics.gauges(
            "component_picture_age_seconds",
            "Since a process last received what it watches.",
            by_process,
            lambda: (
                ((it.pulse.process,), it.pulse.picture_ms / 1_000)
                for it in self.recent_pulses().felt
            ),
        )
        for name, text, field, scale in (
            ("component_epoch", "Epoch of its lease; 0 while it is on standby.", "epoch", 1),
            ("component_waiting", "Keys that wait to be reconciled or answered.", "waiting", 1),
            ("component_overdue_seconds", "How long the oldest key waits.", "overdue_ms", 1_000),
        ):
            metrics.gauges(name, text, by_part, partial(self._parts, field, scale))
        metrics.gauges(
            "component_looks_total",
            "Times that it reconciled a key.",
            by_part,
            partial(self._parts, "looks", 1),
            kind="counter",
        )
        for name, text, field in (
            ("component_relists_total", "Kinds listed again after a gap.", "relists"),
            ("component_missed_total", "Objects that only a list revealed.", "missed"),
        ):
            metrics.gauges(name, text, by_process, partial(self._whole, field), kind="counter")
        metrics.gauges(
            "component_requests_total",
            "Requests by outcome.",
            (*by_part, "outcome"),
            self._outcomes,
            kind="counter",
        )
        self._count_backlogs(metrics)
        self._count_fairness(metrics)

    def _count_backlogs(self, metrics: Metrics) -> None:
        """Add the replicas that wait for a place, and the free capacity."""
        metrics.gauges(
            "pending_replicas",
            "Replicas that wait for a place, by reason; one with several reasons counts in each.",
            ("tenant", "reason"),
            self._waits,
        )
        metrics.gauges(
            "queue_age_seconds",
            "How long the oldest replica of a priority class has waited for a place.",
            ("priority_class",),
            self._ages,
        )
        metrics.gauges(
            "start_estimates_total",
            "Jobs with an estimated start that were placed.",
            (),
            partial(self._estimates, "estimates", 1),
            "counter",
        )
        metrics.gauges(
            "start_estimate_error_seconds_total",
            "By how much the first estimates of their starts were wrong together.",
            (),
            partial(self._estimates, "estimate_error_ms", 1_000),
            "counter",
        )
        metrics.gauges(
            "preemptions_total",
            "Preemptions by the priority class that they made room for, and how they ended.",
            ("priority_class", "outcome"),
            self._preemptions,
            kind="counter",
        )
        metrics.gauges(
            "preemption_oscillation_total",
            "Preemptions that stopped work of a workload that had stopped the same work before.",
            (),
            lambda: iter([((), float(sum(it.in_turn for it in self._backlogs())))]),
            kind="counter",
        )
        by_place = ("region", "zone", "pool", "resource")
        for name, text, field in (
            ("capacity_free", "Free capacity of nodes that accept work.", "free"),
            ("capacity_fragments", "Free capacity in pieces too small for any work.", "fragments"),
        ):
            metrics.gauges(name, text, by_place, partial(self._rooms, field))

    def _count_fairness(self, metrics: Metrics) -> None:
        """Add the fairness figures of tenants."""
        figures: tuple[tuple[str, str, Callable[[TenantStanding], float]], ...] = (
            ("share", "Largest part of any resource that a tenant holds.", lambda it: it.share),
            ("entitlement", "Fair part of the plane of a tenant.", lambda it: it.entitlement),
            (
                "debt",
                "Entitlement of a tenant less its share; negative if it has more.",
                lambda it: it.entitlement - it.share,
            ),
            (
                "lapsed_seconds",
                "How long a tenant has been owed more than the tolerance.",
                lambda it: it.lapsed_ms / 1_000,
            ),
        )
        for name, text, figure in figures:
            metrics.gauges(f"fairness_{name}", text, ("tenant",), partial(self._standings, figure))

    def _whole(self, field: str) -> Iterator[tuple[Labels, float]]:
        for felt in self.recent_pulses().felt:
            yield (felt.pulse.process,), getattr(felt.pulse, field)

    def _backlogs(self) -> list[Backlog]:
        """Return those of each active scheduler. A silent one may not be active any more."""
        found: dict[str, Beat] = {}
        for felt in self.recent_pulses().felt:
            for beat in felt.pulse.beats if felt.age_ms <= BACKLOG_MAX_MS else ():
                known = found.get(beat.scope)
                if beat.backlog is not None and (known is None or known.epoch < beat.epoch):
                    found[beat.scope] = beat
        return [beat.backlog for beat in found.values() if beat.backlog is not None]

    def standings(self) -> dict[str, TenantStanding]:
        """Return the fairness figures of each tenant, by the first scheduler that reports it."""
        found: dict[str, TenantStanding] = {}
        for backlog in self._backlogs():
            for it in backlog.fairness:
                found.setdefault(it.tenant, it)
        return found

    def _standings(
        self, figure: Callable[[TenantStanding], float]
    ) -> Iterator[tuple[Labels, float]]:
        for name, it in self.standings().items():
            yield (name,), figure(it)

    def _preemptions(self) -> Iterator[tuple[Labels, float]]:
        found: dict[Labels, float] = {}
        for backlog in self._backlogs():
            for it in backlog.preemptions:
                labels = (it.priority_class, it.outcome)
                found[labels] = found.get(labels, 0) + it.number
        yield from found.items()

    def _waits(self) -> Iterator[tuple[Labels, float]]:
        found: dict[Labels, float] = {}
        for backlog in self._backlogs():
            for it in backlog.waits:
                labels = (it.tenant, it.reason)
                found[labels] = found.get(labels, 0) + it.replicas
        yield from found.items()

    def _ages(self) -> Iterator[tuple[Labels, float]]:
        found: dict[Labels, float] = {}
        for backlog in self._backlogs():
            for name, age_ms in backlog.oldest_ms.items():
                found[(name,)] = max(age_ms / 1_000, found.get((name,), 0))
        yield from found.items()

    def _estimates(self, field: str, scale: int) -> Iterator[tuple[Labels, float]]:
        yield (), sum(getattr(it, field) for it in self._backlogs()) / scale

    def _rooms(self, field: str) -> Iterator[tuple[Labels, float]]:
        """Return the view of one scheduler: all of them see the same nodes."""
        backlogs = self._backlogs()
        for it in backlogs[0].rooms if backlogs else ():
            amount = getattr(it, field) / units_per_one(it.resource)
            yield (it.region, it.zone, it.pool, it.resource), amount

    def _parts(self, field: str, scale: int) -> Iterator[tuple[Labels, float]]:
        for felt in self.recent_pulses().felt:
            for beat in felt.pulse.beats:
                yield (beat.scope, felt.pulse.process), getattr(beat, field) / scale

    def _outcomes(self) -> Iterator[tuple[Labels, float]]:
        for felt in self.recent_pulses().felt:
            for beat in felt.pulse.beats:
                found = {"Accepted": beat.accepted, "Down": beat.down, "Unknown": beat.unknown}
                for outcome, number in {**found, **beat.refused}.items():
                    yield (beat.scope, felt.pulse.process, outcome), number
