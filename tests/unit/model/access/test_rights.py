"""What a rule allows, what covers what, and what bindings come to."""

from __future__ import annotations

import pytest

from holdfast.model.access.identity import Identity, agent, controller
from holdfast.model.access.rights import (
    EVERY_TENANT,
    NOTHING,
    AccessLedger,
    GrantedRule,
    Permission,
    find_grant,
    find_path_grant,
    first_uncovered,
    granted_rules,
    ledger_of,
    subjects_of,
    with_binding,
    with_role,
)
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE

GET = Permission("get", "workloads", namespace="acme", name="web")


def allows(rule: Rule, permission: Permission, where: str = "") -> bool:
    return find_grant([GrantedRule(rule, where)], permission) is not None


@pytest.mark.parametrize(
    "rule, yes",
    [
        (Rule(("workloads",), ("get",)), True),
        (Rule(("*",), ("get",)), True),
        (Rule(("workloads",), ("*",)), True),
        (Rule(("replicas", "workloads"), ("list", "get")), True),
        (Rule(("workloads",), ("get",), ("holdfast.dev",)), True),
        (Rule(("workloads",), ("get",), ("*",)), True),
        (Rule(("workloads",), ("get",), (), ("web",)), True),
        (Rule(("workloads",), ("list",)), False),
        (Rule(("replicas",), ("get",)), False),
        (Rule(("workloads/*",), ("get",)), False),
        (Rule(("*/status",), ("get",)), False),
        (Rule(("workloads",), ("get",), ("apps",)), False),
        (Rule(("workloads",), ("get",), (), ("web2",)), False),
        (Rule(verbs=("get",), non_resource_urls=("*",)), False),
        (Rule(), False),
    ],
)
def test_a_rule_allows_what_it_names(rule: Rule, yes: bool) -> None:
    assert allows(rule, GET) is yes


@pytest.mark.parametrize(
    "resource, yes",
    [
        ("workloads/scale", True),
        ("*/scale", True),
        ("workloads/*", True),
        ("*", True),
        ("workloads", False),
        ("*/status", False),
        ("replicas/*", False),
        ("replicas/scale", False),
    ],
)
def test_a_part_of_a_resource_is_named_by_itself(resource: str, yes: bool) -> None:
    permission = Permission("patch", "workloads", "scale", "acme", "web")
    assert allows(Rule((resource,), ("patch",)), permission) is yes


def test_a_rule_with_names_allows_nothing_without_one() -> None:
    rule = Rule(("workloads",), ("list", "create", "deletecollection"), (), ("web",))
    for verb in rule.verbs:
        assert not allows(rule, Permission(verb, "workloads", namespace="acme"))


@pytest.mark.parametrize(
    "where, namespace, yes",
    [
        ("", "acme", True),
        ("", "", True),
        ("", SYSTEM_NAMESPACE, True),
        ("acme", "acme", True),
        ("acme", "acme2", False),
        ("acme", "", False),
        (EVERY_TENANT, "acme", True),
        (EVERY_TENANT, "", False),
        (EVERY_TENANT, SYSTEM_NAMESPACE, False),
    ],
)
def test_a_grant_holds_where_it_was_given(where: str, namespace: str, yes: bool) -> None:
    permission = Permission("get", "workloads", namespace=namespace)
    assert allows(Rule(("*",), ("*",)), permission, where) is yes


def test_paths_are_matched_whole_or_by_their_beginning() -> None:
    rule = Rule(verbs=("get",), non_resource_urls=("/metrics", "/api/*"))

    def may(verb: str, path: str, where: str = "") -> bool:
        return find_path_grant([GrantedRule(rule, where)], verb, path) is not None

    assert may("get", "/metrics")
    assert may("get", "/api/v1")
    assert not may("get", "/metrics/x")
    assert not may("get", "/api")
    assert not may("post", "/metrics")
    assert not may("get", "/metrics", "acme")


