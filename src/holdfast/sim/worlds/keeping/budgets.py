"""One budget for all who take work away on purpose: never more than it allows, at any commit."""

from __future__ import annotations

from holdfast.model import keys
from holdfast.model.disruption import BUDGETED, counts_missing, is_available
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.books import Books
from holdfast.sim.worlds.authority.laws import same, steps_of
from holdfast.sim.worlds.keeping.laws import owner_key


class Spared(Checker):
    """Whoever stops what works leaves as many working as the budget demands.

    Judged by what replicas say, not by the ledger. What became of others in the same commit may
    have come later, so they count as they were before it.
    """

    invariants = ("BUDGET",)

    def __init__(self, books: Books) -> None:
        self._books = books

    def on_commit(self, world: World, commit: Commit) -> None:
        victims: dict[str, list[Replica]] = {}
        for _, old, new in self._books.changed("objects/replicas/"):
            if new is None or not same(old, new) or not is_available(old):
                continue
            if any(_takes(it.to, it.reason) for it in steps_of(old, new)):
                victims.setdefault(owner_key(new), []).append(new)
        for key, taken in victims.items():
            owners = self._books.versions(key)
            mine = [it for it in owners if it.metadata.uid == taken[0].spec.workload_uid]
            if mine and all(counts_missing(it) for it in mine):
                self._judge(mine, taken)

    def _judge(self, owners: list[Workload], taken: list[Replica]) -> None:
        workload = owners[-1]
        ledgers = self._books.versions(keys.disruption_ledger(workload.namespace, workload.name))
        allowed = max((it.allowed or 0 for it in ledgers), default=0)
        wanted = min(it.spec.replicas for it in owners)
        if any(it.desired is None for it in ledgers) or self._is_overdue(taken):
            return
        before = self._books.before
        was = [
            before.get(key, it)
            for key, it in self._books.keyed("objects/replicas/").items()
            if it.spec.workload_uid == workload.metadata.uid
        ]
        left = sum(it is not None and is_available(it) for it in was) - len(taken)
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


def _takes(to: State, reason: str) -> bool:
    return to is State.STOPPING and reason in {cause.value for cause in BUDGETED}
