"""One budget for all who take work away on purpose: never more than it allows, at any commit."""

from __future__ import annotations

from holdfast.model import keys
from holdfast.model.disruption import BUDGETED, counts_missing, is_available
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import RolloutStrategy, Workload, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.model.rollouts import limits
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.books import Books
from holdfast.sim.worlds.authority.laws import same, steps_of
from holdfast.sim.worlds.keeping.laws import owner_key


class Spared(Checker):
    """Whoever stops what works leaves as many as the budget demands.

    Judged by what replicas say, not by the ledger. One that was ready and was stopped by nobody
    counts although it may be lost: that becomes known to the ledger a moment later. What became of
    others in the same commit may have come later, so they count as they were before it.
    """

    invariants = ("BUDGET",)

    def __init__(self, books: Books) -> None:
        self._books = books
        # Those that were ready once and that nobody has stopped since.
        self._working: set[str] = set()

    def on_commit(self, world: World, commit: Commit) -> None:
        victims: dict[str, list[Replica]] = {}
        stopped: list[str] = []
        for _, old, new in self._books.changed("objects/replicas/"):
            if new is None or not same(old, new):
                continue
            steps = [it for it in steps_of(old, new) if it.to is State.STOPPING]
            if steps:
                stopped.append(new.metadata.uid)
                if is_available(old) and any(it.reason in _BUDGETED for it in steps):
                    victims.setdefault(owner_key(new), []).append(new)
            elif is_available(new):
                self._working.add(new.metadata.uid)
        for key, taken in victims.items():
            owners = self._books.versions(key)
            mine = [it for it in owners if it.metadata.uid == taken[0].spec.workload_uid]
            if mine and all(counts_missing(it) for it in mine):
                self._judge(mine, taken)
        self._working.difference_update(stopped)

    def _judge(self, owners: list[Workload], taken: list[Replica]) -> None:
        workload = owners[-1]
        ledgers = self._books.versions(keys.disruption_ledger(workload.namespace, workload.name))
        allowed = max((it.allowed or 0 for it in ledgers), default=0)
        wanted = min(it.spec.replicas for it in owners)
        if any(it.desired is None for it in ledgers) or self._is_overdue(taken):
            return
        there = [
            it.metadata.uid
            for it in self._books.all("objects/replicas/")
            if it.spec.workload_uid == workload.metadata.uid
        ]
        left = len(self._working.intersection(there)) - len(taken)
        if left < wanted - allowed:
            names = [it.name for it in taken]
            self.violated("BUDGET", f"{names} taken, {left} of {wanted} left, {allowed} allowed")

    def _is_overdue(self, taken: list[Replica]) -> bool:
        """Whether the operator gave a drain a deadline: budgets end there."""
        for replica in taken:
            binding = replica.status.binding
            found = self._books.versions(f"objects/nodes/{binding.node}") if binding else []
            if any(it.spec.drain is not None and it.spec.drain.deadline for it in found):
                return True
        return False


_BUDGETED = tuple(sorted(cause.value for cause in BUDGETED))


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