@pytest.mark.parametrize(
    "mine, rule, missing",
    [
        (Rule(("a", "b"), ("get", "list")), Rule(("b",), ("list",)), ""),
        (Rule(("a",), ("get",)), Rule(("a", "b"), ("get",)), "get b"),
        (Rule(("a",), ("get",)), Rule(("a",), ("*",)), "* a"),
        (Rule(("*",), ("*",), ("*",)), Rule(("*",), ("*",), ("*",)), ""),
        (Rule(("*/x",), ("get",)), Rule(("a/x",), ("get",)), ""),
        (Rule(("a/x",), ("get",)), Rule(("*/x",), ("get",)), "get */x"),
        (Rule(("a/*",), ("get",)), Rule(("a/x",), ("get",)), ""),
        (Rule(("a/*",), ("get",)), Rule(("a",), ("get",)), "get a"),
        (Rule(("a",), ("get",)), Rule(("a",), ("get",), (), ("n",)), ""),
        (Rule(("a",), ("get",), (), ("n",)), Rule(("a",), ("get",)), "get a"),
        (
            Rule(("a",), ("get",), (), ("n", "o")),
            Rule(("a",), ("get",), (), ("n", "p")),
            "get a named p",
        ),
        (Rule(("a",), ("get",)), Rule(("a",), ("get",), ("apps",)), "get a of group apps"),
        (
            Rule(verbs=("get",), non_resource_urls=("/a*",)),
            Rule(verbs=("get",), non_resource_urls=("/ab",)),
            "",
        ),
        (
            Rule(verbs=("get",), non_resource_urls=("/ab",)),
            Rule(verbs=("get",), non_resource_urls=("/a*",)),
            "get /a*",
        ),
    ],
)
def test_a_rule_is_covered_piece_by_piece(mine: Rule, rule: Rule, missing: str) -> None:
    assert first_uncovered([GrantedRule(mine)], [rule], "acme") == missing


def test_what_holds_in_one_namespace_covers_nothing_elsewhere() -> None:
    rule = Rule(("a",), ("get",))
    assert first_uncovered([GrantedRule(rule, "acme")], [rule], "acme") == ""
    assert first_uncovered([GrantedRule(rule, "acme")], [rule], "globex")
    assert first_uncovered([GrantedRule(rule, "acme")], [rule], "")
    assert first_uncovered([GrantedRule(rule, EVERY_TENANT)], [rule], "")


def test_components_are_meant_by_no_binding() -> None:
    """[C6.7]"""
    for identity in (controller("nodes"), agent("n"), Identity(name=""), Identity(name=" ")):
        assert subjects_of(identity) == ()
    assert subjects_of(Identity("bob", ("devs",))) == (
        "User:bob",
        "Group:devs",
        "Group:system:authenticated",
    )


def _role(name: str, *rules: Rule, **labels: str) -> Role:
    return Role(ObjectMeta(name=name, namespace="acme", labels=labels), rules=rules)


def _binding(name: str, role: str, *subjects: Subject) -> RoleBinding:
    meta = ObjectMeta(name=name, namespace="acme")
    return RoleBinding(meta, subjects=subjects, role_ref=RoleRef(role))


def test_a_ledger_kept_step_by_step_is_the_ledger_of_what_is_there() -> None:
    one, two = Rule(("a",), ("get",)), Rule(("b",), ("get",))
    bob, devs = Subject("User", "bob"), Subject("Group", "devs")
    kept = NOTHING
    for name, rules in (("z", (one,)), ("a", (two,)), ("z", (two,)), ("gone", (one,))):
        kept = with_role(kept, name, rules)
    kept = with_role(kept, "gone", None)
    for name, subjects in (("b2", (bob,)), ("b1", (bob, devs)), ("b2", (devs,)), ("b3", (bob,))):
        kept = with_binding(kept, "acme", name, _binding(name, "a", *subjects))
    kept = with_binding(kept, "acme", "b3", None)
    objects = (
        [_role("a", two), _role("z", two)],
        [_binding("b1", "a", bob, devs), _binding("b2", "a", devs)],
    )
    assert kept == ledger_of("acme", *objects)
    assert with_binding(with_binding(kept, "acme", "b1", None), "acme", "b2", None).given == {}


def test_a_binding_to_a_role_that_is_not_there_gives_nothing() -> None:
    ledger = AccessLedger(given={"User:bob": {"b": "acme/ghost", "c": f"{SYSTEM_NAMESPACE}/ghost"}})
    assert list(granted_rules(Identity("bob"), "acme", ledger, NOTHING, {})) == []


def test_an_own_role_of_a_built_in_name_is_the_own_one() -> None:
    """Else an upgrade that brings a new built-in role would change what old bindings give."""
    own = Rule(("a",), ("get",))
    system = AccessLedger({"new": (own,)}, {"User:bob": {"b": f"{SYSTEM_NAMESPACE}/new"}})
    built_in = {"new": (Rule(("*",), ("*",)),)}
    found = list(granted_rules(Identity("bob"), SYSTEM_NAMESPACE, system, system, built_in))
    assert [it.rule for it in found] == [own]
