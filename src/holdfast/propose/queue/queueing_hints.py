"""Queueing hints: which waiting replicas an event wakes, and how many of them.

The scheduler passes nodes that have more room, tenants that released something, and tenants whose
replicas came or went. Parked replicas are tested by class, not one by one: what a node or a quota
means for one replica it means for all of its class. Each class is asked separately how many of it
fit now, so that no number of others that do not fit can keep one that does waiting.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Quota
from holdfast.model.quota.charging import QUOTA_NAME
from holdfast.model.time import Instant
from holdfast.observe.cache import Key
from holdfast.observe.snapshot import Objects
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import PlacementReport, WakeEvent
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.proposals import quota_room, room_for
from holdfast.propose.queue.scheduling_queue import GroupKey, QueueEntry, SchedulingQueue

# Per class that waits for topology. Those that are placed wake the others again.
WOKEN_PER_CHANGE = 64


class QueueingHints:
    """See the module's docstring."""

    def __init__(
        self, queue: SchedulingQueue, fleet: Fleet, verdict_cache: VerdictCache, objects: Objects
    ) -> None:
        self._queue, self._fleet, self._objects = queue, fleet, objects
        self._verdict_cache = verdict_cache

    def after_changes(self, view: FleetSnapshot, freed: Iterable[str], now: Instant) -> None:
        """Wake the replicas that the changes of this step may help."""
        if not view.is_too_old:
            self._queue.wake_waiting_for(WakeEvent.FRESHNESS)
        topology_counts = self._fleet.topology_counts
        changed_tenants, topology_counts.changed_tenants = topology_counts.changed_tenants, {}
        nodes_changed, topology_counts.nodes_changed = topology_counts.nodes_changed, False
        if changed_tenants or nodes_changed:
            for (tenant, _), group in self._queue.waiting_for(WakeEvent.TOPOLOGY):
                if nodes_changed or tenant in changed_tenants:
                    self._queue.wake_some(group, WOKEN_PER_CHANGE)
        sites = [site for site in map(self._fleet.get, freed) if site is not None]
        if not sites:
            return
        self._fleet.forgive(now.monotonic_ms)
        rows = np.array([site.row for site in sites], np.intp)
        for _, group in self._queue.waiting_for(WakeEvent.NODES):
            self._queue.wake_some(group, self._room(view, next(iter(group.values())), rows))

    def after_releases(
        self, view: FleetSnapshot, tenants: Iterable[str], doubted: Container[GroupKey] = ()
    ) -> None:
        """Wake replicas after these tenants released something: their quotas have more room.

        As many of each class are woken as fit. Those that another class was faster than are parked
        again by the same quota usage, without a request to the servers. Of a class that the servers
        refused although it should fit, one is tried, and the others once it was accepted: a
        thousand that are refused again would be a storm.
        """
        released = list(tenants)
        for group_key, group in self._queue.waiting_for(WakeEvent.QUOTA) if released else ():
            if any(self._share_quota(group_key[0], other) for other in released):
                room = self._quota_room(view, group)
                self._queue.wake_some(group, min(room, 1) if group_key in doubted else room)

    def after_settled(self, tenants: Container[str]) -> None:
        """Wake replicas after binds of these tenants were settled."""
        for (tenant, _), group in self._queue.waiting_for(WakeEvent.BINDS) if tenants else ():
            if tenant in tenants:
                self._queue.wake_some(group, WOKEN_PER_CHANGE)

    def _quota_room(self, view: FleetSnapshot, group: Mapping[Key, QueueEntry]) -> int:
        """For how many of these the quota of their tenant has room."""
        entry = next(iter(group.values()))
        replica: Replica | None = self._objects.get("replicas", *entry.key)
        return quota_room(view, view.work(replica), len(group))[0] if replica is not None else 1

    def _room(self, view: FleetSnapshot, entry: QueueEntry, rows: npt.NDArray[np.intp]) -> int:
        """At most how many replicas like this one the nodes of these rows could take."""
        replica: Replica | None = self._objects.get("replicas", *entry.key)
        if replica is None:
            return 1
        known = self._verdict_cache.known(entry.class_key)
        if known is not None:
            # Whatever else has changed: without free resources nothing fits.
            for resource, units in known.work.units:
                rows = rows[view.columns.free[resource, rows] >= units]
            if not len(rows):
                return 0
        found = self._verdict_cache.class_of(replica, view)
        return 0 if isinstance(found, PlacementReport) else room_for(view, found, rows)

    def _share_quota(self, one: str, other: str) -> bool:
        if one == other:
            return True
        quotas: list[Quota | None] = [
            self._objects.get("quotas", name, QUOTA_NAME) for name in (one, other)
        ]
        cohorts = {quota.spec.cohort if quota is not None else "" for quota in quotas}
        return len(cohorts) == 1 and "" not in cohorts
