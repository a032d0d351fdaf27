"""Names, labels, annotations, owners and finalizers, for objects of every kind."""

from __future__ import annotations

import pytest

from holdfast.model.registry import KINDS
from tests.documents import Document, Row, check, errors, named

OWNER = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "name": "web", "uid": "u-9"}


def name(value: str, kind: str = "Tenant") -> tuple[str, Document]:
    return kind, {"metadata.name": value}


def labels(entries: Document) -> tuple[str, Document]:
    return "Tenant", {"metadata.labels": entries}


def owners(*items: Document) -> tuple[str, Document]:
    return "Replica", {"metadata.ownerReferences": [{**OWNER, **item} for item in items]}


REFUSED: list[Row] = [
    (*name(""), "metadata.name", "must be given"),
    (*name("a" * 64), "metadata.name", "at most 63"),
    (*name("Web"), "metadata.name", "lower-case"),
    (*name("-web"), "metadata.name", "at both ends"),
    (*name("web-"), "metadata.name", "at both ends"),
    (*name("web.de"), "metadata.name", "lower-case"),
    (*name("web/../x"), "metadata.name", "lower-case"),
    (*name("web\n"), "metadata.name", "lower-case"),
    (*name("wéb"), "metadata.name", "lower-case"),
    (*name("web٣"), "metadata.name", "lower-case"),
    (*name("a..b", "Node"), "metadata.name", "between dots"),
    (*name(".", "Node"), "metadata.name", "between dots"),
    (*name("a" * 64 + ".b", "Node"), "metadata.name", "each part at most 63"),
    (*name(".".join(["a" * 49] * 6), "Node"), "metadata.name", "253 in all"),
    ("Workload", {"metadata.namespace": ""}, "metadata.namespace", "must be given"),
    ("Workload", {"metadata.namespace": "a.b"}, "metadata.namespace", "lower-case"),
    ("Node", {"metadata.namespace": "risk"}, "metadata.namespace", "a Node has no namespace"),
    (
        "Secret",
        {"metadata.name": None, "metadata.generateName": "Bad-"},
        "metadata.generateName",
        "lower-case",
    ),
    (*labels({"": "x"}), "metadata.labels[]", "the key must be letters"),
    (*labels({"-a": "x"}), "metadata.labels[-a]", "the key must be letters"),
    (*labels({"a/b/c": "x"}), "metadata.labels[a/b/c]", "the key must be letters"),
    (*labels({"UP.com/a": "x"}), "metadata.labels[UP.com/a]", "the key must be letters"),
    (*labels({"/a": "x"}), "metadata.labels[/a]", "the key must be letters"),
    (*labels({"a/": "x"}), "metadata.labels[a/]", "the key must be letters"),
    (*labels({"a" * 64: "x"}), f"metadata.labels[{'a' * 60}…]", "the key must be letters"),
    (*labels({"a": "x y"}), "metadata.labels[a]", "must be empty or letters"),
    (*labels({"a": "x" * 64}), "metadata.labels[a]", "at most 63"),
    (*labels({"a": "_x"}), "metadata.labels[a]", "at both ends"),
    (*labels({f"k{i}": "" for i in range(65)}), "metadata.labels", "at most 64"),
    ("Tenant", {"metadata.annotations": {"a b": ""}}, "metadata.annotations[a b]", "the key"),
    (
        "Tenant",
        {"metadata.annotations": {"a": "x" * 262_144}},
        "metadata.annotations",
        "at most 262144 bytes in all, has 262145",
    ),
    (
        "Tenant",
        {"metadata.annotations": {"a": "\x1b[31m"}},
        "metadata.annotations[a]",
        "U+001B",
    ),
    (
        "Tenant",
        {"metadata.annotations": {"a": "abc\u202ecba"}},
        "metadata.annotations[a]",
        "U+202E",
    ),
    ("Tenant", {"metadata.finalizers": ["a", "a"]}, "metadata.finalizers[1]", "twice"),
    ("Tenant", {"metadata.finalizers": ["a b"]}, "metadata.finalizers[0]", "must be letters"),
    (
        "Tenant",
        {"metadata.finalizers": [f"f{i}" for i in range(33)]},
        "metadata.finalizers",
        "at most 32",
    ),
    (*owners({"kind": "Pod"}), "metadata.ownerReferences[0].kind", "must be a kind"),
    (*owners({"apiVersion": "v1"}), "metadata.ownerReferences[0].apiVersion", "holdfast.dev/v1"),
    (*owners({"name": "A"}), "metadata.ownerReferences[0].name", "lower-case"),
    (*owners({"uid": ""}), "metadata.ownerReferences[0].uid", "must be given"),
    (*owners({}, {}), "metadata.ownerReferences[1].uid", "twice"),
    (
        *owners({"controller": True}, {"uid": "u-8", "controller": True}),
        "metadata.ownerReferences[1].controller",
        "one owner at most",
    ),
    (
        "Node",
        {"metadata.ownerReferences": [OWNER]},
        "metadata.ownerReferences[0].kind",
        "must be cluster-scoped",
    ),
    (
        "Replica",
        {"metadata.uid": "u-9", "metadata.ownerReferences": [OWNER]},
        "metadata.ownerReferences[0].uid",
        "object's own",
    ),
    (
        "Node",
        {"status.conditions": [{"type": "Ready", "status": "True"}] * 2},
        "status.conditions[1].type",
        "twice",
    ),
    (
        "Node",
        {"status.conditions": [{"type": "not a word", "status": "True"}]},
        "status.conditions[0].type",
        "one word",
    ),
    (
        "Node",
        {"status.conditions": [{"type": "Ready", "status": "True", "reason": "it is"}]},
        "status.conditions[0].reason",
        "one word",
    ),
]


@pytest.mark.parametrize("row", REFUSED, ids=named)
def test_metadata_that_breaks_a_rule_is_refused_in_its_place(row: Row) -> None:
    """Paths and rules are those of the wire, for any kind [B4]."""
    check(row)


ACCEPTED: list[tuple[str, Document]] = [
    name("a"),
    name("0"),
    name("a" * 63),
    name("a--b"),
    name("node-1.eu.example", "Node"),
    name(".".join(["a" * 62] * 4), "Node"),
    name("web-0-0.17f2a", "Event"),
    ("Secret", {"metadata.name": None, "metadata.generateName": "ci-"}),
    labels({"app": "", "example.com/tier": "Front_end.1", "a" * 63: "x" * 63}),
    labels({f"k{i}": "" for i in range(64)}),
    ("Tenant", {"metadata.annotations": {"a": "x" * 262_143}}),
    ("Tenant", {"metadata.annotations": {"note": "two\nlines\tand שלום \u200f"}}),
    ("Tenant", {"metadata.finalizers": ["holdfast.dev/drain", "mine"]}),
    owners({"controller": True}, {"uid": "u-8", "kind": "Node", "name": "a.b"}),
    ("Node", {"status.conditions": [{"type": "Ready", "status": "True", "message": "\x1b"}]}),
]


@pytest.mark.parametrize("kind, changes", ACCEPTED)
def test_metadata_at_the_edge_of_a_rule_is_accepted(kind: str, changes: Document) -> None:
    assert errors(kind, changes) == ()


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_every_kind_is_held_to_the_rules_of_names(kind: str) -> None:
    """No kind escapes, for names become keys in the store."""
    paths = [
        error.path for error in errors(kind, {"metadata.name": "a/b", "metadata.labels": {"": ""}})
    ]
    assert "metadata.name" in paths
    assert "metadata.labels[]" in paths
