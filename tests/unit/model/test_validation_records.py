"""Replicas, records, roles, tokens and secrets: what the system writes, and what it must hide."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.documents import CREATED, HASH, LATER, Document, Row, check, errors, named


def status(**parts: Any) -> tuple[str, Document]:
    return "Replica", {f"status.{name}": value for name, value in parts.items()}


BINDING = {"node": "node-1", "nodeUid": "n-1"}
SHARE = {"device": "gpu-0", "deviceClass": "gpu", "milli": 500}
STATUS = "status.binding"


def bound(**parts: Any) -> tuple[str, Document]:
    return status(state="Bound", binding={**BINDING, **parts})


REPLICAS: list[Row] = [
    ("Replica", {"metadata.name": "web-1-0"}, "metadata.name", "here web-0-0"),
    ("Replica", {"spec.workloadUid": ""}, "spec.workloadUid", "must be given"),
    ("Replica", {"spec.region": "EU"}, "spec.region", "lower-case"),
    (*status(state="Running"), STATUS, "must be given while the state is Running"),
    (*status(state="Unknown"), STATUS, "must be given while the state is Unknown"),
    (*status(binding=BINDING), STATUS, "must be absent while the state is Pending"),
    (*status(state="Reserved"), "status.reservation", "must be given"),
    (*status(state="Stopping", binding=BINDING), "status.cause", "must be given"),
    (*bound(node="Node"), f"{STATUS}.node", "lower-case"),
    (*bound(nodeUid=""), f"{STATUS}.nodeUid", "must be given"),
    (*bound(charge={"cpu": -1}), f"{STATUS}.charge[cpu]", "not be negative"),
    (*bound(devices=[{**SHARE, "milli": 0}]), f"{STATUS}.devices[0].milli", "from 1 to 1000"),
    (*bound(devices=[SHARE, SHARE]), f"{STATUS}.devices[1].device", "twice"),
    (*bound(ports=["TCP/80", "TCP/80"]), f"{STATUS}.ports[1]", "twice"),
    ("WorkloadRevision", {"spec.number": 0}, "spec.number", "at least 1"),
    ("WorkloadRevision", {"spec.digest": ""}, "spec.digest", "must be given"),
    ("WorkloadRevision", {"spec.workload": "W"}, "spec.workload", "lower-case"),
]


def event(**parts: Any) -> tuple[str, Document]:
    return "Event", parts


def decision(**parts: Any) -> tuple[str, Document]:
    return "Decision", {f"spec.{name}": value for name, value in parts.items()}


def endpoints(*items: Document) -> tuple[str, Document]:
    return "Endpoints", {"endpoints": list(items)}


RECORDS: list[Row] = [
    (*event(involvedObject={"name": "web"}), "involvedObject.kind", "one word"),
    (*event(involvedObject={"kind": "Node"}), "involvedObject.name", "must be given"),
    (
        *event(involvedObject={"kind": "Workload", "name": "web", "namespace": "billing"}),
        "involvedObject.namespace",
        "event's own namespace",
    ),
    (*event(reason="it broke"), "reason", "one word"),
    (*event(message="\x1b]0;owned\x07"), "message", "U+001B"),
    (*event(message="x" * 1025), "message", "at most 1024"),
    (*event(count=0), "count", "at least 1"),
    (*event(source={"component": "a b"}), "source.component", "without blanks"),
    (
        *event(firstTimestamp=LATER, lastTimestamp=CREATED),
        "lastTimestamp",
        "before firstTimestamp",
    ),
    (*decision(replica=""), "spec.replica", "must be given"),
    (*decision(nodes=2, filtered={"NodeFull": 3}), "spec.filtered[NodeFull]", "from 0 to nodes"),
    (*decision(chosen="A"), "spec.chosen", "lower-case"),
    (*decision(best=[{"node": f"n{i}"} for i in range(65)]), "spec.best", "at most 64"),
    (*decision(result="Accepted"), "spec.chosen", "where the result is Accepted"),
    (*decision(best=[{"node": "a"}, {"node": "a"}]), "spec.best[1].node", "twice"),
    (*decision(queuedAt=LATER, decidedAt=CREATED), "spec.decidedAt", "before queuedAt"),
    (*endpoints({"replica": "a"}, {"replica": "a"}), "endpoints[1].replica", "twice"),
    (
        *endpoints({"replica": "a", "ports": {"http": "10.0.0.1"}}),
        "endpoints[0].ports[http]",
        "must be an address",
    ),
    (
        *endpoints({"replica": "a", "ports": {"http": "10.0.0.1:65536"}}),
        "endpoints[0].ports[http]",
        "must be an address",
    ),
]


def role(**parts: Any) -> tuple[str, Document]:
    return "Role", {"rules": [{"verbs": ["get"], "resources": ["workloads"], **parts}]}


def binding(**parts: Any) -> tuple[str, Document]:
    return "RoleBinding", parts


def token(**parts: Any) -> tuple[str, Document]:
    return "Token", {f"spec.{name}": value for name, value in parts.items()}


def join(**parts: Any) -> tuple[str, Document]:
    kind, made = token(**{"purpose": "Join", "user": None, "expires": LATER, **parts})
    return kind, {"metadata.namespace": "holdfast-system", **made}


def of_cluster(made: tuple[str, Document]) -> tuple[str, Document]:
    return made[0], {**made[1], "metadata.namespace": "holdfast-system"}


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


ACCESS: list[Row] = [
    (*role(verbs=[]), "rules[0].verbs", "at least one"),
    (*role(resources=[]), "rules[0].resources", "at least one"),
    (*role(verbs=["get"] * 257), "rules[0].verbs", "at most 256"),
    (*role(verbs=["Get"]), "rules[0].verbs[0]", "plain word"),
    (*role(resources=["workloads/scale/x"]), "rules[0].resources[0]", "plain word"),
    (*role(apiGroups=["holdfast.dev/v1"]), "rules[0].apiGroups[0]", "API group"),
    (*role(resourceNames=["a", "a"]), "rules[0].resourceNames[1]", "twice"),
    (*binding(subjects=[{"kind": "Robot", "name": "a"}]), "subjects[0].kind", "User, Group"),
    (*binding(subjects=[{"kind": "User", "name": ""}]), "subjects[0].name", "must be given"),
    (*binding(subjects=[{"kind": "User", "name": "a"}] * 2), "subjects[1]", "twice"),
    (*binding(roleRef={"name": ""}), "roleRef.name", "must be given"),
    (
        *binding(roleRef={"name": "a", "namespace": "billing"}),
        "roleRef.namespace",
        "the binding's own, or holdfast-system",
    ),
    (*token(hash="hunter2"), "spec.hash", "64 lower-case hexadecimal"),
    (*token(hash=HASH.upper()), "spec.hash", "64 lower-case hexadecimal"),
    (*token(user=""), "spec.user", "must be given"),
    (*token(user="alice"), "spec.user", "must begin with tenant:risk:"),
    (*token(user="system:controller:repair"), "spec.user", "must begin with tenant:risk:"),
    (*token(groups=["system:masters"]), "spec.groups[0]", "must begin with tenant:risk:"),
    (*token(expires=CREATED), "spec.expires", "later than the creation"),
    (*join(expires=None), "spec.expires", "must be given for Join"),
    (*join(user="node-1"), "spec.user", "left out for Join"),
    (*join(groups=["a"]), "spec.groups", "left out for Join"),
    (*token(purpose="Join", user=None, expires=LATER), "spec.purpose", "must be Bearer outside"),
    ("Secret", {"data": {"a": "not base64!"}}, "data[a]", "must be base64"),
    ("Secret", {"data": {"a": "YQ="}}, "data[a]", "must be base64"),
    ("Secret", {"data": {"a/b": coded("x")}}, "data[a/b]", "letters, digits"),
    ("Secret", {"stringData": {"..": "x"}}, "stringData[..]", "letters, digits"),
    ("Secret", {"stringData": {"a": "x" * 1_048_577}}, "data", "at most 1048576 bytes"),
    ("Secret", {"data": {f"k{i}": "" for i in range(1025)}}, "data", "at most 1024 items"),
    ("Secret", {"type": ""}, "type", "must not be blank"),
]


@pytest.mark.parametrize("row", [*REPLICAS, *RECORDS, *ACCESS], ids=named)
def test_what_the_system_writes_is_refused_where_it_breaks_a_rule(row: Row) -> None:
    """State and binding tell one story; a tenant's token speaks for that tenant only [A5, B4]."""
    check(row)


