"""controller:endpoints: the addresses of the ready replicas of each service.

It owns the Endpoints of services and per-node workloads, which have the workload's name and belong
to it, and the stage Serving of a replica.

    ready and not listed     -> added to a list
    listed and not ready     -> removed from it: also when stopping, and when out of contact
    listed and stage Ready   -> Serving, once the cache shows the list with it
    workload gone            -> its lists are removed

So a replica is published before its stage is Serving: a client that watches the list knows the
replica first. A replica that leaves the list loses the stage with the transition that made it
leave; one that was not ready for a moment only may still be Serving just after a list dropped it,
until the next reconcile lists it again. A list is written once for all changes since the last
write; large lists pause in between, and pause less when an address has to be removed. A workload
with more than a thousand replicas has several lists (`split_lists`).

Updates name the resourceVersion that they rest on, and stages are refused unless the replica is
ready at that moment, so nothing here has an operation id: a replica may become ready many times
within one step of its life.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_WORKLOAD,
    REQUESTS_PER_PLAN_MAX,
    Controller,
    ReconcilePlan,
    key_of,
)
from holdfast.correct.pacing import Cooldowns
from holdfast.correct.remembered import Notes
from holdfast.model.kinds.endpoints import Endpoint, Endpoints, list_name, list_of
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import LASTING, Workload
from holdfast.model.lifecycle import Actor, Stage
from holdfast.model.meta import API_VERSION, WORKLOAD_LABEL, ObjectMeta, OwnerReference
from holdfast.model.placement.disruption import is_available
from holdfast.model.requests import Create, Remove, ReportStage, Term, Update, target
from holdfast.model.time import Instant
from holdfast.model.validation.records import ENDPOINTS_MAX
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

# Which list each address is in, where a workload has more addresses than one list holds.
#
# An address stays in its list, so that an addition or removal changes one list of a thousand
# addresses and not all lists behind it; new addresses take the first free slot. The result is the
# same for the same cache.


def split_lists(
    known: Mapping[int, Endpoints], entries: Sequence[Endpoint]
) -> dict[int, tuple[Endpoint, ...]]:
    """The addresses of each list by its number, in the given order.

    The result contains all existing lists, also those that become empty.
    """
    numbers = sorted(known)
    if len(entries) <= ENDPOINTS_MAX and numbers in ([], [0]):
        return {0: tuple(entries)} if entries or numbers else {}
    homes: dict[str, int] = {}
    for number in numbers:
        for entry in known[number].endpoints:
            homes.setdefault(entry.replica, number)
    lists: dict[int, list[Endpoint]] = {number: [] for number in numbers}
    taken = dict.fromkeys(numbers, 0)
    for entry in entries:
        if entry.replica in homes:
            taken[homes[entry.replica]] += 1
    free = 0
    for entry in entries:
        if entry.replica not in homes:
            while taken.get(free, 0) >= ENDPOINTS_MAX:
                free += 1
            taken[free] = taken.get(free, 0) + 1
            homes[entry.replica] = free
        lists.setdefault(homes[entry.replica], []).append(entry)
    return {number: tuple(lists[number]) for number in sorted(lists)}


# How soon to reconcile again when the cache may lack the workload of a list.
UNTOLD_PAUSE_MS = 1_000
# Clients of a leaving replica get errors until it is out of the list: a tenth of a second for ten
# thousand replicas, for which a reconcile takes a third of that.
LEAVING_REST_US_PER_REPLICA = 10


def _workload_of(known: Endpoints) -> Iterable[str]:
    return (f"{known.namespace}/{list_of(known.name)[0]}",)


BY_SERVICE = Index("endpoints", "workload", _workload_of)


class EndpointsController(Controller):
    """See the module's docstring."""

    actor = Actor.ENDPOINTS
    follows = ("workloads", "replicas", "nodes", "endpoints")
    indexes = (BY_WORKLOAD, BY_SERVICE)

    def __init__(self) -> None:
        self._rests, self._short_rests = Cooldowns(), Cooldowns(LEAVING_REST_US_PER_REPLICA)
        # Keys with a replica that is no longer ready, until they are reconciled.
        self._left: Notes[Key, None] = Notes()
        self.remembers = (self._rests, self._short_rests, self._left)

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """A replica that is not ready before or after a change concerns no list.

        A node's zone is looked up when a list is written; the resync handles a later change of it.
        """
        match change.object:
            case Node():
                return ()
            case Endpoints() as known:
                return ((known.namespace, list_of(known.name)[0]),)
            case Replica() as replica:
                key = (replica.namespace, replica.spec.workload)
                is_ready = _is_ready(change.after)
                if _is_ready(change.before) and not is_ready:
                    self._left[key] = None
                    return (key,)
                return (key,) if is_ready else ()
        return (key_of(change.object),)

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        named = [key_of(workload) for workload in view.all("workloads")]
        named += [(it.namespace, list_of(it.name)[0]) for it in view.all("endpoints")]
        return dict.fromkeys(named)

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        workload: Workload | None = view.get("workloads", *key)
        found: list[Endpoints] = view.found(BY_SERVICE, f"{key[0]}/{key[1]}")
        known = {list_of(it.name)[1]: it for it in found if _belongs(it, workload)}
        if len(known) < len(found):
            return self._remove(view, key, [it for it in found if not _belongs(it, workload)])
        if workload is None or workload.spec.type not in LASTING:
            self._forget(key)
            return ReconcilePlan()
        rests = self._short_rests if key in self._left else self._rests
        left_ms = rests.left_ms(key, now)
        if left_ms:
            return ReconcilePlan(wake_after_ms=left_ms)
        named: list[Replica] = view.found(BY_WORKLOAD, f"{key[0]}/{key[1]}")
        self._left.pop(key, None)
        uid = workload.metadata.uid
        ready = [it for it in named if it.spec.workload_uid == uid and _is_ready(it)]
        entries = [_endpoint(view, it) for it in ready]
        requests = [*_list_changes(workload, known, entries), *_serving(known, ready, entries)]
        if len(requests) <= REQUESTS_PER_PLAN_MAX:
            # The rest of a longer plan follows without a pause: the answers take long enough.
            self._rests.rest(key, len(named), now)
            self._short_rests.rest(key, len(named), now)
        return ReconcilePlan(tuple(requests))

    def _remove(self, view: Snapshot, key: Key, stray: Sequence[Endpoints]) -> ReconcilePlan:
        """Remove the lists of a workload that is gone, or of an earlier one with its name."""
        self._forget(key)
        if not all(view.knows_all_of(it) for it in stray):
            return ReconcilePlan(wake_after_ms=UNTOLD_PAUSE_MS)
        return ReconcilePlan(
            tuple(Remove("endpoints", key[0], it.name, it.metadata.uid) for it in stray)
        )

    def _forget(self, key: Key) -> None:
        self._rests.forget(key)
        self._short_rests.forget(key)
        self._left.pop(key, None)


