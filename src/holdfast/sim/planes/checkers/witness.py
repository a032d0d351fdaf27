"""Checks of what was acknowledged, repeated and watched: INV3, INV10 and INV11."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.commit.ledgers.recount import recount
from holdfast.model import keys
from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.machine import Answered, Changed, Range, Started, Wake, Watch, Woken
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Bind
from holdfast.model.time import Instant
from holdfast.model.transaction import Batch, Change, Page, Record
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy, accepted_in
from holdfast.sim.planes.facts import AcknowledgedRequest, DeniedRequest, StateFact, Trespass
from holdfast.sim.planes.shared_names import MISCHIEF
from holdfast.sim.world import World

FOLLOWER = "follower"
REOPEN_MS = 1_000
# Within this time after the faults, a watcher has received all that was written before.
SEEN_BY_MS = 30_000


class AcknowledgedWrites(Checker):
    """INV11: what was acknowledged is in the store's history. INV6: rogues achieve nothing."""

    invariants = ("INV6", "INV11")

    def __init__(self, store_copy: StoreCopy, records: tuple[Record, ...]) -> None:
        self.store_copy = store_copy
        self._written = {(record.key, record.modified) for record in records}
        # All bindings so far, by the replica, its transition number and the node.
        self._bound: set[tuple[str, int, str]] = set()

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            self._written.add((change.key, change.revision))
            value = self.store_copy.now.get(change.key)
            if isinstance(value, Replica) and value.status.binding is not None:
                self._record_binding(value)

    def _record_binding(self, replica: Replica) -> None:
        status, node = replica.status, replica.status.binding
        for back, record in enumerate(reversed(status.transitions)):
            if record.to is State.BOUND and node is not None:
                number = status.transition_number - back - 1
                self._bound.add((replica.metadata.uid, number, node.node))

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, Trespass):
            self.violated("INV6", f"{fact.who} was permitted {fact.request}")
        if isinstance(fact, AcknowledgedRequest):
            self._check_acknowledged(fact.who, fact.request, fact.answer)

    def _check_acknowledged(self, who: str, request: Any, answer: Accepted) -> None:
        for obj in answer.objects:
            key, version = keys.key_of(obj), obj.metadata.resource_version
            if not version or (key, object_revision(version)) not in self._written:
                self.violated(
                    "INV11", f"{who} got an answer with {key} at {version}, which was not written"
                )
        if isinstance(request, Bind):
            asked = (request.target.uid, request.target.number, request.node)
            if asked not in self._bound:
                self.violated(
                    "INV11", f"{who} got an answer that {request.target.name} is bound; it is not"
                )


class OperationsOnce(Checker):
    """INV3: an operation id takes effect at most once, by the operations that objects record."""

    invariants = ("INV3", "INV6")

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy
        self._seen: dict[str, tuple[str, int]] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for key, old, new in self.store_copy.changed(keys.OBJECTS):
            for operation in accepted_in(old, new):
                if MISCHIEF in operation.id:
                    self.violated("INV6", f"{operation.id} changed {key}")
                first = self._seen.setdefault(operation.id, (operation.digest, commit.revision))
                if first != (operation.digest, commit.revision):
                    self.violated("INV3", f"{operation.id} took effect twice, on {key}")


class TruthfulRefusals(Checker):
    """Negative answers are true.

    No answer says of an operation that happened that it did not. An accepted request is not refused
    when it is repeated. No refusal rests on an older state than the request.
    """

    invariants = ("INV3", "INV11")

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy
        self._done: dict[str, None] = {}
        self._accepted: dict[str, Any] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for key, _old, _new in self.store_copy.changed(keys.OBJECTS):
            new = self.store_copy.now.get(key)
            for operation in new.metadata.operations if new is not None else ():
                self._done[operation.id] = None

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, AcknowledgedRequest):
            operation = getattr(fact.request, "operation", "")
            if operation:
                self._accepted[operation] = fact.request
        elif isinstance(fact, DeniedRequest):
            # Where the network duplicates requests, one copy may fail and the other take effect.
            alone = fact.once and not world.injected.get("duplicate")
            self._check_denied(fact, alone=alone)

    def _check_denied(self, fact: DeniedRequest, *, alone: bool) -> None:
        request, answer = fact.request, fact.answer
        operation = request.operation
        if isinstance(answer, Unavailable):
            if alone and operation in self._done:
                self.violated("INV11", f"{operation} happened, but the answer said that it did not")
            return
        target = getattr(request, "target", None)
        if target is None:
            return
        replica = self.store_copy.now.get(f"objects/replicas/{target.namespace}/{target.name}")
        if replica is None or replica.metadata.uid != target.uid:
            return
        if answer.reason is Reason.MISSING and str(target.name) in answer.message:
            self.violated("INV11", f"{target.name} was reported as missing, but exists")
        # The refusal may be about a victim, so its details hold the expected number.
        number, expected = (int(answer.details.get(part, 0)) for part in ("number", "expected"))
        if answer.reason is Reason.STALE_REPLICA and number < expected:
            self.violated("INV11", f"{operation} was refused on an older state than its own")
        kept = len(replica.metadata.operations) < PlaneSettings().operations_kept
        if kept and self._accepted.get(operation) == request:
            self.violated("INV3", f"{operation} was accepted, but refused when it was repeated")


