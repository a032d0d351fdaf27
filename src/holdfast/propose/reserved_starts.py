"""The reserved starts of blocked jobs: which job has one, where, and what it closes to other work.

The scheduler reports here which job had to wait and asks, before it decides about other work, which
nodes that work must leave alone. `backfill.py` has the rule. Only jobs get a reserved start (work
that is not always restarted), and only the first of each lane; work of a higher lane is not bound
by it. Nothing is kept that the next snapshot could not give again: a scheduler that restarts
reserves again, and several that compete each keep to their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.schedulerpolicy import WorkIntent
from holdfast.model.lifecycle import CHARGED
from holdfast.model.placement.fit import demand_of
from holdfast.model.refusal import Reason
from holdfast.model.time import Instant, rfc3339, wall_ms
from holdfast.observe.cache import Key, ObjectChange
from holdfast.propose.backfill import Ending, ReservedStart, delays, earliest, start_at
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.feasibility.outcome import PlacementReport, Verdict
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.queue.scheduling_queue import Lane, SchedulingQueue
from holdfast.propose.scores import intent_of

# How many nodes with stated endings are compared for one reserved start.
START_NODES_MAX = 256
# Reasons that pass when work ends. For any other one no ending helps.
_ROOM = (Reason.NODE_FULL, Reason.DEVICE_TAKEN, Reason.PORT_TAKEN)

_Units = tuple[tuple[str, int], ...]


class _Blocked(msgspec.Struct, frozen=True):
    """A job with a reserved start, and when it was first told that it would start."""

    key: Key
    uid: str
    wanted: _Units
    place: str
    told_ms: int


class ReservedStarts:
    """See the module's docstring."""

    def __init__(self, fleet: Fleet, queue: SchedulingQueue) -> None:
        self._fleet, self._queue = fleet, queue
        # What ends by its statement, by node and uid, and the node of each.
        self._endings: dict[str, dict[str, Ending]] = {}
        self._nodes: dict[str, str] = {}
        self._blocked: dict[Lane, _Blocked] = {}
        # How many estimates came to their moment, and by how much they were wrong together.
        self.settled = self.error_ms = 0

    def notice(self, change: ObjectChange) -> None:
        """Follow which work ends when."""
        if change.plural != "replicas":
            return
        uid = change.object.metadata.uid
        node = self._nodes.pop(uid, "")
        if node:
            del self._endings[node][uid]
            if not self._endings[node]:
                del self._endings[node]
        ending = _ending(change.after)
        if ending is not None:
            name = change.after.status.binding.node  # type: ignore[union-attr]
            self._nodes[uid] = name
            self._endings.setdefault(name, {})[uid] = ending

    # Other work ----------------------------------------------------------------------------------

    def closed_nodes(
        self, replicas: Sequence[Replica], lane: Lane, now: Instant
    ) -> tuple[str, ...]:
        """The nodes that these replicas of one class must leave to a job with a reserved start."""
        self._forget()
        found: dict[str, None] = {}
        uids = {it.metadata.uid for it in replicas}
        first = replicas[0]
        wanted, lasts_s = _wanted(first), first.spec.expected_seconds
        ends_ms = now.wall_ms + lasts_s * 1_000 if lasts_s else None
        for theirs, blocked in self._blocked.items():
            if theirs < lane or blocked.uid in uids:
                continue
            start = self._start(blocked.place, blocked.wanted, now)
            if start is not None and delays(start, blocked.place, wanted, len(replicas), ends_ms):
                found[blocked.place] = None
        return tuple(found)

    def _forget(self) -> None:
        """Drop the starts of jobs that do not wait any more."""
        for lane, blocked in list(self._blocked.items()):
            entry = self._queue.get(blocked.key)
            is_waiting = entry is not None and entry.uid == blocked.uid
            if not is_waiting or self._fleet.assumed(blocked.uid) is not None:
                del self._blocked[lane]

    # The blocked job -----------------------------------------------------------------------------

    def with_estimate(
        self,
        view: FleetSnapshot,
        replica: Replica,
        lane: Lane,
        report: PlacementReport,
        equivalence: EquivalenceClass | None,
        now: Instant,
    ) -> PlacementReport:
        """The report with the estimated start of this job and its basis, or that there is none."""
        is_job = intent_of(replica) is WorkIntent.BATCH
        is_full = report.verdict is Verdict.WAITING and any(it in report.reasons for it in _ROOM)
        if not is_job or not is_full or equivalence is None:
            return report
        self._forget()
        first = self._blocked.get(lane)
        if first is not None and first.uid != replica.metadata.uid:
            return _with(report, "no estimated start: another job is first in its lane")
        wanted = _wanted(replica)
        start = self._earliest(view, equivalence, wanted, now)
        if start is None:
            self._blocked.pop(lane, None)
            why = "nothing that ends by a stated duration (job.expectedSeconds) makes room"
            return _with(report, f"no estimated start: {why}")
        told_ms = first.told_ms if first is not None else start.starts_ms
        key = replica.namespace, replica.name
        self._blocked[lane] = _Blocked(key, replica.metadata.uid, wanted, start.place, told_ms)
        basis = self._named(start, replica.namespace)
        if start.is_overrun:
            return _with(report, f"no estimated start: {basis} runs longer than it stated")
        at = rfc3339(start.starts_ms)
        said = f"estimated start {at} on node {start.place}, when {basis} ends by its statement"
        return _with(report, said, start.starts_ms)

    def started(self, uid: str, now: Instant) -> None:
        """A place was found for this replica. If it had an estimate, that is settled now."""
        for lane, blocked in list(self._blocked.items()):
            if blocked.uid == uid:
                del self._blocked[lane]
                self.settled += 1
                self.error_ms += abs(now.wall_ms - blocked.told_ms)

    def _earliest(
        self, view: FleetSnapshot, equivalence: EquivalenceClass, wanted: _Units, now: Instant
    ) -> ReservedStart | None:
        may_take = equivalence.verdicts.takes_work(view.columns)
        sites = (self._fleet.get(name) for name in self._endings)
        open_sites = (it for it in sites if it is not None and bool(may_take[it.row]))
        return earliest(
            self._start(it.name, wanted, now) for it in islice(open_sites, START_NODES_MAX)
        )

    def _start(self, node: str, wanted: _Units, now: Instant) -> ReservedStart | None:
        site = self._fleet.get(node)
        if site is None:
            return None
        endings = self._endings.get(node, {}).values()
        free = _free(site, [resource for resource, _ in wanted])
        return start_at(node, free, endings, wanted, now.wall_ms)

    @staticmethod
    def _named(start: ReservedStart, namespace: str) -> str:
        """What has to end. Work of another tenant has no name here."""
        tenant, _, name = start.basis.partition("/")
        return f"replica {name}" if tenant == namespace else "work of another tenant"


