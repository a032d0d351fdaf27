"""Rules of admission policies: what they say of a document, and what they may cost."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.access.admission_rules import (
    LOOKS_MAX,
    RuleViolation,
    matches,
    path_steps,
    rule_violations,
)
from holdfast.model.kinds.admissionpolicy import (
    AdmissionPolicy,
    AdmissionPolicySpec,
    AdmissionRule,
    FieldCondition,
    PolicyOperation,
    PolicyOperator,
)
from holdfast.model.meta import ObjectMeta
from holdfast.model.validation import validate

DOCUMENT = {
    "metadata": {"name": "web", "labels": {"team": "risk", "a.b/c": "x"}},
    "spec": {
        "replicas": 3,
        "template": {
            "image": "registry.example.com/web:1",
            "resources": {"cpu": "500m", "memory": "2Gi"},
            "env": [{"name": "A"}, {"name": "DEBUG", "value": "1"}],
        },
    },
}


def condition(field: str, operator: str, *values: str) -> FieldCondition:
    return FieldCondition(field, PolicyOperator(operator), values)


def policy(*rules: AdmissionRule) -> AdmissionPolicy:
    return AdmissionPolicy(ObjectMeta(name="risk"), spec=AdmissionPolicySpec(rules))


def rule(*require: FieldCondition, **more: Any) -> AdmissionRule:
    return AdmissionRule("r", ("workloads",), require, **more)


def found(
    of: AdmissionRule, document: Any = DOCUMENT, resource: str = "workloads"
) -> list[RuleViolation]:
    return list(rule_violations(policy(of), resource, PolicyOperation.CREATE, document))


@pytest.mark.parametrize(
    "asked, place",
    [
        (("spec.template.image", "In", "registry.example.com/*"), ""),
        (("spec.template.image", "In", "other/*", "x"), "spec.template.image"),
        (("spec.template.image", "NotIn", "*:latest"), ""),
        (("spec.template.image", "NotIn", "*:1"), "spec.template.image"),
        (("metadata.labels[team]", "Exists"), ""),
        (("metadata.labels[owner]", "Exists"), "metadata.labels[owner]"),
        (("metadata.labels[a.b/c]", "In", "x"), ""),
        (("metadata.labels[*]", "In", "x"), "metadata.labels[team]"),
        (("spec.template.env[*].name", "NotIn", "DEBUG"), "spec.template.env[1].name"),
        (("spec.template.env[*].value", "DoesNotExist"), "spec.template.env[1].value"),
        (("spec.template.user", "DoesNotExist"), ""),
        (("spec.template.user", "In", "nobody"), ""),
        (("spec.replicas", "AtMost", "3"), ""),
        (("spec.replicas", "AtMost", "2"), "spec.replicas"),
        (("spec.template.resources.cpu", "AtLeast", "0.5"), ""),
        (("spec.template.resources.cpu", "AtLeast", "501m"), "spec.template.resources.cpu"),
        (("spec.template.resources.memory", "AtMost", "2048Mi"), ""),
        (("spec.template.resources.memory", "AtMost", "1Gi"), "spec.template.resources.memory"),
    ],
)
def test_a_rule_names_the_field_that_breaks_it(asked: tuple[str, ...], place: str) -> None:
    """[B4]"""
    assert [it.field for it in found(rule(condition(*asked)))] == ([place] if place else [])


def test_a_rule_is_asked_of_its_resources_operations_and_cases_alone() -> None:
    broken = condition("metadata.labels[owner]", "Exists")
    assert found(rule(broken))
    assert not found(rule(broken), resource="secrets")
    assert not found(rule(broken, operations=(PolicyOperation.UPDATE,)))
    assert found(rule(broken, when=(condition("spec.replicas", "AtLeast", "3"),)))
    assert not found(rule(broken, when=(condition("spec.replicas", "AtLeast", "4"),)))


def test_no_value_of_a_secret_is_shown() -> None:
    of = AdmissionRule("r", ("secrets",), (condition("data[*]", "In", "x"),))
    (one,) = found(of, {"data": {"key": "hunter2"}}, "secrets")
    assert (one.field, one.value) == ("data[key]", "")
    assert "hunter2" not in one.why


def test_what_cannot_be_compared_is_not_judged() -> None:
    """Neither met nor broken: what becomes of it is the policy's word. [B5]"""
    (one,) = found(rule(condition("spec.template.image", "AtMost", "3")))
    assert not one.is_judged
    (other,) = found(rule(condition("spec.template", "In", "x")))
    assert not other.is_judged


