"""What happened in a worked example, in order: the evidence by which its sentences are judged.

Schedulers are overheard at their doors (`doors`); the store's commits tell the rest. Nobody on the
stage can read this.
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
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Bind
from holdfast.observe.watch_events import Get
from holdfast.sim.check import Checker, Commit
from holdfast.sim.scenarios.asking import ExplanationGiven
from holdfast.sim.scenarios.scheduler_taps import AnswerReceived, RequestSent
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.invariants import same, steps_of
from holdfast.sim.worlds.authority.ledger_oracle import ACTIVE, StoreCopy
from holdfast.sim.worlds.end_to_end.process_table import ProcessEnded, ProcessStarted

# What happens beside the store and belongs into the story.
_FACTS = (RequestSent, AnswerReceived, ProcessStarted, ProcessEnded, ExplanationGiven)
_LEDGERS = "ledgers/node/"
_QUOTAS = "ledgers/quota/"


class LogEntry(msgspec.Struct, frozen=True):
    """One entry of the story: when, as of which revision, and a fact or a change."""

    at_ms: int
    revision: int
    what: Any


class Bound(msgspec.Struct, frozen=True):
    """A change: a replica has its place. `charged` says that a quota ledger changed with it."""

    replica: Replica
    charged: bool

    @property
    def node(self) -> str:
        binding = self.replica.status.binding
        return binding.node if binding is not None else ""

    def __repr__(self) -> str:
        binding = self.replica.status.binding
        by = f"{binding.by} under epoch {binding.epoch}" if binding is not None else "nobody"
        return f"{self.replica.name} is bound to {self.node} by {by}"


class StateChanged(msgspec.Struct, frozen=True):
    """A change: a replica came into being or went another step of its life."""

    name: str
    uid: str
    state: State
    evidence: str = ""

    def __repr__(self) -> str:
        return f"{self.name} is {self.state.value}"


class ReplicaWaits(msgspec.Struct, frozen=True):
    """A change: a replica says why it waits."""

    name: str
    pending: Pending

    def __repr__(self) -> str:
        wake = self.pending.next_wake
        until = f"; next look by {wake:%H:%M:%S}" if wake is not None else ""
        return f"{self.name} waits: {self.pending.message} {dict(self.pending.reasons)}{until}"


class NodeChanged(msgspec.Struct, frozen=True):
    """A change: what may be believed about a node."""

    node: str
    phase: NodePhase
    is_open: bool

    def __repr__(self) -> str:
        return f"node {self.node} is {self.phase.value}{'' if self.is_open else ' and shut'}"


class ObjectRemoved(msgspec.Struct, frozen=True):
    """A change: an object that was owned by others is not there any more."""

    plural: str
    name: str

    def __repr__(self) -> str:
        return f"{self.plural} {self.name} is gone"


class ReservationEnded(msgspec.Struct, frozen=True):
    """A change: what was held for somebody is not held any more."""

    name: str
    owner: str
    reason: str
    deadline: datetime

    def __repr__(self) -> str:
        return f"what {self.name} held for {self.owner} is given back: {self.reason}"


class RunLog(Checker):
    """See the module's docstring. `moments` has everything; the rest are ways to look at it."""

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy
        self.entries: list[LogEntry] = []
        # Moments that the stage itself names, such as the end of a slow spell.
        self.marks: dict[str, int] = {}
        # Numbers that the stage reads off its machines at certain moments.
        self.counts: dict[str, int] = {}
        # The revisions of each node's ledger.
        self.ledgers: dict[str, list[int]] = {}
        self._judged: dict[str, NodeChanged] = {}

    def _add(self, world: World, what: Any, revision: int = 0) -> None:
        self.entries.append(LogEntry(world.now_us // 1000, revision, what))

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, _FACTS):
            self._add(world, fact)

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.store_copy.changed("objects/replicas/"):
            if isinstance(new, Replica):
                self._replica(world, commit.revision, old if same(old, new) else None, new)
        for key, _, _ in self.store_copy.changed(_LEDGERS):
            self.ledgers.setdefault(key.removeprefix(_LEDGERS), []).append(commit.revision)
        for _, _, new in self.store_copy.changed("objects/nodes/"):
            if new is None:
                continue
            is_open = not (new.spec.cordoned or new.spec.drain is not None or new.spec.taints)
            judged = NodeChanged(new.name, new.status.phase, is_open)
            if self._judged.get(new.name) != judged:
                self._judged[new.name] = judged
                self._add(world, judged, commit.revision)
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
                moved = StateChanged(new.name, new.metadata.uid, step.to, step.evidence)
                self._add(world, moved, revision)
        pending = new.status.pending
        if pending is not None and (old is None or old.status.pending != pending):
            self._add(world, ReplicaWaits(new.name, pending), revision)

    def _reservation(
        self, world: World, revision: int, old: Reservation | None, new: Reservation | None
    ) -> None:
        was_held = old is not None and old.status.phase in ACTIVE
        if old is None or not was_held or (new is not None and new.status.phase in ACTIVE):
            return
        reason = new.status.reason if new is not None else ""
        given = ReservationEnded(old.name, old.spec.owner.name, reason, old.spec.deadline)
        self._add(world, given, revision)

    # Ways to look at it --------------------------------------------------------------------------

    def all(self, kind: type[Any], where: Callable[[Any], bool] | None = None) -> list[LogEntry]:
        """Every moment of a kind, in order."""
        return [
            it for it in self.entries if isinstance(it.what, kind) and (not where or where(it.what))
        ]

    def last(self, kind: type[Any], where: Callable[[Any], bool] | None = None) -> LogEntry | None:
        found = self.all(kind, where)
        return found[-1] if found else None

    def bindings(self, name: str) -> list[LogEntry]:
        """Every bind of a replica that was committed."""
        return self.all(Bound, lambda it: it.replica.name == name)

    def bind_requests(self, name: str, who: str = "") -> list[LogEntry]:
        """Every bind of a replica that was asked for."""
        return self.all(
            RequestSent,
            lambda it: (
                isinstance(it.request, Bind)
                and it.request.target.name == name
                and (not who or it.who == who)
            ),
        )

    def bind_answers(self, name: str, who: str = "") -> list[LogEntry]:
        """Every answer to a bind of a replica."""
        return self.all(
            AnswerReceived,
            lambda it: (
                isinstance(it.request, Bind)
                and it.request.target.name == name
                and (not who or it.who == who)
            ),
        )

    def reads(self, name: str) -> list[LogEntry]:
        """Every time a scheduler asked the servers for this very replica."""
        return self.all(
            RequestSent, lambda it: isinstance(it.request, Get) and it.request.name == name
        )

    def state_changes(self, name: str, *states: State) -> list[LogEntry]:
        """Every time a replica came into one of these states."""
        return self.all(StateChanged, lambda it: it.name == name and it.state in states)

    def node_changes(self, node: str, *phases: NodePhase) -> list[LogEntry]:
        """Every time a node was said to be one of these."""
        return self.all(NodeChanged, lambda it: it.node == node and it.phase in phases)

    def waits(self, name: str) -> list[LogEntry]:
        return self.all(ReplicaWaits, lambda it: it.name == name)

    def replica(self, name: str) -> Replica | None:
        """As it is now."""
        for found in self.store_copy.all("objects/replicas/"):
            if found.name == name:
                replica: Replica = found
                return replica
        return None

    def lines(self) -> list[str]:
        """The story for people."""
        quiet = (Get,)
        return [
            f"{it.at_ms / 1000:9.3f} s  {it.what!r}"
            for it in self.entries
            if not (isinstance(it.what, AnswerReceived) and isinstance(it.what.request, quiet))
            and not _is_routine(it.what)
        ]


def _is_routine(what: Any) -> bool:
    """Keeping a lease is no news as long as it works."""
    if not isinstance(what, RequestSent | AnswerReceived):
        return False
    name = type(what.request).__name__
    if name not in ("RenewLease", "Get", "AcquireLease"):
        return False
    is_lease = name != "Get" or what.request.plural == "leases"
    return is_lease and not (isinstance(what, AnswerReceived) and isinstance(what.answer, Refusal))
