"""Why replicas wait, as published in their status: written when it changes, and only then.

A replica that waits without a reason is a defect, and so is a scheduler that writes the same reason
every minute. What a replica's status already says is not written again; other numbers under the
same reasons are written from time to time; other reasons at once.
"""

from __future__ import annotations

import heapq

import msgspec

from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.kinds.replica import Pending, Replica
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, ReportPending, Target, Term
from holdfast.model.time import Instant, timestamp
from holdfast.observe.cache import Key
from holdfast.propose.feasibility.outcome import PlacementReport

# The same reasons with other counts, or another nearest miss, are not urgent.
NOTICE_EVERY_MS = 30_000
# A write that failed is tried again after this.
NOTICE_RETRY_MS = 2_000
# Bounds the message: people read it, and the store keeps it.
MESSAGE_MAX = 400


class _Said(msgspec.Struct):
    """What was last sent for a replica, when, and the revision at which it was accepted."""

    target: Target
    pending: Pending
    at_ms: int
    revision: int | None = None
    version: str = ""


class _Wish(msgspec.Struct, frozen=True):
    """What is to be published, and when."""

    target: Target
    pending: Pending
    due_ms: int
    ticket: int
    version: str


class Notices:
    """See the module's docstring. The scheduler states the reasons and sends what is due."""

    def __init__(self) -> None:
        self._wishes: dict[Key, _Wish] = {}
        self._said: dict[Key, _Said] = {}
        self._sending: set[Key] = set()
        # When each wish is due; an entry whose ticket is not its wish's current one is void.
        self._heap: list[tuple[int, int, Key]] = []
        self._tickets = 0

    def say(
        self,
        replica: Replica,
        report: PlacementReport,
        attempts: int,
        next_ms: int,
        now: Instant,
        *,
        after_ms: int = 0,
    ) -> None:
        """Publish why a replica waits, and by when it is tried again at the latest.

        With `after_ms`, only if it still waits then.
        """
        key = replica.namespace, replica.name
        status = replica.status
        target = Target(*key, replica.metadata.uid, status.transition_number)
        said = self._said.get(key)
        if said is not None and said.target != target:
            del self._said[key]
            said = None
        old = self._known(replica, said)
        wall_ms = now.wall_ms + max(0, next_ms - now.monotonic_ms)
        since = old.since if old is not None and old.since is not None else None
        pending = Pending(
            reasons=dict(report.reasons),
            message=report.message[:MESSAGE_MAX],
            verdict=report.verdict.value,
            nearest_miss=_nearest(report)[:MESSAGE_MAX],
            smallest_change=report.smallest_change[:MESSAGE_MAX],
            attempts=attempts,
            since=since or timestamp(now.wall_ms),
            next_wake=timestamp(wall_ms),
            owner=report.next_mover,
            estimated_start=(
                timestamp(report.estimated_ms) if report.estimated_ms is not None else None
            ),
        )
        if old is not None and _words(old) == _words(pending):
            self._wishes.pop(key, None)
            return
        due_ms = now.monotonic_ms + after_ms
        if said is not None and old is not None and _gist(old) == _gist(pending):
            due_ms = max(due_ms, said.at_ms + NOTICE_EVERY_MS)
        self._wish(key, target, pending, due_ms, self._version(replica, said))

    @staticmethod
    def _version(replica: Replica, said: _Said | None) -> str:
        """The latest version known: our own write may not have come back on the stream yet."""
        seen = replica.metadata.resource_version
        if said is None or not said.version:
            return seen
        return said.version if object_revision(said.version) > object_revision(seen) else seen

    def _wish(self, key: Key, target: Target, pending: Pending, due_ms: int, version: str) -> None:
        self._tickets += 1
        self._wishes[key] = _Wish(target, pending, due_ms, self._tickets, version)
        heapq.heappush(self._heap, (due_ms, self._tickets, key))

    @staticmethod
    def _known(replica: Replica, said: _Said | None) -> Pending | None:
        """What its status says, as far as we know: our own later write counts."""
        if said is None:
            return replica.status.pending
        seen = replica.metadata.resource_version
        is_newer = said.revision is not None and seen and object_revision(seen) >= said.revision
        return replica.status.pending if is_newer else said.pending

    def seen(self, before: Replica, after: Replica) -> None:
        """Drop what is still to be published where another scheduler has published something since
        it was decided: its report is the newer one, and the next turn of the replica compares.
        """
        key, pending = (after.namespace, after.name), after.status.pending
        if key not in self._wishes or pending is None or pending == before.status.pending:
            return
        said = self._said.get(key)
        if said is not None:
            revision = object_revision(after.metadata.resource_version)
            if said.revision is None or revision <= said.revision:
                # Our own, or older than our own.
                return
        self.forget(key)

    def forget(self, key: Key) -> None:
        """Drop a replica that no longer waits."""
        self._wishes.pop(key, None)
        self._said.pop(key, None)

    @property
    def next_ms(self) -> int | None:
        """When the next report is due."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _is_current(self, due: tuple[int, int, Key]) -> bool:
        wish = self._wishes.get(due[2])
        return wish is not None and wish.ticket == due[1]

    def due(self, room: int, now_ms: int, term: Term) -> list[tuple[Key, ReportPending]]:
        """The reports to send now, at most `room`."""
        found: list[tuple[Key, ReportPending]] = []
        while len(found) < room:
            next_ms = self.next_ms
            if next_ms is None or next_ms > now_ms:
                break
            _, _, key = heapq.heappop(self._heap)
            wish = self._wishes.pop(key)
            if key in self._sending:
                # Two reports in flight could arrive in the wrong order.
                late_ms = now_ms + NOTICE_RETRY_MS
                self._wish(key, wish.target, wish.pending, late_ms, wish.version)
                continue
            self._sending.add(key)
            self._said[key] = _Said(wish.target, wish.pending, now_ms)
            report = ReportPending(wish.target, wish.pending, version=wish.version, term=term)
            found.append((key, report))
        return found

    def answered(self, key: Key, request: ReportPending, answer: object, now_ms: int) -> None:
        """Process the answer. A refusal means that the replica has moved on, and its change will
        arrive; or that only its version has, and then the refusal names the current one.
        """
        self._sending.discard(key)
        said = self._said.get(key)
        if said is None or said.target != request.target or said.pending != request.pending:
            return
        if isinstance(answer, Accepted):
            said.revision = answer.revision
            said.version = "".join(it.metadata.resource_version for it in answer.objects)
            return
        del self._said[key]
        version = request.version
        if isinstance(answer, Refusal):
            version = answer.details.get("resourceVersion", "")
            if not version.isdigit():
                return
        if key not in self._wishes:
            # Whether it was written or not, writing the same again changes nothing.
            late_ms = now_ms + NOTICE_RETRY_MS
            self._wish(key, request.target, request.pending, late_ms, version)


def _nearest(report: PlacementReport) -> str:
    miss = report.nearest_miss
    return f"node {miss.node}: {miss.message}" if miss is not None else ""


def _gist(pending: Pending) -> tuple[object, ...]:
    return tuple(sorted(pending.reasons)), pending.verdict


def _words(pending: Pending) -> tuple[object, ...]:
    """All but counters and times, which would make every try a write."""
    return (
        pending.reasons,
        pending.message,
        pending.verdict,
        pending.nearest_miss,
        pending.smallest_change,
        pending.owner,
    )
