"""Operators' admission policies, evaluated inside the transaction on what people write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.objects import admission
from holdfast.commit.objects.admission import HINTS_ANNOTATION
from holdfast.commit.objects.admission_policies import PolicyVerdict, evaluate_policies
from holdfast.model.kinds.admissionpolicy import (
    AdmissionPolicy,
    AdmissionPolicySpec,
    AdmissionRule,
    FailureMode,
    FieldCondition,
    PolicyAction,
    PolicyOperator,
)
from holdfast.model.kinds.workload import (
    Cron,
    Disruption,
    Gang,
    Rollout,
    Workload,
    WorkloadSpec,
    WorkloadType,
)
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Create, Update
from holdfast.model.workload.jobs import run_of
from tests.furnished import ANN, BOB, Furnished
from tests.plane import ADMIN, WORKLOADS, accepted, refused, template

TEAM = FieldCondition("metadata.labels[team]", PolicyOperator.EXISTS)
# Which no label is.
NUMBER = FieldCondition("metadata.labels[team]", PolicyOperator.AT_MOST, ("3",))


def workload(name: str = "api", namespace: str = "acme", **labels: str) -> Workload:
    meta = ObjectMeta(name=name, namespace=namespace, labels=labels)
    return Workload(meta, spec=WorkloadSpec(template=template(), replicas=2))


def policy(
    name: str,
    action: PolicyAction = PolicyAction.DENY,
    condition: FieldCondition = TEAM,
    failure: FailureMode = FailureMode.CLOSED,
) -> AdmissionPolicy:
    rule = AdmissionRule(
        "has-team", ("workloads",), (condition,), action=action, message="see the handbook"
    )
    return AdmissionPolicy(ObjectMeta(name=name), spec=AdmissionPolicySpec((rule,), failure))


def test_a_policy_of_a_tenant_refuses_its_work_and_names_field_rule_and_scope() -> None:
    """[B4]"""
    it = Furnished()
    it.yes(ADMIN, Create(policy("acme")))
    found = refused(it.ask(ANN, Create(workload())), Reason.NOT_ALLOWED)
    assert found.message == (
        "metadata.labels[team]: must be given; see the handbook "
        "(rule has-team of AdmissionPolicy acme)"
    )
    assert found.details["field"] == "metadata.labels[team]"
    assert (found.details["policy"], found.details["scope"]) == ("acme/has-team", "Tenant acme")
    it.yes(ANN, Create(workload(team="risk")))
    # No other tenant sees it.
    it.yes(BOB, Create(workload(namespace="globex")))


def test_a_policy_of_the_cluster_holds_for_all_tenants() -> None:
    """[B4]"""
    it = Furnished()
    it.yes(ADMIN, Create(policy(SYSTEM_NAMESPACE)))
    for who, namespace in ((ANN, "acme"), (BOB, "globex")):
        found = refused(it.ask(who, Create(workload(namespace=namespace))), Reason.NOT_ALLOWED)
        assert found.details["scope"] == "cluster"
    # An administrator's hand is judged as any other's.
    refused(it.ask(ADMIN, Create(workload())), Reason.NOT_ALLOWED)


def test_an_update_is_judged_and_what_asks_for_no_more_is_not() -> None:
    """A policy must not prevent scaling down older work."""
    it = Furnished()
    made = it.yes(ANN, Create(workload()))
    it.yes(ADMIN, Create(policy("acme")))
    spec = msgspec.structs.replace
    more = spec(made, spec=spec(made.spec, replicas=3))
    refused(it.ask(ANN, Update(more)), Reason.NOT_ALLOWED)
    less = spec(made, spec=spec(made.spec, replicas=1))
    it.yes(ANN, Update(less))


def changed(
    obj: Workload,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Workload:
    """The workload with other labels, annotations or fields of its spec."""
    given = {"labels": labels, "annotations": annotations}
    said = {name: it for name, it in given.items() if it is not None}
    metadata = msgspec.structs.replace(obj.metadata, **said)
    return msgspec.structs.replace(
        obj, metadata=metadata, spec=msgspec.structs.replace(obj.spec, **spec)
    )


def condition(path: str, operator: PolicyOperator, *values: str) -> FieldCondition:
    return FieldCondition(path, operator, values)


def ruled(*conditions: FieldCondition, **rule: Any) -> AdmissionPolicy:
    """A policy of acme with one rule."""
    made = AdmissionRule("rule", ("workloads",), conditions, **rule)
    return AdmissionPolicy(ObjectMeta(name="acme"), spec=AdmissionPolicySpec((made,)))


SURGE, GANG = "spec.rollout.maxSurge", "spec.gang.minAvailable"
CRON = {"type": WorkloadType.CRON, "cron": Cron("0 * * * *")}


@pytest.mark.parametrize(
    "rule, good, bad",
    [
        (ruled(TEAM), {"labels": {"team": "risk"}}, {"labels": {}}),
        (
            ruled(condition("metadata.annotations[owner]", PolicyOperator.EXISTS)),
            {"annotations": {"owner": "ann"}},
            {"annotations": {}},
        ),
        (
            ruled(condition(SURGE, PolicyOperator.AT_MOST, "2")),
            {"rollout": Rollout(max_surge=2)},
            {"rollout": Rollout(max_surge=3)},
        ),
        (
            ruled(condition("spec.disruption.maxUnavailable", PolicyOperator.IN, "1")),
            {"disruption": Disruption(max_unavailable=1)},
            {"disruption": Disruption(max_unavailable=2)},
        ),
        (
            ruled(condition(GANG, PolicyOperator.AT_LEAST, "2")),
            {"gang": Gang(2)},
            {"gang": Gang(1)},
        ),
        (
            ruled(condition("spec.cron.schedule", PolicyOperator.IN, "0 *")),
            CRON,
            {"cron": Cron("30 * * * *")},
        ),
        (
            ruled(condition("spec.replicas", PolicyOperator.AT_LEAST, "3")),
            {"replicas": 3},
            {"replicas": 2},
        ),
        (
            ruled(TEAM, when=(condition(SURGE, PolicyOperator.EXISTS),)),
            {},
            {"rollout": Rollout(max_surge=3)},
        ),
    ],
    ids=lambda it: it.spec.rules[0].require[0].field if isinstance(it, AdmissionPolicy) else "",
)
def test_an_update_that_asks_for_no_more_breaks_no_rule_that_held(
    rule: AdmissionPolicy, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    """Made as the rule demands, then changed to what would not have been let in."""
    it = Furnished()
    it.yes(ADMIN, Create(rule))
    made = it.yes(ANN, Create(changed(workload(), **good)))
    found = refused(it.ask(ANN, Update(changed(made, **bad))), Reason.NOT_ALLOWED)
    assert found.details["policy"] == "acme/rule"


def test_the_check_notices_a_policy_that_is_not_asked_of_such_an_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flaw as it was."""

    def careless(*words: Any, is_new: bool) -> Any:
        return evaluate_policies(*words) if is_new else PolicyVerdict()

    monkeypatch.setattr(admission, "evaluate_policies", careless)
    with pytest.raises(AssertionError):
        test_an_update_that_asks_for_no_more_breaks_no_rule_that_held(
            ruled(TEAM), {"labels": {"team": "risk"}}, {"labels": {}}
        )


