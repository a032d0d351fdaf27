"""Access reviews: what `kubectl auth can-i` says is what would happen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.host.api.plane import access_reviews
from holdfast.host.api.resource_table import RESOURCES
from holdfast.host.server.caller_rights import Rights
from holdfast.model.access import identity as who
from holdfast.model.access.identity import ADMINS, AUDITORS, MONITORS, Identity
from holdfast.model.errors import Forbidden, Invalid
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from tests.plane import Plane
from tests.rights_rig import rights_on

JSON = "application/json"
ROOT = Identity(name="root", groups=(ADMINS,))
ADA = Identity(name="ada", groups=("tenant:risk",), tenants=("risk",))
BOB = Identity(name="bob")
EVE = Identity(name="eve", groups=(AUDITORS,))


@pytest.fixture
def rights() -> Rights:
    """Bob may restart two workloads of risk, read pods everywhere, and see the metrics."""
    plane = Plane()
    plane.tenant("risk")
    plane.tenant("billing")
    some = Rule(("workloads",), ("get", "patch"), (), ("web", "api"))
    plane.create(Role(ObjectMeta(name="some", namespace="risk"), rules=(some,)))
    plane.create(bound("some", "risk"))
    wide = (
        Rule(("replicas", "replicas/log"), ("get", "list")),
        Rule(verbs=("get",), non_resource_urls=("/metrics",)),
    )
    plane.create(Role(ObjectMeta(name="wide", namespace=SYSTEM_NAMESPACE), rules=wide))
    plane.create(bound("wide", SYSTEM_NAMESPACE))
    return rights_on(plane.store)


def bound(role: str, namespace: str) -> RoleBinding:
    meta = ObjectMeta(name=role, namespace=namespace)
    return RoleBinding(meta, subjects=(Subject("User", "bob"),), role_ref=RoleRef(role))


def asked(verb: str, resource: str, namespace: str = "", **more: str) -> dict[str, Any]:
    resource, _, part = resource.partition("/")
    about = {"verb": verb, "resource": resource, "subresource": part, "namespace": namespace}
    return {"resourceAttributes": {"group": "holdfast.dev", **about, **more}}


def can(
    rights: Rights, identity: Identity, verb: str, resource: str, namespace: str = "", **more: str
) -> bool:
    body = json.dumps({"spec": asked(verb, resource, namespace, **more)}).encode()
    return bool(
        json.loads(access_reviews.access(rights, identity, JSON, body))["status"]["allowed"]
    )


def test_can_i_answers_what_the_rules_say(rights: Rights) -> None:
    assert can(rights, ROOT, "delete", "nodes")
    assert can(rights, ADA, "create", "workloads", "risk")
    assert not can(rights, ADA, "create", "workloads", "billing")
    assert not can(rights, ADA, "delete", "nodes")
    assert not can(rights, ADA, "get", "unicorns", "risk")
    assert can(rights, BOB, "patch", "workloads", "risk", name="web")
    assert not can(rights, BOB, "patch", "workloads", "risk", name="db")
    assert not can(rights, BOB, "patch", "workloads", "risk")
    assert not can(rights, BOB, "delete", "workloads", "risk", name="web")
    assert can(rights, BOB, "list", "replicas")
    assert can(rights, ROOT, "*", "*", group="*")
    assert not can(rights, ADA, "*", "*", "risk", group="*")


def test_the_core_names_mean_what_they_stand_for(rights: Rights) -> None:
    assert can(rights, BOB, "list", "pods", "billing", group="")
    assert can(rights, BOB, "get", "pods/log", "billing", group="")
    assert not can(rights, BOB, "create", "pods/exec", "billing", group="")
    assert not can(rights, ROOT, "delete", "pods", "risk", group="")
    assert can(rights, ROOT, "list", "namespaces", group="")


def test_no_review_allows_a_person_what_only_components_do(rights: Rights) -> None:
    """[C6.7, A9]"""
    for verb, resource in (
        ("create", "replicas"),
        ("update", "workloads/status"),
        ("create", "replicas/binding"),
        ("create", "endpoints"),
        ("update", "leases"),
        ("frobnicate", "workloads"),
    ):
        assert not can(rights, ROOT, verb, resource, "risk"), (verb, resource)
    assert can(rights, who.controller("workload"), "create", "replicas", "risk")
    assert not can(rights, who.controller("status"), "create", "replicas", "risk")
    body = json.dumps({"spec": asked("create", "replicas", "risk")}).encode()
    status = json.loads(access_reviews.access(rights, ROOT, JSON, body))["status"]
    assert status["reason"] == "only controller:workload may create replicas, whatever the roles"


def test_paths_are_judged_as_paths(rights: Rights) -> None:
    def may(identity: Identity, path: str, verb: str = "get") -> bool:
        about = {"nonResourceAttributes": {"path": path, "verb": verb}}
        body = json.dumps({"spec": about}).encode()
        return bool(
            json.loads(access_reviews.access(rights, identity, JSON, body))["status"]["allowed"]
        )

    assert may(ADA, "/readyz")
    assert may(ADA, "/openapi/v2")
    assert not may(ADA, "/metrics")
    assert may(BOB, "/metrics")
    assert may(Identity("p", (MONITORS,)), "/metrics")
    assert not may(BOB, "/metrics", "post")
    assert may(ROOT, "/anything", "post")


def test_the_list_of_rules_agrees_with_each_single_question(rights: Rights) -> None:
    """Every verb on every resource of either group, for those with and without bindings."""
    for identity in (ADA, BOB, EVE, Identity("none"), who.controller("garbage")):
        for namespace in ("risk", "billing"):
            body = json.dumps({"spec": {"namespace": namespace}}).encode()
            status = json.loads(access_reviews.rules(rights, identity, JSON, body))["status"]
            assert status["incomplete"] is False
            listed = {
                (group, resource, verb)
                for rule in status["resourceRules"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
                if "resourceNames" not in rule
            }
            for resource in RESOURCES:
                plural = resource.kind.plural
                for verb in resource.verbs:
                    one = can(rights, identity, verb, plural, namespace)
                    assert one == (("holdfast.dev", plural, verb) in listed), (plural, verb)


def test_only_permitted_callers_review_another_user(rights: Rights) -> None:
    def about(user: str, *groups: str) -> bytes:
        spec = {**asked("create", "workloads", "risk"), "user": user, "groups": list(groups)}
        return json.dumps({"spec": spec}).encode()

    def may(body: bytes) -> bool:
        return bool(
            json.loads(access_reviews.access_of(rights, EVE, JSON, body))["status"]["allowed"]
        )

    assert may(about("ada", "tenant:risk"))
    assert not may(about("ada"))
    assert may(about("x", "system:masters", "system:authenticated"))
    assert not may(about("system:anonymous", "system:masters"))
    for identity in (ADA, BOB, who.agent("n")):
        with pytest.raises(Forbidden):
            access_reviews.access_of(rights, identity, JSON, about("ada"))
    with pytest.raises(Invalid):
        may(about(""))
    with pytest.raises(Invalid):
        may(json.dumps({"spec": {"user": "x", "groups": [1]}}).encode())


def text(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2, len(value)]) + value


def test_a_review_in_protobuf_is_read_too(rights: Rights) -> None:
    attributes = text(1, b"risk") + text(2, b"create") + text(3, b"holdfast.dev")
    attributes += text(5, b"workloads")
    spec = text(1, attributes) + text(3, b"ada") + text(4, b"other") + text(4, b"tenant:risk")
    review = text(2, spec)
    unknown = text(1, text(1, b"authorization.k8s.io/v1")) + text(2, review)
    body = b"k8s\x00" + unknown
    answer = json.loads(access_reviews.access(rights, ADA, access_reviews.PROTOBUF, body))
    assert answer["status"]["allowed"] is True
    assert answer["spec"]["resourceAttributes"]["resource"] == "workloads"
    answer = json.loads(access_reviews.access_of(rights, EVE, access_reviews.PROTOBUF, body))
    assert answer["status"]["allowed"] is True
    assert answer["spec"]["groups"] == ["other", "tenant:risk"]


@pytest.mark.parametrize(
    "body", [b"", b"k8s\x00\x12", b"k8s\x00\x12\xff\xff", b"{}", b"k8s\x00\x0b"]
)
def test_a_broken_review_is_refused_or_empty(rights: Rights, body: bytes) -> None:
    try:
        answer = json.loads(access_reviews.access(rights, ADA, access_reviews.PROTOBUF, body))
    except Invalid:
        return
    assert answer["status"]["allowed"] is False


def test_whoami_says_name_and_groups() -> None:
    info = json.loads(access_reviews.whoami(ADA))["status"]["userInfo"]
    assert info == {"username": "ada", "groups": ["tenant:risk", "system:authenticated"]}


def test_an_agents_list_says_that_it_is_not_the_whole_truth(rights: Rights) -> None:
    body = json.dumps({"spec": {"namespace": "risk"}}).encode()
    status = json.loads(access_reviews.rules(rights, who.agent("n"), JSON, body))["status"]
    assert status["incomplete"] is True
    assert "own node" in status["evaluationError"]
