"""What must hold of placement besides the invariants of the other worlds."""

from __future__ import annotations

from typing import Any

from holdfast.model.kinds.replica import Replica
from holdfast.model.requests import Bind
from holdfast.propose.queue.shard import SchedulerShare, shard_of
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.checkers.permitted_changes import same
from holdfast.sim.planes.checkers.process_checks import DesiredWork
from holdfast.sim.planes.checkers.starvation import is_placed
from holdfast.sim.planes.scheduler_taps import RequestSent
from holdfast.sim.world import World

# Each resync may try a pending replica once; twice is not a loop yet, and two schedulers may try.
ASKS_PER_MINUTE = 8
# By then the schedulers have processed the events of the end of the faults.
CALM_AFTER_MS = 90_000


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


class ShardLeases(Checker):
    """K2: where tenants are sharded among schedulers, each is placed under its shard's lease."""

    invariants = ("SPLIT",)

    def __init__(self, store_copy: StoreCopy, shards: int) -> None:
        self._store_copy, self._shards = store_copy, shards
        # The schedulers that bound something, by scope.
        self.acted: dict[str, set[str]] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if not (isinstance(new, Replica) and same(old, new) and is_placed(old, new)):
                continue
            binding = new.status.binding
            scope = SchedulerShare(shard_of(new.namespace, self._shards), self._shards).scope("")
            if binding is None or binding.scope != scope:
                self.violated("SPLIT", f"{new.name} of {new.namespace} was not placed by {scope}")
            else:
                self.acted.setdefault(scope, set()).add(binding.by)
