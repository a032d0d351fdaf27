"""controller:disruption: has the budgets of workloads count what is so.

It owns the disruption ledger of each workload that states a budget, besides what the commit itself
writes there: whoever is born is missing, whoever is stopped is out, and both are forgotten with
their objects. What is left to say is when a replica became ready, and when it is not any more.

    ready, and not said so yet                    -> settle
    not ready, and not said so yet                -> settle
    evicted from a job, or from its one node,
    and released                                  -> settle: it is not missed there

A ledger cannot be watched. So what was settled in this term is remembered, and at its beginning all
replicas are named once. A settlement names replicas, and the authority looks at them itself and
answers with what it saw: being late holds evictions up, and being wrong changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.correct.controller import BY_WORKLOAD, Controller, Plan, View, key_of
from holdfast.correct.rests import Rests
from holdfast.model.disruption import counts_missing, is_available, is_missing
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.requests import Accepted, SettleDisruption, Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Change, Key

# So many replicas are named in one settlement; the authority takes no more.
NAMED_MAX = 64


class _Told(msgspec.Struct):
    """What was settled for one workload in one term: whether each replica is missing, by uid."""

    workload: Workload
    epoch: int
    known: dict[str, bool] = {}


class DisruptionController(Controller):
    """See the module's docstring."""

    name = "disruption"
    follows = ("workloads", "replicas")
    indexes = (BY_WORKLOAD,)

    def __init__(self) -> None:
        self._rests = Rests()
        self._told: dict[Key, _Told] = {}

    def keys_of(self, change: Change, view: View) -> Iterable[Key]:
        """A replica concerns its workload when it becomes ready or stops being so, and when one
        that was evicted is released.

        One that is born counts as missing already, and of a workload only the budget matters.
        """
        before, after, obj = change.before, change.after, change.object
        if isinstance(obj, Replica):
            is_news = _standing(before) != _standing(after)
            return ((obj.namespace, obj.spec.workload),) if is_news else ()
        is_same = before is not None and after is not None and _spec(before) == _spec(after)
        return () if is_same else (key_of(obj),)

    def all_keys(self, view: View) -> Iterable[Key]:
        """Those with a budget, and those that had one."""
        self._rests.clear()
        stated = [key_of(it) for it in view.all("workloads") if it.spec.disruption is not None]
        return dict.fromkeys((*stated, *self._told))

    def reconcile(self, view: View, key: Key, term: Term, now: Instant) -> Plan:
        workload: Workload | None = view.get("workloads", *key)
        if workload is None or workload.spec.disruption is None:
            self._told.pop(key, None)
            self._rests.forget(key)
            return Plan()
        left_ms = self._rests.left_ms(key, now)
        if left_ms:
            return Plan(wake_after_ms=left_ms)
        named: list[Replica] = view.found(BY_WORKLOAD, f"{key[0]}/{key[1]}")
        self._rests.rest(key, len(named), now)
        self._forget_others(key, named)
        uid = workload.metadata.uid
        known = self._known(key, workload, term)
        news = [
            it.name
            for it in named
            if it.spec.workload_uid == uid
            and (counts_missing(workload) or it.status.cause is not None)
            and known.get(it.metadata.uid) is not is_missing(workload, it)
        ]
        return Plan(
            tuple(
                SettleDisruption(*key, tuple(news[first : first + NAMED_MAX]), term)
                for first in range(0, len(news), NAMED_MAX)
            )
        )

    def _forget_others(self, key: Key, named: list[Replica]) -> None:
        """Forget replicas that are gone, before they are more than those that are there."""
        told = self._told.get(key)
        if told is not None and len(told.known) > 2 * len(named) + NAMED_MAX:
            there = {it.metadata.uid for it in named}
            told.known = {uid: missing for uid, missing in told.known.items() if uid in there}

    def _known(self, key: Key, workload: Workload, term: Term) -> dict[str, bool]:
        """What was settled for this very workload in this term."""
        told = self._told.get(key)
        is_same = told is not None and told.workload.metadata.uid == workload.metadata.uid
        if told is None or not is_same or told.epoch != term.epoch:
            told = self._told[key] = _Told(workload, term.epoch)
        elif _spec(told.workload) != _spec(workload):
            # It may have been without a budget for a moment, in which nobody counts as missing.
            told.workload = workload
            told.known = {it: missing for it, missing in told.known.items() if not missing}
        return told.known

    def answered(
        self, request: Any, to: str, answer: Any, sent_ms: int, now: Instant
    ) -> Iterable[Key]:
        """Remember what was settled: what the authority saw, whatever we did."""
        told = self._told.get((request.namespace, request.workload))
        if told is not None and told.epoch == request.term.epoch and isinstance(answer, Accepted):
            told.known |= {
                it.metadata.uid: is_missing(told.workload, it)
                for it in answer.objects
                if isinstance(it, Replica)
            }
        return ()


def _standing(replica: Any) -> tuple[bool, bool]:
    """Whether it works, and whether it was evicted and has gone."""
    if not isinstance(replica, Replica):
        return False, False
    status = replica.status
    is_released = status.state is State.RELEASED and status.cause is not None
    return is_available(replica), is_released


def _spec(workload: Any) -> tuple[str, int]:
    return workload.metadata.uid, workload.metadata.generation
