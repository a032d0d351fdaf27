"""Authorization: who may use which verb on which kind, and where, built in or by bindings."""

from __future__ import annotations

import random

import pytest

from holdfast.commit.access.authorize import identity_refusal, verb_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import CommitGroup, Draft, SeenRecords
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import ADMINS, AUDITORS, OPERATORS, Identity
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import Cause
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.registry import KINDS, SYSTEM_NAMESPACE, kind_of_plural
from holdfast.model.requests import BindTogether, Create, Evict, Patch, PatchType, Remove, Update
from holdfast.model.time import Instant
from tests.plane import ADMIN, NODES, SCHEDULER, Plane, accepted, bind, refused, target, template

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete")
ANN = Identity(name="ann", tenants=("acme",))
ALL = Identity(name="zoe", tenants=("*",))
BOB = Identity(name="bob", groups=("devs",))
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
NAMESPACES = ("acme", "globex", SYSTEM_NAMESPACE, "acm", "acme2")


def context(identity: Identity) -> Context:
    return Context(identity, Instant(0, 0), random.Random(1))


def bare() -> Draft:
    """A draft of a plane without roles and bindings."""
    view = SeenRecords()
    for namespace in NAMESPACES:
        view.learn(keys.access_ledger(namespace), None)
    return Draft(CommitGroup(view))


def may(identity: Identity, verb: str, kind: Kind, namespace: str, subresource: str = "") -> bool:
    refusal = verb_refusal(bare(), context(identity), verb, kind, namespace, subresource)
    return refusal is None


def where(kind: Kind) -> str:
    return "acme" if kind.namespaced else ""


@pytest.mark.parametrize("name", NOBODIES)
def test_an_unauthenticated_caller_is_refused(name: str) -> None:
    """[B3, B5]"""
    anonymous = Identity(name=name, groups=(ADMINS,), tenants=("*",))
    refusal = identity_refusal(context(anonymous))
    assert refusal is not None
    assert refusal.reason is Reason.UNAUTHENTICATED
    for kind in KINDS:
        assert not may(anonymous, "get", kind, where(kind))


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
def test_every_other_caller_has_an_identity(identity: Identity) -> None:
    assert identity_refusal(context(identity)) is None


def test_a_system_name_gets_no_rights_from_groups_or_tenants() -> None:
    """An anonymous administrator is still anonymous. [B5]"""
    forged = Identity(name="system:anonymous", groups=(ADMINS,), tenants=("*",))
    assert identity_refusal(context(forged)) is not None
    node = Identity(name="system:node:n", groups=(ADMINS,), tenants=("*",))
    assert not may(node, "update", kind_of_plural("tenants"), "")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_people_read_in_their_namespaces_and_write_what_is_theirs(kind: Kind) -> None:
    writable = kind.plural in ("workloads", "secrets", "overrides", "commitments")
    common = kind.plural in ("priorityclasses", "regions")
    for verb in READ:
        assert may(ANN, verb, kind, where(kind)) == (kind.namespaced or common)
    for verb in WRITE:
        own = writable or (verb == "delete" and kind.plural == "replicas")
        assert may(ANN, verb, kind, where(kind)) == (kind.namespaced and own)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_another_tenants_namespace_is_closed(kind: Kind) -> None:
    if not kind.namespaced:
        return
    for verb in (*READ, *WRITE):
        for namespace in ("globex", SYSTEM_NAMESPACE, "", "acm", "acme2"):
            assert not may(ANN, verb, kind, namespace), (verb, namespace)
        assert not may(Identity(name="poor"), verb, kind, "acme")
    assert may(ALL, "get", kind, "globex")
    assert not may(ALL, "get", kind, SYSTEM_NAMESPACE)


