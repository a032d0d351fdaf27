"""controller:endpoints: where the ready replicas of each service can be reached.

It owns the Endpoints of services and of one per node, which bear the workload's name and belong to
it, and the stage Serving of a replica.

    ready and not listed     -> into the list
    listed and not ready     -> out of it: also what is being stopped, and what is out of contact
    listed and stage Ready   -> Serving, once the picture shows the list with it
    workload gone            -> the list goes

So Serving means published, never the other way round: whoever watches the list knows a replica
before its stage says so. What leaves loses the stage with whatever made it leave. The list is
written once for all that has changed since; those of large services rest in between.

Updates name the resourceVersion that they rest on, and stages are refused unless the replica is
ready at that moment, so nothing here has an operation id: a replica may become ready many times
within one step of its life.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.correct.controller import BY_WORKLOAD, Controller, Plan, View, key_of, target
from holdfast.correct.rests import Rests
from holdfast.model.kinds.endpoints import Endpoint, Endpoints
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import STAGES, Stage, State
from holdfast.model.meta import API_VERSION, ObjectMeta, OwnerReference
from holdfast.model.requests import Create, Remove, ReportStage, Term, Update
from holdfast.model.time import Instant
from holdfast.model.validation.records import ENDPOINTS_MAX
from holdfast.observe.cache import Change, Key

# How soon to look again at a list whose workload may not have been told of yet.
UNTOLD_PAUSE_MS = 1_000

_SERVED = (WorkloadType.SERVICE, WorkloadType.PER_NODE)
_READY = STAGES[STAGES.index(Stage.READY) :]


class EndpointsController(Controller):
    """See the module's docstring."""

    name = "endpoints"
    follows = ("workloads", "replicas", "nodes", "endpoints")
    indexes = (BY_WORKLOAD,)

    def __init__(self) -> None:
        self._rests = Rests()

    def keys_of(self, change: Change, view: View) -> Iterable[Key]:
        """A replica that is not ready before or after a change concerns no list.

        A node's zone is looked up when a list is written; that it changes under running work is
        left to the resync.
        """
        match change.object:
            case Node():
                return ()
            case Replica() as replica:
                if _is_ready(change.before) or _is_ready(change.after):
                    return ((replica.namespace, replica.spec.workload),)
                return ()
        return (key_of(change.object),)

    def all_keys(self, view: View) -> Iterable[Key]:
        self._rests.clear()
        named = [key_of(it) for plural in ("workloads", "endpoints") for it in view.all(plural)]
        return dict.fromkeys(named)

    def reconcile(self, view: View, key: Key, term: Term, now: Instant) -> Plan:
        workload: Workload | None = view.get("workloads", *key)
        known: Endpoints | None = view.get("endpoints", *key)
        if known is not None and (workload is None or not _belongs(known, workload)):
            return self._removed(view, key, known)
        if workload is None or workload.spec.type not in _SERVED:
            return Plan()
        left_ms = self._rests.left_ms(key, now)
        if left_ms:
            return Plan(wake_after_ms=left_ms)
        named: list[Replica] = view.found(BY_WORKLOAD, f"{key[0]}/{key[1]}")
        self._rests.rest(key, len(named), now)
        uid = workload.metadata.uid
        ready = [it for it in named if it.spec.workload_uid == uid and _is_ready(it)]
        listed = tuple(_endpoint(view, it) for it in ready[:ENDPOINTS_MAX])
        published = {it.replica: it for it in known.endpoints} if known is not None else {}
        requests: list[Any] = list(_written(workload, known, listed))
        requests += [
            ReportStage(target(replica), Stage.SERVING)
            for replica, entry in zip(ready, listed, strict=False)
            if replica.status.stage is not Stage.SERVING and published.get(entry.replica) == entry
        ]
        return Plan(tuple(requests))

    def _removed(self, view: View, key: Key, known: Endpoints) -> Plan:
        """The list of a workload that is gone, or of an earlier one of its name."""
        self._rests.forget(key)
        if not view.knows_all_of(known):
            return Plan(wake_after_ms=UNTOLD_PAUSE_MS)
        return Plan((Remove("endpoints", *key, known.metadata.uid),))


def _is_ready(replica: Any) -> bool:
    """Whether a replica answers, and is to be left to do so."""
    if not isinstance(replica, Replica):
        return False
    status = replica.status
    is_wanted = replica.metadata.deletion_timestamp is None
    return is_wanted and status.state is State.RUNNING and status.stage in _READY


def _belongs(known: Endpoints, workload: Workload) -> bool:
    return any(it.uid == workload.metadata.uid for it in known.metadata.owner_references)


def _endpoint(view: View, replica: Replica) -> Endpoint:
    binding = replica.status.binding
    name = binding.node if binding is not None else ""
    node: Node | None = view.get("nodes", "", name)
    zone = node.spec.zone if node is not None else ""
    return Endpoint(replica.name, name, zone, replica.status.process.addresses)


def _written(
    workload: Workload, known: Endpoints | None, listed: tuple[Endpoint, ...]
) -> Iterable[Create | Update]:
    """The list, where it differs from the one that is there; an empty one is not begun."""
    if known is not None:
        if known.endpoints != listed:
            yield Update(msgspec.structs.replace(known, endpoints=listed))
    elif listed:
        owner = OwnerReference(
            API_VERSION, "Workload", workload.name, workload.metadata.uid, controller=True
        )
        metadata = ObjectMeta(
            name=workload.name, namespace=workload.namespace, owner_references=(owner,)
        )
        yield Create(Endpoints(metadata=metadata, endpoints=listed))
