"""The log of a worked example, in order: the evidence for its sentences.

Requests and answers of schedulers come from their taps (`planes/scheduler_taps`); all other entries
come from the store's commits. No machine of the example can read this log.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Pending, Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.lifecycle import State
from holdfast.model.quota.charging import is_active
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Bind
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.checkers.permitted_changes import same, steps_of
from holdfast.sim.planes.process_table import ProcessEnded, ProcessStarted
from holdfast.sim.planes.scheduler_taps import AnswerReceived, RequestSent
from holdfast.sim.scenarios.asking import ExplanationGiven
from holdfast.sim.world import World

# The facts that are logged beside the store's commits.
_FACTS = (RequestSent, AnswerReceived, ProcessStarted, ProcessEnded, ExplanationGiven)
_QUOTAS = "ledgers/quota/"


class LogEntry(msgspec.Struct, frozen=True):
    """One entry of the log: the time, the revision, and a fact or a change."""

    at_ms: int
    revision: int
    what: Any


class Bound(msgspec.Struct, frozen=True):
    """A change: a replica was bound. `charged` says that a quota ledger changed with it."""

    replica: Replica
    charged: bool

    @property
    def node(self) -> str:
        binding = self.replica.status.binding
        return binding.node if binding is not None else ""

    def __repr__(self) -> str:
        binding = self.replica.status.binding
        by = (
            f"{binding.by} under epoch {binding.epoch}"
            if binding is not None
            else "an unknown actor"
        )
        return f"{self.replica.name} is bound to {self.node} by {by}"


class StateChanged(msgspec.Struct, frozen=True):
    """A change: a replica was created or changed its state."""

    name: str
    uid: str
    state: State
    evidence: str = ""

    def __repr__(self) -> str:
        return f"{self.name} is {self.state.value}"


class ReplicaWaits(msgspec.Struct, frozen=True):
    """A change: the status of a replica says why it waits."""

    name: str
    pending: Pending

    def __repr__(self) -> str:
        wake = self.pending.next_wake
        until = f"; next try by {wake:%H:%M:%S}" if wake is not None else ""
        return f"{self.name} waits: {self.pending.message} {dict(self.pending.reasons)}{until}"


class NodeChanged(msgspec.Struct, frozen=True):
    """A change: the phase of a node, or whether it takes new work."""

    node: str
    phase: NodePhase
    is_open: bool

    def __repr__(self) -> str:
        work = "" if self.is_open else " and closed to new work"
        return f"node {self.node} is {self.phase.value}{work}"


class ObjectRemoved(msgspec.Struct, frozen=True):
    """A change: an object with owners was removed."""

    plural: str
    name: str

    def __repr__(self) -> str:
        return f"{self.plural} {self.name} is gone"


class ReservationEnded(msgspec.Struct, frozen=True):
    """A change: a reservation is no longer active."""

    name: str
    owner: str
    reason: str
    deadline: datetime

    def __repr__(self) -> str:
        return f"reservation {self.name} for {self.owner} ended: {self.reason}"


class RunLog(Checker):
    """See the module's docstring. `entries` has everything; the methods select from it."""

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy
        self.entries: list[LogEntry] = []
        # Times that the example itself records, such as the end of a slow phase.
        self.marks: dict[str, int] = {}
        # Counters that the example reads from its machines at certain times.
        self.counts: dict[str, int] = {}
        # The revisions of each node.
        self.node_revisions: dict[str, list[int]] = {}
        self._nodes: dict[str, NodeChanged] = {}

    def _add(self, world: World, what: Any, revision: int = 0) -> None:
        self.entries.append(LogEntry(world.now_us // 1000, revision, what))

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, _FACTS):
            self._add(world, fact)

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.store_copy.changed("objects/replicas/"):
            if isinstance(new, Replica):
                self._replica(world, commit.revision, old if same(old, new) else None, new)
        for _, _, new in self.store_copy.changed("objects/nodes/"):
            if new is None:
                continue
            self.node_revisions.setdefault(new.name, []).append(commit.revision)
            is_open = not (new.spec.cordoned or new.spec.drain is not None or new.spec.taints)
            change = NodeChanged(new.name, new.status.phase, is_open)
            if self._nodes.get(new.name) != change:
                self._nodes[new.name] = change
                self._add(world, change, commit.revision)
        for _, old, new in self.store_copy.changed("objects/secrets/"):
            if new is None and old is not None:
                self._add(world, ObjectRemoved("secrets", old.name), commit.revision)
        for _, old, new in self.store_copy.changed("objects/reservations/"):
            self._reservation(world, commit.revision, old, new)

    def _replica(self, world: World, revision: int, old: Replica | None, new: Replica) -> None:
        for step in steps_of(old, new):
            if step.to is State.BOUND:
                charged = any(self.store_copy.changed(_QUOTAS))
                self._add(world, Bound(new, charged), revision)
            else:
                change = StateChanged(new.name, new.metadata.uid, step.to, step.evidence)
                self._add(world, change, revision)
        pending = new.status.pending
        if pending is not None and (old is None or old.status.pending != pending):
            self._add(world, ReplicaWaits(new.name, pending), revision)

    def _reservation(
        self, world: World, revision: int, old: Reservation | None, new: Reservation | None
    ) -> None:
        was_held = old is not None and is_active(old)
        if old is None or not was_held or (new is not None and is_active(new)):
            return
        reason = new.status.reason if new is not None else ""
        ended = ReservationEnded(old.name, old.spec.owner.name, reason, old.spec.deadline)
        self._add(world, ended, revision)

    # Queries -------------------------------------------------------------------------------------

    def all(self, kind: type[Any], where: Callable[[Any], bool] | None = None) -> list[LogEntry]:
        """All entries of a kind, in order."""
        return [
            it for it in self.entries if isinstance(it.what, kind) and (not where or where(it.what))
        ]

    def last(self, kind: type[Any], where: Callable[[Any], bool] | None = None) -> LogEntry | None:
        found = self.all(kind, where)
        return found[-1] if found else None

    def bindings(self, name: str) -> list[LogEntry]:
        """All committed binds of a replica."""
        return self.all(Bound, lambda it: it.replica.name == name)

    def bind_requests(self, name: str, who: str = "") -> list[LogEntry]:
        """All requests to bind a replica."""
        return self.all(
            RequestSent,
            lambda it: (
                isinstance(it.request, Bind)
                and it.request.target.name == name
                and (not who or it.who == who)
            ),
        )

    def bind_answers(self, name: str, who: str = "") -> list[LogEntry]:
        """All answers to requests to bind a replica."""
        return self.all(
            AnswerReceived,
            lambda it: (
                isinstance(it.request, Bind)
                and it.request.target.name == name
                and (not who or it.who == who)
            ),
        )

    def reads(self, name: str) -> list[LogEntry]:
        """All reads of this replica by a scheduler."""
        return self.all(
            RequestSent, lambda it: isinstance(it.request, Get) and it.request.name == name
        )

    def state_changes(self, name: str, *states: State) -> list[LogEntry]:
        """All changes of a replica to one of these states."""
        return self.all(StateChanged, lambda it: it.name == name and it.state in states)

    def node_changes(self, node: str, *phases: NodePhase) -> list[LogEntry]:
        """All changes of a node to one of these phases."""
        return self.all(NodeChanged, lambda it: it.node == node and it.phase in phases)

    def waits(self, name: str) -> list[LogEntry]:
        return self.all(ReplicaWaits, lambda it: it.name == name)

    def replica(self, name: str) -> Replica | None:
        """The replica as it is now."""
        for found in self.store_copy.all("objects/replicas/"):
            if found.name == name:
                replica: Replica = found
                return replica
        return None

    def lines(self) -> list[str]:
        """The log as text."""
        quiet = (Get,)
        return [
            f"{it.at_ms / 1000:9.3f} s  {it.what!r}"
            for it in self.entries
            if not (isinstance(it.what, AnswerReceived) and isinstance(it.what.request, quiet))
            and not _is_routine(it.what)
        ]


def _is_routine(what: Any) -> bool:
    """Whether an entry is about a lease and not a refusal: such entries are left out."""
    if not isinstance(what, RequestSent | AnswerReceived):
        return False
    name = type(what.request).__name__
    if name not in ("RenewLease", "Get", "AcquireLease"):
        return False
    is_lease = name != "Get" or what.request.plural == "leases"
    return is_lease and not (isinstance(what, AnswerReceived) and isinstance(what.answer, Refusal))