def _is_ready(replica: Any) -> bool:
    return isinstance(replica, Replica) and is_available(replica)


def _belongs(known: Endpoints, workload: Workload | None) -> bool:
    """Whether a list belongs to this workload, and not to an earlier one with its name."""
    if workload is None:
        return False
    return any(it.uid == workload.metadata.uid for it in known.metadata.owner_references)


def _endpoint(view: Snapshot, replica: Replica) -> Endpoint:
    binding = replica.status.binding
    name = binding.node if binding is not None else ""
    node: Node | None = view.get("nodes", "", name)
    zone = node.spec.zone if node is not None else ""
    return Endpoint(replica.name, name, zone, replica.status.process.addresses)


def _list_changes(
    workload: Workload, known: dict[int, Endpoints], entries: list[Endpoint]
) -> Iterable[Create | Update | Remove]:
    """The changes of lists that differ. No list is created empty, and the first one stays for the
    clients that watch it."""
    for number, listed in split_lists(known, entries).items():
        before = known.get(number)
        if before is None:
            yield Create(_made(workload, number, listed))
        elif number and not listed:
            version = before.metadata.resource_version
            uid = before.metadata.uid
            yield Remove("endpoints", before.namespace, before.name, uid, version)
        elif before.endpoints != listed:
            yield Update(msgspec.structs.replace(before, endpoints=listed))


def _made(workload: Workload, number: int, listed: tuple[Endpoint, ...]) -> Endpoints:
    owner = OwnerReference(
        API_VERSION, "Workload", workload.name, workload.metadata.uid, controller=True
    )
    metadata = ObjectMeta(
        name=list_name(workload.name, number),
        namespace=workload.namespace,
        labels={WORKLOAD_LABEL: workload.name},
        owner_references=(owner,),
    )
    return Endpoints(metadata=metadata, endpoints=listed)


def _serving(
    known: dict[int, Endpoints], ready: list[Replica], entries: list[Endpoint]
) -> Iterable[ReportStage]:
    """The stage Serving of replicas in a list that the cache shows, if they do not have it yet."""
    waiting = [it for it in zip(ready, entries, strict=True) if it[0].status.stage is Stage.READY]
    if not waiting:
        return
    published = {it.replica: it for listed in known.values() for it in listed.endpoints}
    for replica, entry in waiting:
        if published.get(entry.replica) == entry:
            version = replica.metadata.resource_version
            yield ReportStage(target(replica), Stage.SERVING, version=version)