def test_what_broke_a_rule_before_may_change_in_what_the_rule_does_not_name() -> None:
    """Nor may the change break another rule, or make what was broken different."""
    it = Furnished()
    made = it.yes(ANN, Create(changed(workload(tier="gold", team="x"), replicas=9)))
    rules = (
        AdmissionRule("team", ("workloads",), (condition(TEAM.field, PolicyOperator.IN, "risk"),)),
        AdmissionRule("tier", ("workloads",), (condition("metadata.labels[tier]", TEAM.operator),)),
        AdmissionRule("few", ("workloads",), (condition("spec.replicas", NUMBER.operator, "4"),)),
        AdmissionRule("odd", ("workloads",), (NUMBER,)),
    )
    it.yes(ADMIN, Create(AdmissionPolicy(ObjectMeta(name="acme"), spec=AdmissionPolicySpec(rules))))
    # Fewer than before, and still more than the rule allows.
    made = it.yes(ANN, Update(changed(made, {"tier": "gold", "team": "x", "a": "b"}, replicas=7)))
    for labels, rule in (
        ({"team": "x"}, "acme/tier"),
        ({"tier": "gold", "team": "y"}, "acme/team"),
    ):
        found = refused(it.ask(ANN, Update(changed(made, labels))), Reason.NOT_ALLOWED)
        assert found.details["policy"] == rule
    # What cannot be judged, for a number is none, is refused once it is touched.
    good = changed(made, {"tier": "gold", "team": "risk"})
    found = refused(it.ask(ANN, Update(good)), Reason.NOT_ALLOWED)
    assert found.details["policy"] == "acme/odd"