ACCEPTED: list[tuple[str, Document]] = [
    bound(charge={"cpu": 500}, devices=[SHARE, {**SHARE, "device": "gpu-1"}]),
    status(state="Failed"),
    status(state="Released", binding=BINDING),
    status(state="Stopping", binding=BINDING, cause="Drain"),
    event(
        message="two\nlines", involvedObject={"kind": "Node", "name": "a.b"}, source={"host": "a.b"}
    ),
    decision(nodes=3, filtered={"NodeFull": 3}, result="NodeFull", message="nothing fits"),
    endpoints({"replica": "a", "node": "n.b", "ports": {"http": "[fd00::7]:80"}}),
    role(verbs=["*"], resources=["*", "workloads/scale", "*/status"], apiGroups=["*"]),
    binding(
        subjects=[{"kind": "Group", "name": "oncall"}, {"kind": "User", "name": "oncall"}],
        roleRef={"name": "a", "namespace": "holdfast-system"},
    ),
    token(groups=["tenant:risk:ci"], expires=LATER),
    of_cluster(token(user="alice@example.com", groups=["system:masters"])),
    join(),
    ("Secret", {"data": {"tls.key": coded("x")}, "stringData": {"A_b-c": ""}}),
]


@pytest.mark.parametrize("kind, changes", ACCEPTED)
def test_what_the_system_writes_is_accepted_at_the_edge_of_a_rule(
    kind: str, changes: Document
) -> None:
    assert errors(kind, changes) == ()


@pytest.mark.parametrize(
    "kind, changes",
    [
        ("Secret", {"data": {"a": "hunter2!"}, "stringData": {"/": "hunter2"}}),
        ("Token", {"spec.hash": "hunter2"}),
        (
            "Workload",
            {
                "spec.template.env": [
                    {"name": "A", "value": "hunter2", "secret": {"name": "s", "key": "k"}}
                ],
                "spec.template.files": [
                    {"path": "a", "content": "hunter2", "secret": {"name": "s", "key": "k"}}
                ],
            },
        ),
    ],
)
def test_no_secret_is_part_of_an_error(kind: str, changes: Document) -> None:
    """Errors are logged, shown and kept in audit records."""
    found = errors(kind, changes)
    assert found
    assert not any("hunter2" in str(error) for error in found)
