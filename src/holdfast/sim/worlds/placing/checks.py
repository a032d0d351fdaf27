"""What must hold of placing besides the laws of the other worlds."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.fit import demand_of
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.requests import Bind
from holdfast.sim.check import Checker, Commit
from holdfast.sim.scenarios.doors import Sent
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.books import LEASES, Books
from holdfast.sim.worlds.authority.laws import same
from holdfast.sim.worlds.authority.liveness import Quiet
from holdfast.sim.worlds.slice.checks import Desired

# What waits is looked at once in a resync; twice is not a loop yet, and two may look.
ASKS_PER_MINUTE = 8
# News of the end of the faults have been dealt with by then.
CALM_AFTER_MS = 90_000
# Whoever pauses is overtaken now and then; so often it is no accident.
OVERTAKEN_MAX = 12


class NoProcesses:
    """Hollow nodes have none."""

    changes = 0


class Placed(Desired):
    """V1, V3: what is wanted runs or says why it waits. Whether a process is there is not asked."""

    def __init__(self, books: Books) -> None:
        super().__init__(books, NoProcesses())  # type: ignore[arg-type]

    def _surplus(self, replicas: list[Replica]) -> str | None:
        return None


class Settled(Quiet):
    """V4, where `is_strict` False overlooks that a word of waiting is written over.

    Of several schedulers that run free each writes its own reasons and names itself as the one that
    moves next, over what another one has written. The strict world shows it.
    """

    def __init__(self, books: Books, *, is_strict: bool) -> None:
        super().__init__(books)
        self._is_strict = is_strict

    def on_commit(self, world: World, commit: Commit) -> None:
        pairs = [
            (old, new) for key, old, new in self._books.changed("") if not key.startswith(LEASES)
        ]
        if self._is_strict or not all(_is_only_a_word(old, new) for old, new in pairs):
            super().on_commit(world, commit)


def _is_only_a_word(old: Any, new: Any) -> bool:
    if isinstance(old, Workload) and isinstance(new, Workload):
        # Its status counts who waits for what.
        return old.spec == new.spec
    return (
        isinstance(old, Replica)
        and isinstance(new, Replica)
        and old.status.pending is not None
        and new.status.pending is not None
        and _wordless(old) == _wordless(new)
    )


def _wordless(replica: Replica) -> tuple[object, ...]:
    """All of a replica but its word of waiting."""
    return (msgspec.structs.replace(replica.status, pending=None), replica.spec)


class Restful(Checker):
    """At rest nobody asks again and again for what cannot be had: no hot loop."""

    invariants = ("HOT",)

    def __init__(self) -> None:
        self._since_ms: int | None = None
        self._asked: dict[tuple[str, str], int] = {}

    def on_calm(self, world: World) -> None:
        self._since_ms = world.now_us // 1000 + CALM_AFTER_MS

    def on_fact(self, world: World, fact: Any) -> None:
        if self._since_ms is None or not isinstance(fact, Sent):
            return
        for_ms = world.now_us // 1000 - self._since_ms
        if for_ms < 0 or not isinstance(fact.request, Bind):
            return
        name = (fact.who, fact.request.target.name)
        self._asked[name] = self._asked.get(name, 0) + 1
        if self._asked[name] > ASKS_PER_MINUTE * (1 + for_ms / 60_000):
            times = f"{self._asked[name]} times in {for_ms} ms"
            self.violated("HOT", f"{name[0]} asks for a place of {name[1]} {times}")


class InTurn(Checker):
    """V5: of a tenant's replicas that ask for the same, an older one is not passed over for ever.

    Older ones may pause when a place becomes free, so that one or the other overtakes them.
    """

    invariants = ("V5",)

    def __init__(self, books: Books) -> None:
        self._books = books
        # How many younger ones went ahead, by uid.
        self._overtaken: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._books.changed("objects/replicas/"):
            if isinstance(new, Replica) and same(old, new) and _is_placed(old, new):
                self._went(new)

    def _went(self, younger: Replica) -> None:
        for older in self._books.all("objects/replicas/"):
            if older.status.state is State.PENDING and _was_before(older, younger):
                uid = older.metadata.uid
                self._overtaken[uid] = self._overtaken.get(uid, 0) + 1
                if self._overtaken[uid] > OVERTAKEN_MAX:
                    times = f"{self._overtaken[uid]} younger ones"
                    self.violated("V5", f"{older.name} waits, and {times} went ahead of it")


def _is_placed(old: Replica, new: Replica) -> bool:
    return old.status.state is State.PENDING and new.status.state is State.BOUND


def _was_before(one: Replica, other: Replica) -> bool:
    born, later = one.metadata.creation_timestamp, other.metadata.creation_timestamp
    mine, yours = one.spec.template, other.spec.template
    return (
        one.namespace == other.namespace
        and one.spec.priority >= other.spec.priority
        and born is not None
        and later is not None
        and born < later
        and one.metadata.deletion_timestamp is None
        and (demand_of(mine), mine.placement) == (demand_of(yours), yours.placement)
    )