def test_a_change_that_a_rule_only_warns_of_is_recorded_beside_what_was_known() -> None:
    """[B5]"""
    it = Furnished()
    warn = ruled(TEAM, condition("metadata.labels[tier]", TEAM.operator), action=PolicyAction.WARN)
    it.yes(ADMIN, Create(warn))
    made = it.yes(ANN, Create(workload(team="risk")))
    assert "labels[tier]" in made.metadata.annotations[HINTS_ANNOTATION]
    answer = it.ask(ANN, Update(changed(made, {})))
    assert any("labels[team]" in text for text in answer.warnings)
    noted = accepted(answer).metadata.annotations[HINTS_ANNOTATION]
    assert "labels[team]" in noted
    assert "labels[tier]" in noted


def test_warn_is_shown_to_the_writer_and_audit_is_recorded_alone() -> None:
    """[B5]"""
    for action, warned in ((PolicyAction.WARN, True), (PolicyAction.AUDIT, False)):
        it = Furnished()
        it.yes(ADMIN, Create(policy("acme", action)))
        answer = it.ask(ANN, Create(workload()))
        made = accepted(answer)
        assert any("has-team" in text for text in answer.warnings) is warned
        assert "has-team" in made.metadata.annotations[HINTS_ANNOTATION]


def test_what_cannot_be_judged_is_refused_or_let_in_as_the_policy_says() -> None:
    """Whatever the action of the rule is. [B5]"""
    for failure in FailureMode:
        it = Furnished()
        made = policy("acme", PolicyAction.AUDIT, NUMBER, failure)
        it.yes(ADMIN, Create(made))
        answer = it.ask(ANN, Create(workload(team="risk")))
        if failure is FailureMode.CLOSED:
            assert "cannot be evaluated" in refused(answer, Reason.NOT_ALLOWED).message
        else:
            noted = accepted(answer).metadata.annotations[HINTS_ANNOTATION]
            assert "cannot be evaluated" in noted


def test_components_are_not_judged_and_policies_themselves_can_always_be_mended() -> None:
    """A policy that refuses everything stops no controller and locks out no user."""
    it = Furnished()
    cron = it.plane.workload("tick", type=WorkloadType.CRON, cron=Cron("* * * * *"))
    everything = policy(
        SYSTEM_NAMESPACE, condition=FieldCondition("metadata.name", PolicyOperator.IN, ("no",))
    )
    made = it.yes(ADMIN, Create(everything))
    refused(it.ask(ANN, Create(workload())), Reason.NOT_ALLOWED)
    # A run of the cron job is a workload that no person writes.
    moment = it.plane.at().replace(second=0, microsecond=0)
    accepted(it.plane.ask(WORKLOADS, Create(run_of(cron, moment))))
    mended = msgspec.structs.replace(made, spec=AdmissionPolicySpec())
    it.yes(ADMIN, Update(mended))
    it.yes(ANN, Create(workload()))


def test_a_policy_that_changes_meanwhile_is_asked_again() -> None:
    """The policy is a record that the transaction compares, also while there is none."""
    it = Furnished()
    answer = it.plane.ask_all((ADMIN, Create(policy("acme"))), (ANN, Create(workload())))
    accepted(answer[0])
    refused(answer[1], Reason.NOT_ALLOWED)


def test_a_tenant_writes_no_policy() -> None:
    it = Furnished()
    refused(it.ask(ANN, Create(policy("acme"))), Reason.NOT_ALLOWED)
