"""What should have ended by now and has not, recorded for those who can end it.

Part of controller:events. These scans find what no controller may repair by itself, because it
needs a decision of someone else. Others are repaired: ownerless children, expired reservations and
tokens by controller:garbage; bindings on dead nodes and reservations held for too long by
controller:repair; expired leases by the servers (`host/server/housekeeping.py`).

    deletion waits for finalizers            StillHeld       the owner of the finalizer
    `keep` work on a lost machine            WaitsForWord    an operator, by a forced deletion
    status or conditions of an old spec      StatusBehind    the writer of the status
    rollout past its deadline                its condition Progressing, by controller:rollout
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.correct.events.event_sources import Occurrence
from holdfast.correct.remembered import Notes
from holdfast.model.kinds.node import GONE, Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object
from holdfast.model.time import Instant, rfc3339, wall_ms
from holdfast.model.workload.jobs import finished_condition
from holdfast.observe.snapshot import Snapshot

# Work may take minutes to stop, and finalizers of users longer.
HELD_AFTER_MS = 600_000
BEHIND_AFTER_MS = 300_000
# At most this many workloads are remembered to be behind.
BEHIND_MAX = 10_000

_OUT = (State.UNKNOWN, State.FAILED, State.STOPPING, State.SUCCEEDED)
# Who removes which finalizer, for messages.
_HOLDERS = {
    "holdfast.dev/replicas": "controller:workload, when all replicas are gone",
    "holdfast.dev/release": "the agent of its node, or the fence",
    "foregroundDeletion": "controller:garbage, when all dependents are gone",
    "orphan": "controller:garbage, when all dependents are cut loose",
}


def _generations(view: Snapshot) -> set[tuple[str, int]]:
    return {(it.metadata.uid, it.metadata.generation) for it in view.all("workloads")}


class Scans:
    """See the module's docstring."""

    def __init__(self) -> None:
        # Since when a workload's status has been behind its spec, by uid and generation.
        self.behind_ms: Notes[tuple[str, int], int] = Notes(_generations)

    def of(self, view: Snapshot, obj: Object, now: Instant) -> Iterable[Occurrence]:
        """What is overdue about an object."""
        yield from _held(obj, now)
        match obj:
            case Replica():
                yield from _waits_for_word(view, obj)
            case Workload():
                yield from self._behind(obj, now)

    def _behind(self, workload: Workload, now: Instant) -> Iterable[Occurrence]:
        metadata, status = workload.metadata, workload.status
        key = metadata.uid, metadata.generation
        # The condition with which a job ended stays, whatever changes in its spec afterwards.
        over = finished_condition(workload)
        old = [
            f"condition {it.type}"
            for it in status.conditions
            if 0 < it.observed_generation < metadata.generation and it is not over
        ]
        if status.observed_generation < metadata.generation:
            old.insert(0, "status")
        if not old or metadata.deletion_timestamp is not None:
            self.behind_ms.pop(key, None)
            return
        if len(self.behind_ms) >= BEHIND_MAX:
            self.behind_ms.clear()
        since_ms = self.behind_ms.setdefault(key, now.monotonic_ms)
        if now.monotonic_ms - since_ms < BEHIND_AFTER_MS:
            return
        message = f"{', '.join(old)} of an older spec than generation {metadata.generation}"
        yield Occurrence("StatusBehind", message, True, stamp=f"generation-{metadata.generation}")


def is_overdue_soon(obj: Object) -> bool:
    """Whether an object has to be checked again although it does not change."""
    return obj.metadata.deletion_timestamp is not None or isinstance(obj, Workload)


def _held(obj: Object, now: Instant) -> Iterable[Occurrence]:
    since = obj.metadata.deletion_timestamp
    if since is None or now.wall_ms - wall_ms(since) < HELD_AFTER_MS:
        return
    held = [f"{it} ({_HOLDERS.get(it, 'by its owner')})" for it in obj.metadata.finalizers]
    message = (
        f"deletion was requested at {rfc3339(wall_ms(since))} and waits for the removal of "
        f"{', '.join(held)}"
    )
    yield Occurrence("StillHeld", message, True, stamp=since.isoformat())


def _waits_for_word(view: Snapshot, replica: Replica) -> Iterable[Occurrence]:
    """No fence proves the end of `keep` work; on a lost machine no agent does either."""
    binding, state = replica.status.binding, replica.status.state
    keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
    if binding is None or not keeps or state not in _OUT:
        return
    node: Node | None = view.get("nodes", "", binding.node)
    if node is None or node.status.phase not in GONE:
        return
    message = (
        f"may still run (onDisconnect: keep), and node {node.name} is {node.status.phase.value}: "
        "once you know that it has stopped, confirm with "
        f"`kubectl delete replica {replica.name} --force --grace-period=0`"
    )
    yield Occurrence("WaitsForWord", message, True, stamp=f"{node.status.phase.value}-{node.name}")