@pytest.mark.parametrize("tenant", ["", SYSTEM_NAMESPACE])
def test_no_claim_of_tenants_reaches_the_cluster_or_the_systems_own_namespace(tenant: str) -> None:
    odd = Identity(name="odd", tenants=(tenant,))
    for kind in KINDS:
        for namespace in ("acme", SYSTEM_NAMESPACE, ""):
            assert not may(odd, "delete", kind, namespace)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_an_administrator_passes_everywhere(kind: Kind) -> None:
    for verb in (*READ, *WRITE):
        for namespace in ("acme", SYSTEM_NAMESPACE, ""):
            assert may(ADMIN, verb, kind, namespace)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_an_auditor_reads_all_but_secrets_and_writes_nothing(kind: Kind) -> None:
    auditor = Identity(name="eve", groups=(AUDITORS,))
    for verb in READ:
        for namespace in ("acme", SYSTEM_NAMESPACE, ""):
            assert may(auditor, verb, kind, namespace) == (kind.plural != "secrets")
    for verb in WRITE:
        assert not may(auditor, verb, kind, where(kind))


def test_an_operator_maintains_the_plane_and_grants_no_rights() -> None:
    operator = Identity(name="oz", groups=(OPERATORS,))
    for plural in ("nodes", "tenants", "quotas", "priorityclasses", "regions"):
        kind = kind_of_plural(plural)
        assert may(operator, "update", kind, where(kind))
    for plural in ("roles", "rolebindings", "secrets"):
        for verb in WRITE:
            assert not may(operator, verb, kind_of_plural(plural), "acme")
    assert not may(operator, "get", kind_of_plural("secrets"), "acme")
    assert may(operator, "update", kind_of_plural("replicas"), "acme", "state")
    assert not may(ANN, "update", kind_of_plural("replicas"), "acme", "state")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_an_agent_sees_little_and_writes_the_status_of_what_is_its_own(kind: Kind) -> None:
    """[C6.7]"""
    agent = who.agent("node-a")
    seen = kind.plural in ("nodes", "replicas", "priorityclasses", "regions")
    for verb in READ:
        # Of these an agent sees those that its work needs.
        given = kind.plural in ("secrets", "reservations") and verb == "get"
        assert may(agent, verb, kind, where(kind)) == (seen or given)
    for verb in WRITE:
        assert not may(agent, verb, kind, where(kind))
        own = kind.plural in ("nodes", "replicas") and verb in ("update", "patch")
        assert may(agent, verb, kind, where(kind), "status") == own


def test_a_refusal_names_verb_resource_and_place() -> None:
    """[B4]"""
    secrets = kind_of_plural("secrets")
    refusal = verb_refusal(bare(), context(ANN), "delete", secrets, "globex")
    assert refusal is not None
    assert refusal.details == {"verb": "delete", "resource": "secrets", "namespace": "globex"}
    assert refusal.message == "ann may not delete secrets in namespace globex"


# Roles and bindings -------------------------------------------------------------------------------


def role(name: str, *rules: Rule, namespace: str = "acme") -> Role:
    return Role(ObjectMeta(name=name, namespace=namespace), rules=rules)


def binding(
    name: str, *subjects: Subject, namespace: str = "acme", of: RoleRef | None = None
) -> RoleBinding:
    return RoleBinding(
        ObjectMeta(name=name, namespace=namespace),
        subjects=subjects,
        role_ref=of if of is not None else RoleRef(name),
    )


def workload(name: str = "web", namespace: str = "acme") -> Workload:
    meta = ObjectMeta(name=name, namespace=namespace)
    return Workload(meta, spec=WorkloadSpec(template=template()))


@pytest.fixture
def it() -> Plane:
    plane = Plane()
    plane.tenant("acme")
    plane.tenant("globex")
    return plane


MAKERS = Rule(("workloads",), ("create", "patch"))


