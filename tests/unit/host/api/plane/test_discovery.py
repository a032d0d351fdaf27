"""What clients find: discovery, tables and OpenAPI."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.host.api.objects import table_answers
from holdfast.host.api.plane import discovery, openapi, openapi_v2
from holdfast.model.access.identity import ADMINS, Identity
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
    assert all(kind.columns for kind in KINDS)
    tenant = Tenant(ObjectMeta(name="risk", creation_timestamp=NOW - timedelta(hours=5)))
    kind = kind_of_struct(Tenant)
    row = table_answers.row(kind, tenant, NOW, table_answers.METADATA)
    table = json.loads(
        table_answers.opening(table_answers.definitions(kind), "7") + row + table_answers.ENDING
    )
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
    assert table_answers.duration(seconds) == text


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
