"""Where things lie: every sort of record in a range of its own."""

from __future__ import annotations

import pytest

from holdfast.model import keys
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.secret import Secret
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import KINDS, kind_named


def test_an_objects_key_names_kind_namespace_and_name() -> None:
    """A cluster-scoped object has no namespace in its key, whatever its metadata says."""
    secret = Secret(metadata=ObjectMeta(name="db", namespace="risk"))
    node = Node(metadata=ObjectMeta(name="a.eu", namespace="stray"))
    assert keys.key_of(secret) == "objects/secrets/risk/db"
    assert keys.key_of(node) == "objects/nodes/a.eu"
    assert keys.object_key(kind_named("Node"), "", "a.eu") == keys.key_of(node)


def test_every_sort_of_record_has_a_range_of_its_own() -> None:
    """A watch of one never sees another, and no two records share a key. [C8]"""
    made = {
        keys.kind_prefix(kind): keys.object_key(kind, "tenant", "same-name") for kind in KINDS
    } | {
        "ledgers/node/": keys.node_ledger("same-name"),
        "ledgers/quota/": keys.quota_ledger("same-name"),
        "ledgers/objects/": keys.objects_ledger("same-name"),
        "ledgers/disruption/": keys.disruption_ledger("tenant", "same-name"),
        "ledgers/grant/": keys.grant_ledger("same-name"),
        "ledgers/pools/": keys.pools_ledger(),
        "epochs/": keys.epoch("same-name"),
        "operations/": keys.operation("same-name"),
    }
    assert len(set(made.values())) == len(made)
    for prefix, own in made.items():
        inside = [key for key in made.values() if prefix <= key < keys.after_prefix(prefix)]
        assert inside == [own]


def test_namespaces_that_begin_alike_do_not_mix() -> None:
    """The slash ends the name, so that `risk` is not `risk-api`."""
    secrets = kind_named("Secret")
    prefix = keys.kind_prefix(secrets, "risk")
    assert not keys.object_key(secrets, "risk-api", "db").startswith(prefix)
    assert keys.object_key(secrets, "risk", "api").startswith(prefix)


@pytest.mark.parametrize(
    "prefix, end",
    [
        ("objects/", "objects0"),
        ("a", "b"),
        ("a\U0010ffff", "b"),
        ("a\U0010ffff\U0010ffff", "b"),
        ("\ud7ff", "\ue000"),
        ("\uffff", "\U00010000"),
        ("\x7f", "\x80"),
        ("", keys.END),
        ("\U0010ffff", keys.END),
    ],
)
def test_a_range_ends_right_after_its_last_key(prefix: str, end: str) -> None:
    """Also where the next code point is no character, or there is none."""
    assert keys.after_prefix(prefix) == end