@pytest.mark.parametrize(
    "subject",
    [
        Subject("User", "bob"),
        Subject("Group", "devs"),
        Subject("Group", "system:authenticated"),
    ],
)
def test_what_a_binding_gives_counts_at_once_and_not_after_it_went(
    it: Plane, subject: Subject
) -> None:
    refused(it.ask(BOB, Create(workload())), Reason.NOT_ALLOWED)
    it.create(role("makers", MAKERS))
    refused(it.ask(BOB, Create(workload())), Reason.NOT_ALLOWED)
    it.create(binding("makers", subject))
    accepted(it.ask(BOB, Create(workload())))
    refused(it.ask(BOB, Create(workload(namespace="globex"))), Reason.NOT_ALLOWED)
    refused(it.ask(BOB, Remove("workloads", "acme", "web")), Reason.NOT_ALLOWED)
    accepted(it.ask(ADMIN, Remove("rolebindings", "acme", "makers")))
    refused(it.ask(BOB, Create(workload("again"))), Reason.NOT_ALLOWED)


def test_a_service_account_is_the_user_of_its_tenants_own_tokens(it: Plane) -> None:
    bot = Identity(name="tenant:acme:bot")
    it.create(role("makers", MAKERS, namespace="globex"))
    account = Subject("ServiceAccount", "bot", "acme")
    it.create(binding("makers", account, namespace="globex"))
    accepted(it.ask(bot, Create(workload(namespace="globex"))))
    refused(it.ask(bot, Create(workload())), Reason.NOT_ALLOWED)
    other = Identity(name="tenant:globex:bot")
    refused(it.ask(other, Create(workload("two", "globex"))), Reason.NOT_ALLOWED)


def test_a_role_of_the_system_holds_where_it_is_bound(it: Plane) -> None:
    it.create(role("makers", MAKERS, namespace=SYSTEM_NAMESPACE))
    it.create(binding("here", Subject("User", "bob"), of=RoleRef("makers", SYSTEM_NAMESPACE)))
    accepted(it.ask(BOB, Create(workload())))
    refused(it.ask(BOB, Create(workload(namespace="globex"))), Reason.NOT_ALLOWED)
    it.create(binding("makers", Subject("User", "bob"), namespace=SYSTEM_NAMESPACE))
    accepted(it.ask(BOB, Create(workload(namespace="globex"))))


def test_a_built_in_role_may_be_given_to_others(it: Plane) -> None:
    editor = RoleRef("tenant-editor", SYSTEM_NAMESPACE)
    it.create(binding("editors", Subject("Group", "devs"), of=editor))
    accepted(it.ask(BOB, Create(workload())))
    accepted(it.ask(BOB, Remove("workloads", "acme", "web")))


def test_names_limit_what_a_rule_allows_and_never_allow_a_new_object(it: Plane) -> None:
    it.create(role("one", Rule(("workloads",), ("create", "patch"), (), ("web",))))
    it.create(binding("one", Subject("User", "bob")))
    refused(it.ask(BOB, Create(workload())), Reason.NOT_ALLOWED)
    # What would make it is a create, whatever it is sent as.
    named = {"name": "web", "namespace": "acme"}
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": named}
    body |= {"spec": {"template": {"command": ["sleep", "60"]}}}
    applied = Patch("workloads", "acme", "web", PatchType.APPLY, body, manager="bob")
    refused(it.ask(BOB, applied), Reason.NOT_ALLOWED)
    it.create(workload())
    it.create(workload("other"))
    change = {"metadata": {"labels": {"a": "b"}}}

    def patch(name: str) -> Patch:
        return Patch("workloads", "acme", name, PatchType.MERGE, change)

    accepted(it.ask(BOB, patch("web")))
    refused(it.ask(BOB, patch("other")), Reason.NOT_ALLOWED)


