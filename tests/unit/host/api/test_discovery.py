"""What clients are told: discovery, tables, OpenAPI and access reviews."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.host.api import discovery, openapi, openapi_v2, reviews, tables
from holdfast.host.api.columns import COLUMNS
from holdfast.host.api.resources import RESOURCES
from holdfast.model.identity import ADMINS, Identity
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import KINDS, kind_of_struct

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADMIN = Identity(name="root", groups=(ADMINS,))
ADA = Identity(name="ada", groups=("tenant:risk",), tenants=("risk",))


def test_every_kind_is_discovered_with_its_names_and_parts() -> None:
    """[A1]"""
    document = json.loads(discovery.paths()["/apis/holdfast.dev/v1"])
    rows = {row["name"]: row for row in document["resources"]}
    for kind in KINDS:
        assert rows[kind.plural]["kind"] == kind.name
        assert rows[kind.plural]["namespaced"] is kind.namespaced
        assert (f"{kind.plural}/status" in rows) is kind.status
    assert rows["workloads/scale"]["group"] == "autoscaling"


def test_no_short_name_means_two_things() -> None:
    """A name that two resources have makes kubectl ask back, or take the wrong one."""
    seen: list[str] = []
    for path, document in discovery.paths().items():
        if not path.endswith("/v1"):
            continue
        for row in json.loads(document).get("resources", ()):
            seen += row.get("shortNames", [])
    assert len(seen) == len(set(seen))
    assert not set(seen) & {kind.singular for kind in KINDS}


def test_every_kind_has_columns_that_can_be_printed() -> None:
    """[A11]"""
    assert set(COLUMNS) == {kind.struct for kind in KINDS}
    tenant = Tenant(ObjectMeta(name="risk", creation_timestamp=NOW - timedelta(hours=5)))
    kind = kind_of_struct(Tenant)
    table = json.loads(tables.table(kind, [tenant], now=NOW, version="7"))
    names = [column["name"] for column in table["columnDefinitions"]]
    assert (names[0], table["rows"][0]["cells"][0]) == ("Name", "risk")
    assert table["rows"][0]["cells"][names.index("Age")] == "5h"
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert table["metadata"] == {"resourceVersion": "7"}


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-30, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (900, "15m"),
        (3 * 3600, "3h"),
        (19_800, "5h30m"),
        (9 * 3600, "9h"),
        (52 * 3600, "2d4h"),
        (30 * 86_400, "30d"),
        (740 * 86_400, "2y10d"),
    ],
)
def test_ages_read_as_kubectl_prints_them(seconds: int, text: str) -> None:
    assert tables.duration(seconds) == text


def test_openapi_names_every_operation_once_and_every_reference_exists() -> None:
    document = openapi.document()
    ids = [
        operation["operationId"]
        for item in document["paths"].values()
        for method, operation in item.items()
        if method != "parameters"
    ]
    assert len(ids) == len(set(ids))
    text = json.dumps(document)
    schemas = document["components"]["schemas"]
    for piece in text.split('"$ref": "')[1:]:
        name = piece.split('"', 1)[0].removeprefix("#/components/schemas/")
        assert name in schemas, name
    root = json.loads(openapi.v3_root())
    assert openapi.document_hash() in root["paths"][openapi.GROUP_KEY]["serverRelativeURL"]


def fields(message: bytes) -> list[tuple[int, bytes]]:
    """An independent reader of the wire format, for length-delimited fields and numbers."""
    found, at = [], 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = number()
        if tag & 7 == 0:
            found.append((tag >> 3, bytes([number()])))
            continue
        assert tag & 7 == 2
        length = number()
        found.append((tag >> 3, message[at : at + length]))
        at += length
    return found


def test_openapi_v2_is_the_same_document_in_protobuf() -> None:
    document = openapi.document()
    top = dict(fields(openapi_v2.v2()))
    assert top[1] == b"2.0"
    definitions = [dict(fields(body))[1].decode() for _, body in fields(top[9])]
    assert definitions == list(document["components"]["schemas"])
    paths = [dict(fields(body))[1].decode() for _, body in fields(top[8])]
    assert paths == list(document["paths"])


def test_can_i_answers_what_the_rules_say() -> None:
    """[B3]"""

    def may(identity: Identity, verb: str, resource: str, namespace: str = "") -> bool:
        spec = {"verb": verb, "resource": resource, "group": "holdfast.dev", "namespace": namespace}
        body = json.dumps({"spec": {"resourceAttributes": spec}}).encode()
        return bool(
            json.loads(reviews.access(identity, "application/json", body))["status"]["allowed"]
        )

    assert may(ADMIN, "delete", "nodes")
    assert may(ADA, "create", "workloads", "risk")
    assert not may(ADA, "create", "workloads", "billing")
    assert not may(ADA, "delete", "nodes")
    assert not may(ADA, "get", "unicorns", "risk")


def test_a_review_in_protobuf_is_read_too() -> None:
    def text(field: int, value: bytes) -> bytes:
        return bytes([field << 3 | 2, len(value)]) + value

    attributes = text(1, b"risk") + text(2, b"create") + text(3, b"holdfast.dev")
    attributes += text(5, b"workloads")
    review = text(2, text(1, attributes))
    unknown = text(1, text(1, b"authorization.k8s.io/v1")) + text(2, review)
    body = b"k8s\x00" + unknown
    answer = json.loads(reviews.access(ADA, reviews.PROTOBUF, body))
    assert answer["status"]["allowed"] is True
    assert answer["spec"]["resourceAttributes"]["resource"] == "workloads"


@pytest.mark.parametrize(
    "body", [b"", b"k8s\x00\x12", b"k8s\x00\x12\xff\xff", b"{}", b"k8s\x00\x0b"]
)
def test_a_broken_review_is_refused_or_empty(body: bytes) -> None:
    try:
        answer = json.loads(reviews.access(ADA, reviews.PROTOBUF, body))
    except reviews.Invalid:
        return
    assert answer["status"]["allowed"] is False


def test_the_list_of_rules_agrees_with_each_single_question() -> None:
    body = json.dumps({"spec": {"namespace": "risk"}}).encode()
    status = json.loads(reviews.rules(ADA, "application/json", body))["status"]
    listed = {rule["resources"][0]: set(rule["verbs"]) for rule in status["resourceRules"]}
    for resource in RESOURCES:
        kind = resource.kind
        where = "risk" if kind.namespaced else ""
        allowed = {v for v in resource.verbs if reviews.may(ADA, v, kind, where)}
        assert listed.get(kind.plural, set()) == allowed
    assert "nodes" not in listed


def test_whoami_says_name_and_groups() -> None:
    info = json.loads(reviews.whoami(ADA))["status"]["userInfo"]
    assert info == {"username": "ada", "groups": ["tenant:risk", "system:authenticated"]}
