"""Disruption budgets, checked against the status of the replicas at every commit.

One commit holds many requests, in an order that the checker does not know. A replica that was
healthy before the commit, after it or in between may have been healthy when one of the requests was
decided.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import keys
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import WorkloadType
from holdfast.model.lifecycle import Stage, State
from holdfast.model.placement.disruption import BUDGETED, is_available
from holdfast.model.quota.ledger import DisruptionLedger
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.checkers.permitted_changes import same, steps_of
from holdfast.sim.world import World

_READY = (Stage.READY, Stage.SERVING)
_CAUSES = tuple(sorted(cause.value for cause in BUDGETED))
# A replica before and after a commit.
_Change = tuple[Replica | None, Replica | None]


class DisruptionBudgets(Checker):
    """BUDGET: each ledger counts the healthy replicas, and a voluntary disruption leaves as many as
    the budget demands.
    """

    invariants = ("BUDGET",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy

    def on_commit(self, world: World, commit: Commit) -> None:
        changes: dict[str, list[_Change]] = {
            key: [] for key, _, _ in self._store_copy.changed("ledgers/disruption/")
        }
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            changes.setdefault(_ledger_key(old if new is None else new), []).append((old, new))
        if not changes:
            return
        there: dict[str, list[Replica]] = {key: [] for key in changes}
        for replica in self._store_copy.all("objects/replicas/"):
            mine = there.get(_ledger_key(replica))
            if mine is not None:
                mine.append(replica)
        for key, changed in changes.items():
            self._check_counts(key, there[key])
            self._check_budget(key, there[key], changed)

    def _check_counts(self, key: str, there: list[Replica]) -> None:
        owner = self._store_copy.now.get(
            f"objects/workloads/{key.removeprefix('ledgers/disruption/')}"
        )
        if owner is None:
            return
        ledger = self._store_copy.now.get(key, DisruptionLedger())
        healthy = sum(not _is_idle(owner.spec.type, it) for it in there)
        if (ledger.replicas, ledger.healthy) != (len(there), healthy):
            said = f"{ledger.healthy} of {ledger.replicas} healthy"
            self.violated("BUDGET", f"{key} says {said}, expected {healthy} of {len(there)}")

    def _check_budget(self, key: str, there: list[Replica], changed: list[_Change]) -> None:
        # A replica that was not available costs nothing. One that became available in this commit
        # may have done so after it was stopped.
        taken = {
            new.metadata.uid: new.name
            for old, new in changed
            if new is not None
            and same(old, new)
            and old is not None
            and is_available(old)
            and old.status.stage is new.status.stage
            and any(it.to is State.STOPPING and it.reason in _CAUSES for it in steps_of(old, new))
            and not self._is_overdue(new)
        }
        ledgers: list[DisruptionLedger] = self._store_copy.versions(key)
        allowed = [it.allowed for it in ledgers if it.allowed is not None]
        if not taken or len(allowed) < len(ledgers):
            return
        before = {new.metadata.uid: old for old, new in changed if new is not None}
        rest = [it for it in there if it.metadata.uid not in taken]
        versions: list[_Change] = [(before.get(it.metadata.uid, it), it) for it in rest]
        versions += [it for it in changed if it[1] is None]
        desired = [it.desired for it in ledgers if it.desired is not None]
        of = ledgers[-1].type
        if desired:
            gone = min(desired) - sum(_may_have_worked(*it) for it in versions)
        else:
            gone = len(taken) + sum(_was_idle(of, it) for it in versions)
        if gone > max(allowed):
            names = sorted(taken.values())
            self.violated("BUDGET", f"{key}: {names} stopped, {gone} missing, {allowed} allowed")

    def _is_overdue(self, replica: Replica) -> bool:
        """Whether the drain of its node has a deadline: after it, budgets do not hold."""
        binding = replica.status.binding
        nodes = self._store_copy.versions(f"objects/nodes/{binding.node}") if binding else []
        return any(it.spec.drain is not None and it.spec.drain.deadline for it in nodes)


def _ledger_key(replica: Replica) -> str:
    return keys.disruption_ledger(replica.namespace, replica.spec.workload)


def _is_idle(of: WorkloadType, replica: Replica) -> bool:
    """Whether it counts as missing.

    A replica of a service counts whenever it is not available, others only until they are released,
    and a replica of a job only if it was stopped on purpose.
    """
    if is_available(replica) or of is WorkloadType.SERVICE:
        return not is_available(replica)
    is_missed = of is WorkloadType.PER_NODE or replica.status.cause is not None
    return is_missed and replica.status.state is not State.RELEASED


def _may_have_worked(old: Replica | None, new: Replica | None) -> bool:
    known: Iterable[Replica] = [it for it in (old, new) if it is not None]
    if any(is_available(it) for it in known):
        return True
    # It became ready and was lost again within the commit: only its stage still shows that.
    was_ready = old is not None and old.status.stage in _READY
    return new is not None and new.status.stage in _READY and not was_ready


def _was_idle(of: WorkloadType, change: _Change) -> bool:
    old, new = change
    return old is not None and new is not None and _is_idle(of, old) and _is_idle(of, new)
