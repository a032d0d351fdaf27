"""What must hold of placing besides the laws of the other worlds."""

from __future__ import annotations

from typing import Any

from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import demand_of
from holdfast.model.requests import Bind
from holdfast.propose.queue.shard import SchedulerShare, shard_of
from holdfast.sim.check import Checker, Commit
from holdfast.sim.scenarios.scheduler_taps import RequestSent
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.invariants import same
from holdfast.sim.worlds.authority.ledger_oracle import StoreCopy
from holdfast.sim.worlds.end_to_end.checks import DesiredWork

# What waits is looked at once in a resync; twice is not a loop yet, and two may look.
ASKS_PER_MINUTE = 8
# News of the end of the faults have been dealt with by then.
CALM_AFTER_MS = 90_000
# Whoever pauses is overtaken now and then; so often it is no accident.
OVERTAKEN_MAX = 12


class NoProcesses:
    """Hollow nodes have none."""

    changes = 0


class PlacedWork(DesiredWork):
    """V1, V3: what is wanted runs or says why it waits. Whether a process is there is not asked."""

    def __init__(self, store_copy: StoreCopy) -> None:
        super().__init__(store_copy, NoProcesses())  # type: ignore[arg-type]

    def _surplus(self, replicas: list[Replica]) -> str | None:
        return None


class NoHotLoop(Checker):
    """At rest nobody asks again and again for what cannot be had: no hot loop."""

    invariants = ("HOT",)

    def __init__(self) -> None:
        self._since_ms: int | None = None
        self._asked: dict[tuple[str, str], int] = {}

    def on_calm(self, world: World) -> None:
        self._since_ms = world.now_us // 1000 + CALM_AFTER_MS

    def on_fact(self, world: World, fact: Any) -> None:
        if self._since_ms is None or not isinstance(fact, RequestSent):
            return
        for_ms = world.now_us // 1000 - self._since_ms
        if for_ms < 0 or not isinstance(fact.request, Bind):
            return
        name = (fact.who, fact.request.target.name)
        self._asked[name] = self._asked.get(name, 0) + 1
        if self._asked[name] > ASKS_PER_MINUTE * (1 + for_ms / 60_000):
            times = f"{self._asked[name]} times in {for_ms} ms"
            self.violated("HOT", f"{name[0]} asks for a place of {name[1]} {times}")


class NoStarvation(Checker):
    """V5: of a tenant's replicas that ask for the same, an older one is not passed over for ever.

    Older ones may pause when a place becomes free, so that one or the other overtakes them.
    """

    invariants = ("V5",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # How many younger ones went ahead, by uid.
        self._overtaken: dict[str, int] = {}
        # At which revision each came. Calendars that are set say nothing about who was first.
        self._born: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        changed = list(self._store_copy.changed("objects/replicas/"))
        for _, _old, new in changed:
            if isinstance(new, Replica):
                self._born.setdefault(new.metadata.uid, commit.revision)
        for _, old, new in changed:
            if isinstance(new, Replica) and same(old, new) and _is_placed(old, new):
                self._went(new)

    def _went(self, younger: Replica) -> None:
        for older in self._store_copy.all("objects/replicas/"):
            is_first = self._born[older.metadata.uid] < self._born[younger.metadata.uid]
            if is_first and older.status.state is State.PENDING and _asks_for(older, younger):
                uid = older.metadata.uid
                self._overtaken[uid] = self._overtaken.get(uid, 0) + 1
                if self._overtaken[uid] > OVERTAKEN_MAX:
                    times = f"{self._overtaken[uid]} younger ones"
                    self.violated("V5", f"{older.name} waits, and {times} went ahead of it")


class ShardLeases(Checker):
    """K2: where tenants are split among schedulers, each is placed under the lease of its part."""

    invariants = ("SPLIT",)

    def __init__(self, store_copy: StoreCopy, shards: int) -> None:
        self._store_copy, self._shards = store_copy, shards
        # Which schedulers bound something, by scope.
        self.acted: dict[str, set[str]] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if not (isinstance(new, Replica) and same(old, new) and _is_placed(old, new)):
                continue
            binding = new.status.binding
            scope = SchedulerShare(shard_of(new.namespace, self._shards), self._shards).scope("")
            if binding is None or binding.scope != scope:
                self.violated("SPLIT", f"{new.name} of {new.namespace} was not placed by {scope}")
            else:
                self.acted.setdefault(scope, set()).add(binding.by)


def _is_placed(old: Replica, new: Replica) -> bool:
    return old.status.state is State.PENDING and new.status.state is State.BOUND


def _asks_for(one: Replica, other: Replica) -> bool:
    """Whether it asks for what the other one got, and is no less important."""
    mine, yours = one.spec.template, other.spec.template
    return (
        one.namespace == other.namespace
        and one.spec.priority >= other.spec.priority
        and one.metadata.deletion_timestamp is None
        and (demand_of(mine), mine.placement) == (demand_of(yours), yours.placement)
    )
