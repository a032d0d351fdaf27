"""No replica waits forever while others that ask for the same are placed."""

from __future__ import annotations

from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import demand_of
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.checkers.permitted_changes import same
from holdfast.sim.world import World

# A replica in back-off is overtaken now and then; this often is no accident.
OVERTAKEN_MAX = 12


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
            if isinstance(new, Replica) and same(old, new) and is_placed(old, new):
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


def is_placed(old: Replica, new: Replica) -> bool:
    """Whether the last commit bound it."""
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
