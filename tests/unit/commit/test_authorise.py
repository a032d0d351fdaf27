"""The coarse door: who may use which verb on which kind, and where."""

from __future__ import annotations

import random

import pytest

from holdfast.commit.authorise import READ, identity_refusal, verb_refusal
from holdfast.commit.context import Context
from holdfast.model import identity as who
from holdfast.model.identity import ADMINS, Identity
from holdfast.model.refusal import Reason
from holdfast.model.registry import KINDS, SYSTEM_NAMESPACE, Kind, kind_of_plural
from holdfast.model.time import Instant

WRITE = ("create", "update", "patch", "delete")
ANN = Identity(name="ann", tenants=("acme",))
ALL = Identity(name="zoe", tenants=("*",))
ADMIN = Identity(name="root", groups=(ADMINS,))
NOBODIES = (
    "",
    "  ",
    "system:anonymous",
    "system:unknown",
    "system:controller:nonsense",
    "system:controller:",
    "system:node:",
    "system:node:a/b",
    "system:scheduler:A",
)


def context(identity: Identity) -> Context:
    return Context(identity, Instant(0, 0), random.Random(1))


def may(identity: Identity, verb: str, kind: Kind, namespace: str, subresource: str = "") -> bool:
    return verb_refusal(context(identity), verb, kind, namespace, subresource) is None


def where(kind: Kind) -> str:
    return "acme" if kind.namespaced else ""


@pytest.mark.parametrize("name", NOBODIES)
def test_nobody_in_particular_is_turned_away(name: str) -> None:
    """[B3, B5]"""
    refusal = identity_refusal(context(Identity(name=name, tenants=("*",))))
    assert refusal is not None
    assert refusal.reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize(
    "identity",
    [
        ANN,
        ADMIN,
        who.scheduler("a"),
        who.controller("nodes"),
        who.agent("n.example"),
        who.server("a"),
    ],
)
def test_everybody_else_is_somebody(identity: Identity) -> None:
    assert identity_refusal(context(identity)) is None


def test_a_system_name_gets_no_rights_from_groups_or_tenants() -> None:
    """An anonymous administrator is still nobody. [B5]"""
    forged = Identity(name="system:anonymous", groups=(ADMINS,), tenants=("*",))
    assert identity_refusal(context(forged)) is not None
    node = Identity(name="system:node:n", groups=(ADMINS,), tenants=("*",))
    assert not may(node, "update", kind_of_plural("tenants"), "")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_people_read_in_their_namespaces_and_write_what_is_theirs(kind: Kind) -> None:
    """[B5, C6.7]"""
    writable = kind.plural in ("workloads", "secrets", "overrides", "commitments")
    common = kind.plural in ("priorityclasses", "regions")
    for verb in READ:
        assert may(ANN, verb, kind, where(kind)) == (kind.namespaced or common)
    for verb in WRITE:
        own = writable or (verb == "delete" and kind.plural == "replicas")
        assert may(ANN, verb, kind, where(kind)) == (kind.namespaced and own)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_another_tenants_namespace_is_closed(kind: Kind) -> None:
    """[C6.8, B5]"""
    if not kind.namespaced:
        return
    for verb in (*READ, *WRITE):
        for namespace in ("globex", SYSTEM_NAMESPACE, "", "acm", "acme2"):
            assert not may(ANN, verb, kind, namespace), (verb, namespace)
        assert not may(Identity(name="poor"), verb, kind, "acme")
    assert may(ALL, "get", kind, "globex")
    assert not may(ALL, "get", kind, SYSTEM_NAMESPACE)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_an_administrator_passes_everywhere(kind: Kind) -> None:
    for verb in (*READ, *WRITE):
        for namespace in ("acme", SYSTEM_NAMESPACE, ""):
            assert may(ADMIN, verb, kind, namespace)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_an_agent_writes_events_and_the_status_of_what_is_its_own(kind: Kind) -> None:
    """[C6.7]"""
    agent = who.agent("node-a")
    for verb in READ:
        assert may(agent, verb, kind, where(kind)) == (kind.plural != "secrets" or verb == "get")
    for verb in WRITE:
        assert may(agent, verb, kind, where(kind)) == (kind.plural == "events")
        status = kind.plural in ("events", "nodes", "replicas")
        assert may(agent, verb, kind, where(kind), "status") == status


def test_components_pass_the_door_and_are_held_by_what_they_own() -> None:
    for identity in (who.scheduler("a"), who.controller("garbage"), who.server("s")):
        for kind in KINDS:
            assert may(identity, "update", kind, where(kind))


def test_a_refusal_names_verb_resource_and_place() -> None:
    """[B4]"""
    refusal = verb_refusal(context(ANN), "delete", kind_of_plural("secrets"), "globex")
    assert refusal is not None
    assert refusal.details == {"verb": "delete", "resource": "secrets", "namespace": "globex"}
    assert refusal.message == "ann may not delete secrets in namespace globex"