class FollowedBatch(msgspec.Struct, frozen=True):
    """A fact: the changes that a watcher received, and the revision up to which it is complete."""

    after: int
    revision: int
    changes: tuple[Change, ...]

    def __repr__(self) -> str:
        return f"followed {self.after} to {self.revision}"


class WatchFollower:
    """Keeps a copy of all objects by list and watch, and lists again when its watch ends."""

    def __init__(self, _seat: Seat, prefix: str = keys.OBJECTS) -> None:
        self._prefix = prefix
        self.copy: dict[str, bytes] = {}
        self.revision = 0
        self._calls = 0

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Started() | Woken():
                return self._list()
            case Changed(watch=watch, body=Batch() as batch) if watch == self._calls:
                batch_fact = FollowedBatch(self.revision, batch.revision, tuple(batch.changes))
                self._apply(batch)
                return [StateFact(batch_fact)]
            case Changed(watch=watch) if watch == self._calls:
                return self._list()
            case Answered(body=body):
                if not isinstance(body, Page):
                    return [Wake("list", now.monotonic_ms + REOPEN_MS)]
                self.copy = {record.key: record.value for record in body.records}
                self.revision = body.revision
                return [Watch(self._calls, self._prefix, self.revision)]
        return []

    def _list(self) -> list[Any]:
        self._calls += 1
        end = keys.after_prefix(self._prefix)
        return [Range(self._calls, self._prefix, end, timeout_ms=2_000)]

    def _apply(self, batch: Batch) -> None:
        for change in batch.changes:
            if change.value is None:
                self.copy.pop(change.key, None)
            else:
                self.copy[change.key] = change.value
        self.revision = batch.revision


class WatchOrder(Checker):
    """INV10: revisions only grow, a watch delivers every change once and in order, and a follower
    ends with exactly what the store holds."""

    invariants = ("INV10",)

    def __init__(self, records: tuple[Record, ...], prefix: str = keys.OBJECTS) -> None:
        """`prefix` is what the follower watches."""
        self._prefix = prefix
        self._first = {r.key: r.value for r in records if r.key.startswith(prefix)}
        self._last = 0
        self._changes: list[Change] = []
        # At the end, every watcher has received all revisions up to this one.
        self._old = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        if self._last and commit.revision != self._last + 1:
            self.violated("INV10", f"revision {commit.revision} follows {self._last}")
        self._last = commit.revision
        self._changes += [c for c in commit.changes if c.key.startswith(self._prefix)]

    def on_fact(self, world: World, fact: Any) -> None:
        if not isinstance(fact, FollowedBatch):
            return
        due = self._between(fact.after, fact.revision)
        if list(fact.changes) != due:
            missing = f"{len(fact.changes)} changes instead of {len(due)}"
            self.violated("INV10", f"from {fact.after} to {fact.revision}: {missing}")

    def _between(self, after: int, until: int) -> list[Change]:
        first = bisect_right(self._changes, after, key=lambda change: change.revision)
        last = bisect_right(self._changes, until, key=lambda change: change.revision)
        return self._changes[first:last]

    def on_calm(self, world: World) -> None:
        world.post(world.now_us + SEEN_BY_MS * 1000, self._note, world, None)

    def _note(self, _number: int, _world: World, _: None) -> None:
        self._old = self._last

    def at_end(self, world: World) -> None:
        machine = world.cells[FOLLOWER].machine
        if not isinstance(machine, WatchFollower) or machine.revision < self._old:
            self.violated("INV10", f"the follower has not reached revision {self._old}")
        held = dict(self._first)
        for change in self._between(0, machine.revision):
            held.pop(change.key, None)
            if change.value is not None:
                held[change.key] = change.value
        if machine.copy != held:
            at = machine.revision
            self.violated("INV10", f"the follower's copy differs from the store at revision {at}")


class FinalRecount(Checker):
    """All ledgers of the last revision are right, by the recount that operators run."""

    invariants = ("INV3", "INV4")

    def __init__(self) -> None:
        # The name of a sum that may be wrong in the world.
        self.inexact = ""

    def at_end(self, world: World) -> None:
        records = world.stores["store"].keyspace.range("", keys.END).records
        wrong = [it for it in recount(records) if not self.inexact or self.inexact not in it]
        if wrong:
            self.violated("INV3", "; ".join(wrong[:3]))
