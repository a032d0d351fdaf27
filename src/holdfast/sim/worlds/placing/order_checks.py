"""What must hold of the order of work: tenants get their shares, and a stated start is kept.

V5: a tenant does not wait while one that has much more gets place after place. BACKFILL: a job that
was told when it starts is bound by then, if all work ends as it states.
"""

from __future__ import annotations

from datetime import datetime

from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.time import wall_ms
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.checkers.permitted_changes import same
from holdfast.sim.world import World

REPLICAS = "objects/replicas/"
# A tenant has much more than another from this many times as much.
MUCH_MORE = 2
# A turn of the rotation, or a place that one scheduler sees first, may go to the larger one.
PASSED_OVER_MAX = 8
# Work ends in a round of its node, and its place is bound a moment later.
LATE_MS = 20_000


class FairTurns(Checker):
    """V5: see the module's docstring. All work has the same request and priority."""

    invariants = ("V5",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # How often the larger tenant was served, since the other one was, by their names.
        self._passed_over: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed(REPLICAS):
            if isinstance(new, Replica) and same(old, new) and _is_placed(old, new):
                self._count(new.namespace)

    def _count(self, served: str) -> None:
        replicas = self._store_copy.all(REPLICAS)
        held: dict[str, int] = {}
        waiting: dict[str, None] = {}
        for it in replicas:
            if it.status.state in (State.BOUND, State.RUNNING):
                held[it.namespace] = held.get(it.namespace, 0) + 1
            elif it.status.state is State.PENDING and it.status.pending is not None:
                waiting[it.namespace] = None
        self._passed_over[served] = 0
        for tenant in waiting:
            if tenant == served or held[served] <= MUCH_MORE * (held.get(tenant, 0) + 1):
                continue
            times = self._passed_over[tenant] = self._passed_over.get(tenant, 0) + 1
            if times > PASSED_OVER_MAX:
                has = f"{tenant} waits with {held.get(tenant, 0)} places"
                self.violated("V5", f"{has}, and {served} with {held[served]} got {times} more")


class KeptStarts(Checker):
    """BACKFILL: see the module's docstring."""

    invariants = ("BACKFILL",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # The first estimate of each job that has one, by uid.
        self._told: dict[str, datetime] = {}
        self.kept = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        now_ms = (world.origin_us + world.now_us) // 1000
        for _, _, new in self._store_copy.changed(REPLICAS):
            if not isinstance(new, Replica):
                continue
            told = self._told.get(new.metadata.uid)
            if new.status.state is not State.PENDING:
                self.kept += self._told.pop(new.metadata.uid, None) is not None
            elif told is None and new.status.pending is not None:
                estimate = new.status.pending.estimated_start
                if estimate is not None:
                    self._told[new.metadata.uid] = estimate
        for replica in self._store_copy.all(REPLICAS):
            told = self._told.get(replica.metadata.uid)
            if told is not None and now_ms - wall_ms(told) > LATE_MS:
                late_s = (now_ms - wall_ms(told)) // 1000
                self.violated("BACKFILL", f"{replica.name} is {late_s} s late for its start")


def _is_placed(old: Replica, new: Replica) -> bool:
    return old.status.state is State.PENDING and new.status.state is State.BOUND
