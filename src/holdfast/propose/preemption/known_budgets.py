"""The disruption budgets that have refused a preemption, kept up to date.

A scheduler does not follow workloads: they change with each step of their replicas. It reads one
when its budget has refused a preemption, and again with each resync. In between it counts the
workload's replicas as the commit does. The search for victims asks the commit's own rule, so that
nothing is proposed again that a budget refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Cause
from holdfast.model.placement.disruption import (
    count_change,
    disruption_ledger_of,
    disruption_refusal,
)
from holdfast.model.quota.ledger import DisruptionLedger
from holdfast.model.refusal import Refusal
from holdfast.observe.cache import Key

# The workloads that are read at once; the others follow when these are answered.
READS_MAX = 32


class KnownBudgets:
    """See the module's docstring. Ledgers are by the uid of the workload."""

    def __init__(self) -> None:
        self._ledgers: dict[str, DisruptionLedger] = {}
        self._uids: dict[Key, str] = {}
        self._unread: dict[Key, None] = {}
        self._reading: dict[Key, None] = {}

    def copy(self) -> KnownBudgets:
        """The same, to be changed by itself."""
        made = KnownBudgets()
        made._ledgers, made._uids = dict(self._ledgers), dict(self._uids)
        return made

    # What is known -------------------------------------------------------------------------------

    def get(self, uid: str) -> DisruptionLedger | None:
        """The ledger of a workload, if its budget is known."""
        return self._ledgers.get(uid)

    def used_up(self) -> list[str]:
        """The workloads of which no ready replica may be stopped now."""
        return [uid for uid, ledger in self._ledgers.items() if budget_refusal(ledger) is not None]

    def notice(self, before: Any, after: Any) -> None:
        """Count a change of a replica."""
        uid = (after if isinstance(after, Replica) else before).spec.workload_uid
        ledger = self._ledgers.get(uid)
        if ledger is not None:
            self._ledgers[uid] = count_change(ledger, before, after)

    # Reading -------------------------------------------------------------------------------------

    def refused(self, workload: Key) -> None:
        """Note that the budget of a workload refused."""
        self._unread[workload] = None

    def resync(self) -> None:
        """Read all again: budgets may have been changed."""
        self._reading.clear()
        self._unread |= dict.fromkeys(self._uids)

    def to_read(self, most: int) -> list[Key]:
        """The workloads to read now, at most `most`."""
        room = min(most, READS_MAX - len(self._reading))
        keys = [it for it in self._unread if it not in self._reading][: max(0, room)]
        for key in keys:
            del self._unread[key]
            self._reading[key] = None
        return keys

    def failed(self, key: Key) -> None:
        """A read had no answer: what was known is kept until the resync."""
        self._reading.pop(key, None)

    def read(self, key: Key, workload: Workload | None, replicas: Iterable[Replica]) -> None:
        """Take in a workload, None if it is gone. `replicas` are all of the plane."""
        self._reading.pop(key, None)
        self._ledgers.pop(self._uids.pop(key, ""), None)
        if workload is None or workload.spec.disruption is None:
            return
        uid = self._uids[key] = workload.metadata.uid
        mine = (it for it in replicas if it.spec.workload_uid == uid)
        self._ledgers[uid] = disruption_ledger_of(workload, mine)


def budget_refusal(ledger: DisruptionLedger, *, is_ready: bool = True) -> Refusal | None:
    """Why a budget would not let a replica be stopped for other work, by the rule of the commit."""
    return disruption_refusal(ledger, Cause.PREEMPTION, available=is_ready)


def without(ledger: DisruptionLedger, ready: Iterable[bool]) -> DisruptionLedger | None:
    """The ledger once replicas are stopped that are ready or not; None if it does not allow all."""
    for is_ready in ready:
        if budget_refusal(ledger, is_ready=is_ready) is not None:
            return None
        ledger = msgspec.structs.replace(ledger, healthy=ledger.healthy - is_ready)
    return ledger
