"""Replicas and revisions of templates, written by controllers and agents only."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.kinds.replica import Binding, DeviceShare, Replica
from holdfast.model.kinds.workload import WorkloadRevision
from holdfast.model.lifecycle import State, owners
from holdfast.model.quantity import MILLI
from holdfast.model.validation import amounts, names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.template import template

# In these states a node is answerable for the replica.
_BOUND = (State.BOUND, State.RUNNING, State.STOPPING, State.UNKNOWN)
_UNBOUND = (State.PENDING, State.RESERVED)


def replica_name(workload: str, ordinal: int, incarnation: int) -> str:
    """The one name that a place of a workload has in one of its lives.

    It follows from what it is, so that a controller that asks twice asks for the same thing.
    """
    return f"{workload}-{ordinal}-{incarnation}"


def replica(obj: Replica, at: FieldPath) -> None:
    spec, place = obj.spec, at["spec"]
    names.name(place["workload"], spec.workload)
    text.token(place["workloadUid"], spec.workload_uid)
    if spec.region:
        names.name(place["region"], spec.region)
    template(place["template"], spec.template)
    expected = replica_name(spec.workload, spec.ordinal, spec.incarnation)
    if obj.name and obj.name != expected:
        at["metadata"]["name"].wrong(
            obj.name, f"must be <workload>-<ordinal>-<incarnation>, here {expected}"
        )


def replica_status(obj: Replica, at: FieldPath) -> None:
    """State, binding and cause must tell the same story."""
    status, at = obj.status, at["status"]
    if status.state in _BOUND and status.binding is None:
        at["binding"].wrong(None, f"must be given while the state is {status.state.value}")
    if status.state in _UNBOUND and status.binding is not None:
        at["binding"].wrong(None, f"must be absent while the state is {status.state.value}")
    if status.state is State.RESERVED and not status.reservation:
        at["reservation"].wrong(None, "must be given while the state is Reserved")
    if status.state is State.STOPPING and status.cause is None:
        at["cause"].wrong(None, "must be given while the state is Stopping")
    if status.binding is not None:
        _binding(at["binding"], status.binding)


def _binding(at: FieldPath, binding: Binding) -> None:
    names.dotted_name(at["node"], binding.node)
    text.token(at["nodeUid"], binding.node_uid)
    amounts.units(at["charge"], binding.charge)
    device_shares(at["devices"], binding.devices)
    names.unique(at["ports"], binding.ports)


def device_shares(at: FieldPath, shares: Iterable[DeviceShare]) -> None:
    """Devices that are owned or held: each once, and no more than all of it."""
    items = tuple(shares)
    for index, share in enumerate(items):
        if not 1 <= share.milli <= MILLI:
            at[index]["milli"].wrong(share.milli, f"must be from 1 to {MILLI}")
    names.unique(at, [share.device for share in items], "device")


def replica_update(old: Replica, new: Replica, at: FieldPath) -> None:
    """The move is one of the table's; who may make it is for the commit to say."""
    before, after = old.status, new.status
    at = at["status"]
    if before.state is not after.state and not owners(before.state, after.state):
        at["state"].wrong(
            after.state.value, f"cannot follow {before.state.value} in a replica's life"
        )
    if after.transition_number < before.transition_number:
        at["transitionNumber"].wrong(
            after.transition_number, f"must not fall below {before.transition_number}"
        )


def workload_revision(obj: WorkloadRevision, at: FieldPath) -> None:
    at = at["spec"]
    names.name(at["workload"], obj.spec.workload)
    text.token(at["digest"], obj.spec.digest)
    if obj.spec.number == 0:
        at["number"].wrong(0, "must be at least 1")
    template(at["template"], obj.spec.template)
