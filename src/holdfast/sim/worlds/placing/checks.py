"""What must hold of placement besides the invariants of the other worlds."""

from __future__ import annotations

from typing import Any

from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import demand_of
from holdfast.model.requests import Bind
from holdfast.propose.queue.shard import SchedulerShare, shard_of
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.scheduler_taps import RequestSent
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.invariants import same
from holdfast.sim.worlds.authority.ledger_oracle import StoreCopy
from holdfast.sim.worlds.end_to_end.checks import DesiredWork

# Each resync may try a pending replica once; twice is not a loop yet, and two schedulers may try.
ASKS_PER_MINUTE = 8
# By then the schedulers have processed the events of the end of the faults.
CALM_AFTER_MS = 90_000
# A replica in back-off is overtaken now and then; this often is no accident.
OVERTAKEN_MAX = 12


class NoProcesses:
    """Hollow nodes have none."""

    changes = 0


class PlacedWork(DesiredWork):
    """V1, V3: desired work runs or says why it waits. Processes are not checked."""

    def __init__(self, store_copy: StoreCopy) -> None:
        super().__init__(store_copy, NoProcesses())  # type: ignore[arg-type]

    def _surplus(self, replicas: list[Replica]) -> str | None:
        return None


class NoHotLoop(Checker):
    """HOT: at rest no scheduler repeats a bind that cannot succeed: no hot loop."""

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
            self.violated("HOT", f"{name[0]} asks to bind {name[1]} {times}")


class NoStarvation(Checker):
    """V5: of a tenant's replicas that ask for the same, an older one is not overtaken forever.

    An older one may be in back-off when capacity becomes free, so that a few overtake it.
    """

    invariants = ("V5",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # How many younger ones overtook it, by uid.
        self._overtaken: dict[str, int] = {}
        # The revision that created each. Creation times by set calendars do not show the order.
        self._created: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        changed = list(self._store_copy.changed("objects/replicas/"))
        for _, _old, new in changed:
            if isinstance(new, Replica):
                self._created.setdefault(new.metadata.uid, commit.revision)
        for _, old, new in changed:
            if isinstance(new, Replica) and same(old, new) and _is_placed(old, new):
                self._count_overtaken(new)

    def _count_overtaken(self, younger: Replica) -> None:
        for older in self._store_copy.all("objects/replicas/"):
            is_first = self._created[older.metadata.uid] < self._created[younger.metadata.uid]
            if is_first and older.status.state is State.PENDING and _asks_for(older, younger):
                uid = older.metadata.uid
                self._overtaken[uid] = self._overtaken.get(uid, 0) + 1
                if self._overtaken[uid] > OVERTAKEN_MAX:
                    times = f"{self._overtaken[uid]} younger ones"
                    self.violated("V5", f"{older.name} waits, and {times} overtook it")


class ShardLeases(Checker):
    """K2: where tenants are sharded among schedulers, each is placed under its shard's lease."""

    invariants = ("SPLIT",)

    def __init__(self, store_copy: StoreCopy, shards: int) -> None:
        self._store_copy, self._shards = store_copy, shards
        # The schedulers that bound something, by scope.
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