def test_a_namespaces_wildcard_reaches_no_cluster_wide_kind(it: Plane) -> None:
    """Nor by naming a namespace where there is none."""
    it.create(role("all", Rule(("*",), ("*",), ("*",))))
    it.create(binding("all", Subject("User", "bob")))
    node = it.node()
    smuggled = node.metadata.__class__(name=node.name, namespace="acme")
    for obj in (node, node.__class__(smuggled, spec=node.spec)):
        refused(it.ask(BOB, Update(obj)), Reason.NOT_ALLOWED)
    refused(it.ask(BOB, Remove("nodes", "acme", node.name)), Reason.NOT_ALLOWED)
    refused(it.ask(BOB, Remove("tenants", "", "globex")), Reason.NOT_ALLOWED)


def test_the_right_to_scale_changes_the_number_and_nothing_else(it: Plane) -> None:
    it.create(role("scalers", Rule(("workloads/scale",), ("update", "patch"))))
    it.create(binding("scalers", Subject("User", "bob")))
    it.create(workload())
    change = {"spec": {"replicas": 5, "template": {"command": ["evil"]}}}
    change["metadata"] = {"labels": {"a": "b"}}  # type: ignore[assignment]

    def patch(part: str) -> Patch:
        return Patch("workloads", "acme", "web", PatchType.MERGE, change, part)

    refused(it.ask(BOB, patch("")), Reason.NOT_ALLOWED)
    after = accepted(it.ask(BOB, patch("scale")))
    assert after.spec.replicas == 5
    assert after.spec.template.command == ("sleep", "60")
    assert not after.metadata.labels
    refused(it.ask(BOB, patch("status")), Reason.NOT_ALLOWED)


def test_a_right_that_is_taken_away_meanwhile_does_not_count(it: Plane) -> None:
    """Another authority takes it away; this one has the old record and finds out. [B5, C2]"""
    it.create(role("makers", MAKERS))
    it.create(binding("makers", Subject("User", "bob")))
    accepted(it.ask(BOB, Create(workload())))
    here, it.authority = it.authority, it.new_authority()
    accepted(it.ask(ADMIN, Remove("rolebindings", "acme", "makers")))
    it.authority = here
    refused(it.ask(BOB, Create(workload("late"))), Reason.NOT_ALLOWED)


def test_a_right_that_is_given_meanwhile_counts(it: Plane) -> None:
    """A refusal too is decided on records that are current. [C2]"""
    it.create(role("makers", MAKERS))
    refused(it.ask(BOB, Create(workload())), Reason.NOT_ALLOWED)
    here, it.authority = it.authority, it.new_authority()
    it.create(binding("makers", Subject("User", "bob")))
    it.authority = here
    accepted(it.ask(BOB, Create(workload())))


def test_stopping_a_replica_and_giving_it_up_are_rights_of_their_own(it: Plane) -> None:
    term = it.term(SCHEDULER)
    bound = it.bound(it.replica(it.workload()), it.node(), term)
    request = Evict(target(bound), Cause.USER_DELETE)
    refused(it.ask(BOB, request), Reason.NOT_ALLOWED)
    it.create(role("stoppers", Rule(("replicas/eviction",), ("create",))))
    it.create(binding("stoppers", Subject("User", "bob")))
    accepted(it.ask(BOB, request))


def test_every_bind_of_several_needs_the_right(it: Plane) -> None:
    term, node = it.term(SCHEDULER), it.node()
    one = it.replica(it.workload("one"))
    two = it.replica(it.workload("two", "globex"))
    both = BindTogether((bind(one, node, term), bind(two, node, term)))
    refused(it.ask(NODES, both), Reason.NOT_OWNER)
    refused(it.ask(BOB, both), Reason.NOT_OWNER)


def test_no_binding_makes_a_component_own_more(it: Plane) -> None:
    """[C6.7]"""
    answer = it.ask(ADMIN, Create(binding("n", Subject("User", NODES.name), of=RoleRef("admin"))))
    refused(answer, Reason.INVALID)
    admin = RoleRef("admin", SYSTEM_NAMESPACE)
    it.create(binding("all", Subject("Group", "system:authenticated"), of=admin))
    refused(it.ask(NODES, Create(workload())), Reason.NOT_OWNER)
