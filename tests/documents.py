"""The smallest valid document of every kind, and ways to change one; for tests of the model."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from holdfast.model.errors import FieldError
from holdfast.model.meta import Object
from holdfast.model.registry import kind_named
from holdfast.model.validation import validate

Document = dict[str, Any]

CREATED = "2026-03-01T10:00:00Z"
LATER = "2026-03-01T10:30:00Z"
HASH = "sha256:" + "0" * 64

_TEMPLATE = {"command": ["serve"]}

MINIMAL: dict[str, Document] = {
    "Workload": {"spec": {"template": _TEMPLATE}},
    "Replica": {
        "metadata": {"name": "web-0-0"},
        "spec": {"workload": "web", "workloadUid": "u-1", "template": _TEMPLATE},
    },
    "Node": {"metadata": {"name": "node-1.example"}},
    "Reservation": {
        "spec": {
            "owner": {"kind": "Workload", "name": "web", "uid": "u-1"},
            "intent": "bind",
            "deadline": LATER,
        }
    },
    "Quota": {"metadata": {"name": "default"}},
    "Tenant": {},
    "PriorityClass": {},
    "Region": {},
    "SchedulerPolicy": {},
    "Grant": {"spec": {"tenant": "risk", "region": "eu-west", "expires": LATER}},
    "Override": {
        "spec": {
            "type": "Pause",
            "scope": {"workloads": ["web"]},
            "reason": "a rollout goes wrong",
            "expires": LATER,
        }
    },
    "Lease": {"spec": {"scope": "scheduler"}},
    "Commitment": {"spec": {"promise": {"workload": "web", "serving": 1}}},
    "Event": {
        "metadata": {"name": "web.17a"},
        "involvedObject": {"kind": "Workload", "name": "web"},
        "reason": "Started",
    },
    "Decision": {"spec": {"replica": "web-0-0"}},
    "Role": {},
    "RoleBinding": {"roleRef": {"name": "viewer"}},
    "Token": {"spec": {"user": "tenant:risk:ci", "hash": HASH}},
    "Revocation": {"metadata": {"name": "user.ann"}, "spec": {"user": "ann"}},
    "AdmissionPolicy": {},
    "Secret": {},
    "WorkloadRevision": {
        "spec": {"workload": "web", "number": 1, "digest": "abc", "template": _TEMPLATE}
    },
    "Endpoints": {},
}


def document(kind: str, changes: Document | None = None) -> Document:
    """The smallest valid document of a kind, with the given dotted paths set to other values."""
    made = copy.deepcopy(MINIMAL[kind])
    meta = {"name": "web", "creationTimestamp": CREATED, **made.get("metadata", {})}
    if kind_named(kind).namespaced:
        meta = {"namespace": "risk", **meta}
    made |= {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": meta}
    for path, value in (changes or {}).items():
        *steps, last = path.split(".")
        part = made
        for step in steps:
            part = part.setdefault(step, {})
        if value is None:
            part.pop(last, None)
        else:
            part[last] = copy.deepcopy(value)
    return made


def loaded(made: Document) -> Object:
    """The object of a document; raises where types alone are wrong."""
    obj: Object = msgspec.convert(made, kind_named(made["kind"]).struct)
    return obj


def obj(kind: str, changes: Document | None = None) -> Object:
    """An object of a kind, with the given dotted paths set to other values."""
    return loaded(document(kind, changes))


def errors(kind: str, changes: Document | None = None) -> tuple[FieldError, ...]:
    """What is wrong with such an object."""
    return validate(obj(kind, changes))


# One row of a table: a kind, what is changed in its smallest document, where the one error is
# found, and a part of the rule's sentence.
Row = tuple[str, Document, str, str]


def check(row: Row) -> None:
    """The change breaks exactly this rule, in exactly this place."""
    kind, changes, path, rule = row
    found = errors(kind, changes)
    assert [error.path for error in found] == [path], [str(error) for error in found]
    assert rule in found[0].rule, found[0].rule
    assert found[0].rule[0].islower(), "a rule is a sentence about the field"


def named(row: Row) -> str:
    """How a row is called in a test's report."""
    kind, changes, path, rule = row
    return f"{kind}: {path}: {rule}: {','.join(changes)}"[:90]
