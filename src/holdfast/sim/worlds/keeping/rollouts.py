"""A rollout does no more at a time than it may, at any commit."""

from __future__ import annotations

from holdfast.model.disruption import is_available
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import RolloutStrategy, Workload, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.model.rollouts import limits
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.books import Books
from holdfast.sim.worlds.authority.laws import same, steps_of
from holdfast.sim.worlds.keeping.laws import owner_key


class Rolled(Checker):
    """A rollout never has more places on their way than it may, counted from its own acts.

    A place is on its way from the moment when a rollout stopped what worked there until something
    works there again. What is lost for other reasons meanwhile is not its doing.
    """

    invariants = ("ROLLOUT",)

    def __init__(self, books: Books) -> None:
        self._books = books
        self._begun: dict[str, set[int]] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        stopped: dict[str, Replica] = {}
        for _, old, new in self._books.changed("objects/replicas/"):
            if new is None:
                continue
            begun = self._begun.setdefault(new.spec.workload_uid, set())
            if is_available(new):
                begun.discard(new.spec.ordinal)
            elif same(old, new) and is_available(old) and _was_rolled(old, new):
                begun.add(new.spec.ordinal)
                stopped[new.spec.workload_uid] = new
        for replica in stopped.values():
            self._judge(replica)

    def _judge(self, replica: Replica) -> None:
        uid = replica.spec.workload_uid
        owners = [it for it in self._books.versions(owner_key(replica)) if it.metadata.uid == uid]
        rolled = [it for it in owners if it.spec.rollout.strategy is not RolloutStrategy.RECREATE]
        if not rolled:
            return
        allowed = [limits(it.spec.rollout, self._stated(it)) for it in rolled]
        most = max(map(sum, allowed))
        surge = max(too_many for _, too_many in allowed)
        # Places beyond these were given up, and nobody comes there any more.
        places = max(map(self._stated, rolled)) + surge
        is_service = rolled[-1].spec.type is WorkloadType.SERVICE
        begun = sorted(it for it in self._begun[uid] if it < places or not is_service)
        if len(begun) > most:
            name = replica.spec.workload
            self.violated("ROLLOUT", f"{name} has {begun} on their way, and {most} may be")

    def _stated(self, workload: Workload) -> int:
        if workload.spec.type is WorkloadType.SERVICE:
            return workload.spec.replicas
        return len(self._books.all("objects/nodes/"))


def _was_rolled(old: Replica, new: Replica) -> bool:
    cause = Cause.ROLLOUT.value
    return any(it.to is State.STOPPING and it.reason == cause for it in steps_of(old, new))