def test_the_cost_of_all_rules_is_bounded_for_each_object() -> None:
    """By looks at values, and by the length of texts."""
    many = {"spec": {"template": {"env": [{"name": "A"}] * 10_000}}}
    each = condition("spec.template.env[*].name", "In", "A")
    (one,) = found(rule(*[each] * 16), many)
    assert not one.is_judged
    assert str(LOOKS_MAX) in one.why
    long = {"spec": {"template": {"image": "a" * 1_000_000}}}
    costly = condition("spec.template.image", "NotIn", *["*b*b*b*b*"] * 64)
    (other,) = found(rule(costly), long)
    assert not other.is_judged


@given(st.text("ab", max_size=8), st.lists(st.text("ab", max_size=3), min_size=1, max_size=4))
def test_a_star_stands_for_any_text(text: str, parts: list[str]) -> None:
    """As a regular expression would have it, without its cost."""
    expected = re.fullmatch(".*".join(parts), text) is not None
    assert matches(text, "*".join(parts)) is expected


@pytest.mark.parametrize(
    "path", ["", ".", "a.", ".a", "a..b", "[x]", "a[", "a[]", "a]b", "a b", "a[x]b", "a" * 254]
)
def test_a_text_that_is_no_path_has_no_steps(path: str) -> None:
    assert path_steps(path) is None


@pytest.mark.parametrize(
    "broken, field",
    [
        (rule(), "require"),
        (AdmissionRule("r", (), (condition("spec.replicas", "Exists"),)), "resources"),
        (AdmissionRule("r", ("nodes",), (condition("spec.region", "Exists"),)), "resources[0]"),
        (
            AdmissionRule("r", ("admissionpolicies",), (condition("spec", "Exists"),)),
            "resources[0]",
        ),
        (AdmissionRule("", ("workloads",), (condition("spec.replicas", "Exists"),)), "name"),
        (rule(condition("spec.replicaz", "Exists")), "require[0].field"),
        (rule(condition("spec.template.env.name", "Exists")), "require[0].field"),
        (rule(condition("spec.template.env[0].name", "Exists")), "require[0].field"),
        (rule(condition("spec.template", "In", "x")), "require[0].field"),
        (rule(condition("spec..x", "Exists")), "require[0].field"),
        (rule(condition("spec.replicas", "Exists", "1")), "require[0].values"),
        (rule(condition("spec.replicas", "In")), "require[0].values"),
        (rule(condition("spec.replicas", "AtMost")), "require[0].values"),
        (rule(condition("spec.replicas", "AtMost", "many")), "require[0].values[0]"),
        (rule(condition("spec.replicas", "In", "*" * 9)), "require[0].values[0]"),
        (rule(*[condition("spec.replicas", "Exists")] * 17), "require"),
    ],
)
def test_a_rule_that_could_never_be_asked_or_met_is_refused(
    broken: AdmissionRule, field: str
) -> None:
    """A bad policy is refused when it is written, and not when work comes."""
    assert field in {it.path.removeprefix("spec.rules[0].") for it in validate(policy(broken))}


def test_a_good_policy_is_valid_and_rules_have_names_of_their_own() -> None:
    good = rule(
        condition("spec.template.image", "In", "registry.example.com/*"),
        condition("spec.template.env[*].secret", "DoesNotExist"),
        condition("metadata.labels[team]", "Exists"),
        when=(condition("spec.template.runtime", "In", "container"),),
    )
    assert not validate(policy(good))
    assert validate(policy(good, good))
