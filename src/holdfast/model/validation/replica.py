"""Validates replicas and workload revisions, which only controllers and agents write."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.kinds.replica import Binding, DeviceShare, Replica
from holdfast.model.kinds.workload import WorkloadRevision
from holdfast.model.lifecycle import State, owners
from holdfast.model.quantity import MILLI
from holdfast.model.validation import amounts, names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.template import template

# In these states the replica is bound to a node.
_BOUND = (State.BOUND, State.RUNNING, State.STOPPING, State.UNKNOWN)
_UNBOUND = (State.PENDING, State.RESERVED)


def replica_name(workload: str, ordinal: int, incarnation: int) -> str:
    """The name of the replica with this ordinal and incarnation.

    It is derived, so that a controller that repeats a request names the same replica.
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
    """Checks that state, binding and cause are consistent."""
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
    """Checks owned or held devices: each appears once, with at most all of it."""
    items = tuple(shares)
    for index, share in enumerate(items):
        if not 1 <= share.milli <= MILLI:
            at[index]["milli"].wrong(share.milli, f"must be from 1 to {MILLI}")
    names.unique(at, [share.device for share in items], "device")


def replica_update(old: Replica, new: Replica, at: FieldPath) -> None:
    """Checks that the transition is in the lifecycle table. The commit checks the actor."""
    before, after = old.status, new.status
    at = at["status"]
    if before.state is not after.state and not owners(before.state, after.state):
        at["state"].wrong(
            after.state.value, f"cannot follow {before.state.value} in the lifecycle of a replica"
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
