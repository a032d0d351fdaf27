"""Updates of an object that are never allowed, whatever the caller."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.model.registry import KINDS
from holdfast.model.validation import validate_update
from holdfast.model.validation.metadata import wire_fields
from tests.documents import CREATED, HASH, LATER, Document, obj

# A kind, what both versions have, what the new one has besides, and the one error.
Change = tuple[str, Document, Document, str, str]

LATEST = "2026-03-01T11:00:00Z"
DELETING = {"metadata.deletionTimestamp": LATER, "metadata.finalizers": ["a", "b"]}
BINDING = {"node": "n", "nodeUid": "u"}
HELD = {"spec.holder": "a", "spec.epoch": 3, "spec.renewals": 7}

METADATA: list[Change] = [
    ("Tenant", {}, {"metadata.name": "other"}, "metadata.name", "cannot be changed"),
    ("Workload", {}, {"metadata.namespace": "b"}, "metadata.namespace", "cannot be changed"),
    ("Tenant", {"metadata.uid": "a"}, {"metadata.uid": "b"}, "metadata.uid", "cannot be changed"),
    (
        "Tenant",
        {},
        {"metadata.creationTimestamp": LATER},
        "metadata.creationTimestamp",
        "cannot be changed",
    ),
    (
        "Tenant",
        {"metadata.generation": 2},
        {"metadata.generation": 1},
        "metadata.generation",
        "must not fall below 2",
    ),
    (
        "Tenant",
        DELETING,
        {"metadata.deletionTimestamp": None},
        "metadata.deletionTimestamp",
        "cannot be removed once",
    ),
    (
        "Tenant",
        DELETING,
        {"metadata.deletionTimestamp": LATEST},
        "metadata.deletionTimestamp",
        "cannot be later",
    ),
    (
        "Tenant",
        {**DELETING, "metadata.deletionGracePeriodSeconds": 5},
        {"metadata.deletionGracePeriodSeconds": 6},
        "metadata.deletionGracePeriodSeconds",
        "must not grow beyond 5",
    ),
    (
        "Tenant",
        DELETING,
        {"metadata.finalizers": ["b", "c"]},
        "metadata.finalizers[1]",
        "cannot be added",
    ),
]

JOB = {"spec.type": "Job", "spec.template.restart": "Never"}
OVERRIDE = "Override"

KINDS_OWN: list[Change] = [
    ("Workload", {}, {"spec.type": "PerNode"}, "spec.type", "cannot be changed"),
    ("Workload", JOB, {"spec.template.user": "a"}, "spec.template", "create a new Job"),
    ("Workload", JOB, {"spec.job.completions": 4}, "spec.job.completions", "create a new Job"),
    (
        "Workload",
        {**JOB, "status.job": {"completedIndexes": "0-3", "succeeded": 4}},
        {"status.job": {"completedIndexes": "0-2,5", "succeeded": 4}},
        "status.job.completedIndexes",
        "must not lose any index",
    ),
    ("Workload", JOB, {"spec.replicas": 4}, "spec.replicas", "create a new Job"),
    ("Workload", JOB, {"spec.job.indexed": True}, "spec.job.indexed", "create a new Job"),
    (
        "Replica",
        {},
        {"spec.template.command": ["other"]},
        "spec.template.command",
        "cannot be changed",
    ),
    (
        "Replica",
        {"status.state": "Released"},
        {"status.state": "Pending"},
        "status.state",
        "cannot follow Released",
    ),
    (
        "Replica",
        {"status.state": "Unknown", "status.binding": BINDING},
        {"status.state": "Released"},
        "status.state",
        "cannot follow Unknown",
    ),
    (
        "Replica",
        {"status.transitionNumber": 4},
        {"status.transitionNumber": 3},
        "status.transitionNumber",
        "must not fall below 4",
    ),
    ("Node", {"spec.region": "a"}, {"spec.region": "b"}, "spec.region", "cannot be changed"),
    ("Node", {"spec.zone": "a"}, {"spec.zone": None}, "spec.zone", "cannot be changed"),
    (
        "Node",
        {"status.incarnation": 2},
        {"status.incarnation": 1},
        "status.incarnation",
        "must not fall below 2",
    ),
    ("Node", {"status.marks": 2}, {"status.marks": 1}, "status.marks", "must not fall below 2"),
    ("Reservation", {}, {"spec.deadline": LATEST}, "spec.deadline", "cannot be changed"),
    (
        "Reservation",
        {"status.phase": "Released"},
        {"status.phase": "Held"},
        "status.phase",
        "cannot follow Released",
    ),
    ("PriorityClass", {}, {"spec.value": 1}, "spec.value", "cannot be changed"),
    ("SchedulerPolicy", {}, {"spec.filters": ["a"]}, "spec.filters", "cannot be changed"),
    ("SchedulerPolicy", {}, {"spec.weights": {"a": 1}}, "spec.weights", "cannot be changed"),
    (
        "SchedulerPolicy",
        {},
        {"spec.demands": [{"devices": [{"deviceClass": "gpu"}]}]},
        "spec.demands",
        "cannot be changed",
    ),
    (
        "Grant",
        {},
        {"spec.tenant": "b", "spec.serial": 1},
        "spec.tenant",
        "cannot be changed",
    ),
    (
        "Grant",
        {"spec.serial": 4},
        {"spec.serial": 3},
        "spec.serial",
        "must not fall below 4",
    ),
    ("Grant", {}, {"spec.expires": LATEST}, "spec.serial", "must grow when"),
    ("Grant", {}, {"spec.recovery": {"cpu": 1}}, "spec.serial", "must grow when"),
    (
        "Grant",
        {"spec.serial": 4, "status.acceptedSerial": 4},
        {"status.acceptedSerial": 3},
        "status.acceptedSerial",
        "must not fall below 4",
    ),
    (OVERRIDE, {}, {"spec.reason": "another"}, "spec.reason", "cannot be changed"),
    (OVERRIDE, {}, {"spec.scope.zones": ["a"]}, "spec.scope.zones", "cannot be changed"),
    (
        OVERRIDE,
        {"spec.requester": "a"},
        {"spec.requester": "b"},
        "spec.requester",
        "cannot be changed",
    ),
    ("Lease", {}, {"spec.scope": "b"}, "spec.scope", "cannot be changed"),
    ("Lease", HELD, {"spec.epoch": 2}, "spec.epoch", "must stay 3 or, for a takeover, be 4"),
    ("Lease", HELD, {"spec.epoch": 5}, "spec.epoch", "must stay 3 or, for a takeover, be 4"),
    ("Lease", HELD, {"spec.holder": "b"}, "spec.holder", "the next epoch"),
    (
        "Lease",
        {**HELD, "spec.holder": None},
        {"spec.holder": "a"},
        "spec.holder",
        "the next epoch",
    ),
    ("Lease", HELD, {"spec.renewals": 6}, "spec.renewals", "must not fall below 7"),
    ("Event", {"count": 4}, {"count": 3}, "count", "must not fall below 4"),
    ("Event", {}, {"involvedObject.uid": "b"}, "involvedObject.uid", "cannot be changed"),
    ("Decision", {}, {"spec.chosen": "b"}, "spec.chosen", "cannot be changed"),
    ("RoleBinding", {}, {"roleRef.name": "admin"}, "roleRef.name", "cannot be changed"),
    ("Token", {}, {"spec.user": "tenant:risk:b"}, "spec.user", "cannot be changed"),
    ("Token", {}, {"spec.groups": ["tenant:risk:b"]}, "spec.groups", "cannot be changed"),
    ("Token", {}, {"spec.hash": HASH[:-1] + "1"}, "spec.hash", "cannot be changed"),
    (
        "Token",
        {"spec.revoked": True},
        {"spec.revoked": None},
        "spec.revoked",
        "cannot be undone",
    ),
    (
        "Token",
        {"spec.expires": LATER},
        {"spec.expires": LATEST},
        "spec.expires",
        "cannot be extended",
    ),
    (
        "Token",
        {"spec.expires": LATER},
        {"spec.expires": None},
        "spec.expires",
        "cannot be extended",
    ),
    (
        "Token",
        {"status.usedAt": CREATED},
        {"status.usedAt": None},
        "status.usedAt",
        "cannot be changed",
    ),
    ("WorkloadRevision", {}, {"spec.number": 2}, "spec.number", "cannot be changed"),
]


@pytest.mark.parametrize(
    "kind, both, new, path, rule",
    [*METADATA, *KINDS_OWN],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_change_that_no_caller_may_make_is_refused_in_its_place(
    kind: str, both: Document, new: Document, path: str, rule: str
) -> None:
    """Identity, decisions and epochs never change back."""
    found = validate_update(obj(kind, both), obj(kind, {**both, **new}))
    assert [error.path for error in found] == [path], [str(error) for error in found]
    assert rule in found[0].rule
    assert "\n" not in str(found[0])


ALLOWED: list[tuple[str, Document, Document]] = [
    ("Tenant", {}, {"metadata.labels": {"a": "b"}, "metadata.finalizers": ["a"]}),
    ("Tenant", {"metadata.finalizers": ["a"]}, DELETING),
    ("Tenant", DELETING, {"metadata.finalizers": ["b"]}),
    ("Tenant", DELETING, {"metadata.deletionTimestamp": CREATED}),
    ("Workload", {}, {"spec.template.user": "a", "spec.replicas": 5}),
    ("Workload", JOB, {"spec.job.parallelism": 2}),
    ("Workload", {**JOB, "spec.job.completions": 3}, {"spec.replicas": 5}),
    ("Replica", {}, {"status.state": "Bound", "status.binding": BINDING}),
    (
        "Replica",
        {"status.state": "Running", "status.binding": BINDING},
        {"status.process.restarts": 1},
    ),
    ("Node", {}, {"spec.cordoned": True, "status.incarnation": 1}),
    ("Grant", {"spec.serial": 1}, {"spec.serial": 2, "spec.expires": LATEST}),
    (OVERRIDE, {}, {"spec.expires": LATEST, "spec.runbook": "r"}),
    ("Lease", HELD, {"spec.renewals": 8}),
    ("Lease", HELD, {"spec.holder": "b", "spec.epoch": 4, "spec.renewals": 0}),
    ("Lease", HELD, {"spec.holder": None}),
    ("Token", {"spec.expires": LATEST}, {"spec.expires": LATER, "spec.revoked": True}),
    ("SchedulerPolicy", {}, {"spec.stage": "Active"}),
    ("Event", {}, {"count": 2}),
]


@pytest.mark.parametrize("kind, both, new", ALLOWED)
def test_an_ordinary_change_is_accepted(kind: str, both: Document, new: Document) -> None:
    assert validate_update(obj(kind, both), obj(kind, {**both, **new})) == ()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_nothing_is_wrong_with_an_object_that_stays_as_it_is(kind: Any) -> None:
    same = obj(kind.name)
    assert validate_update(same, same) == ()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_that_never_changes_exists_on_the_wire(kind: Any) -> None:
    """A misspelt path in the registry would protect nothing."""
    for path in kind.immutable:
        part: Any = obj(kind.name)
        for step in path.split("."):
            part = getattr(part, wire_fields(type(part))[step])


def test_an_update_that_changes_the_kind_is_our_own_bug() -> None:
    with pytest.raises(InvariantBroken):
        validate_update(obj("Tenant"), obj("Region"))


def test_all_changes_are_reported_at_once() -> None:
    new = {"metadata.name": "c", "spec.region": "c", "spec.zone": "c", "status.marks": 1}
    both = {"spec.region": "a", "spec.zone": "b", "status.marks": 3}
    found = validate_update(obj("Node", both), obj("Node", {**both, **new}))
    assert [error.path for error in found] == [
        "metadata.name",
        "spec.region",
        "spec.zone",
        "status.marks",
    ]