def _with(report: PlacementReport, said: str, starts_ms: int | None = None) -> PlacementReport:
    message = f"{report.message}; {said}"
    return msgspec.structs.replace(report, message=message, estimated_ms=starts_ms)


def _wanted(replica: Replica) -> _Units:
    return tuple((it, units) for it, units in demand_of(replica.spec.template).amounts.items())


def _free(site: NodeState, resources: Sequence[str]) -> dict[str, int]:
    """What is free there now of these resources. Of a device class, the parts without an owner."""
    ledger = site.ledger
    found = {it: ledger.free(it) for it in resources if it in ledger.allocatable}
    for slot in ledger.devices.values():
        if slot.device_class in resources:
            found[slot.device_class] = found.get(slot.device_class, 0) + slot.free()
    return found


def _ending(replica: Any) -> Ending | None:
    """When this replica returns what it holds, by its statement."""
    if not isinstance(replica, Replica) or not replica.spec.expected_seconds:
        return None
    status, binding = replica.status, replica.status.binding
    if binding is None or status.state not in CHARGED:
        return None
    since = status.process.started_at or binding.at
    if since is None:
        return None
    ends_ms = wall_ms(since + timedelta(seconds=replica.spec.expected_seconds))
    return Ending(f"{replica.namespace}/{replica.name}", ends_ms, binding.charge)
