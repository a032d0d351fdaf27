"""Encoding of records: between a key's bytes and the struct that decisions use."""

from __future__ import annotations

import sys
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.commit.record_encoding import Epoch, PastOperation, decode, encode, with_version
from holdfast.model import keys
from holdfast.model.errors import InvariantBroken, RecordUnreadable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta, Operation
from holdfast.model.quota.ledger import (
    DisruptionLedger,
    GrantLedger,
    NodeGate,
    NodeLedger,
    ObjectsLedger,
    PoolsLedger,
    QuotaLedger,
)
from holdfast.model.registry import KINDS
from tests.furnished import Furnished

NOON = datetime(2027, 1, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "key, value",
    [
        (
            keys.node_ledger("n.example"),
            NodeLedger(gate=NodeGate(uid="u", mark=3), used={"cpu": 1}),
        ),
        (keys.quota_ledger("tenant:acme"), QuotaLedger()),
        (keys.objects_ledger("acme"), ObjectsLedger(counts={"workloads": 2})),
        (keys.disruption_ledger("acme", "web"), DisruptionLedger(replicas=3, healthy=2)),
        (keys.grant_ledger("acme"), GrantLedger(serial=4, expires=NOON)),
        (keys.pools_ledger(), PoolsLedger()),
        (keys.epoch("scheduler:a/b"), Epoch(epoch=7, holder="system:scheduler:a")),
        (
            keys.operation("ann/a/b/c"),
            PastOperation(
                operation=Operation(id="a", digest="d", at=NOON), key="k", uid="u", until=NOON
            ),
        ),
    ],
)
def test_what_lies_under_a_key_follows_from_the_key(key: str, value: Any) -> None:
    assert decode(key, encode(value)) == value


def test_every_kind_is_read_back_as_it_was_written() -> None:
    """All that a furnished plane has stored, and nothing carries its version twice. [A2]"""
    it = Furnished()
    it.reserved()
    it.unknown()
    seen = set()
    for record in it.plane.store.range("", keys.END).records:
        value = decode(record.key, record.value)
        assert encode(value) == record.value
        seen.add(type(value))
        if record.key.startswith(keys.OBJECTS):
            assert value.metadata.resource_version == ""
    assert len(seen) > 10


def test_every_kind_has_a_place() -> None:
    for kind in KINDS:
        with pytest.raises(RecordUnreadable, match="Expected `object`"):
            decode(keys.object_key(kind, "acme", "x"), b"[]")


def test_a_key_of_no_known_sort_is_our_own_mistake() -> None:
    for key in ("elsewhere/x", "objects/nonsense/x", "ledgers/other/x", ""):
        with pytest.raises(InvariantBroken, match="nothing is ever stored"):
            decode(key, b"{}")


def test_clients_see_the_version_that_follows_from_the_records_revision() -> None:
    """What does not exist yet, as after a dry run, has none. [A2]"""
    obj = Tenant(ObjectMeta(name="a"))
    assert with_version(obj, 12).metadata.resource_version == "24"
    assert with_version(with_version(obj, 12), 0).metadata.resource_version == ""


def test_stored_bytes_take_no_more_memory_than_they_have() -> None:
    """They are kept for as long as the object lives; an encoder's spare room would be kept too."""
    value = Tenant(ObjectMeta(name="acme", annotations={"a": "x" * 600}))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [encode(value) for _ in range(100)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < sum(map(sys.getsizeof, kept)) + sys.getsizeof(kept) + 2_000
