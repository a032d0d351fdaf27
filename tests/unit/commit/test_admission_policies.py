"""Operators' own policies, asked inside the transaction of what people write."""

from __future__ import annotations

import msgspec

from holdfast.commit.admission import HINTS_ANNOTATION
from holdfast.model.kinds.admissionpolicy import (
    AdmissionPolicy,
    AdmissionPolicySpec,
    AdmissionRule,
    FailureMode,
    FieldCondition,
    PolicyAction,
    PolicyOperator,
)
from holdfast.model.kinds.workload import Cron, Workload, WorkloadSpec, WorkloadType
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Create, Update
from holdfast.model.runs import run_of
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
    """[B4, B5]"""
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
    # It is nobody else's.
    it.yes(BOB, Create(workload(namespace="globex")))


def test_a_policy_of_the_cluster_holds_for_all_tenants() -> None:
    """[B4, B5]"""
    it = Furnished()
    it.yes(ADMIN, Create(policy(SYSTEM_NAMESPACE)))
    for who, namespace in ((ANN, "acme"), (BOB, "globex")):
        found = refused(it.ask(who, Create(workload(namespace=namespace))), Reason.NOT_ALLOWED)
        assert found.details["scope"] == "cluster"
    # An administrator's hand is judged as any other's.
    refused(it.ask(ADMIN, Create(workload())), Reason.NOT_ALLOWED)


def test_an_update_is_judged_and_what_asks_for_no_more_is_not() -> None:
    """Whoever scales down what was there before the policy must not be kept from it. [B4]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload()))
    it.yes(ADMIN, Create(policy("acme")))
    spec = msgspec.structs.replace
    more = spec(made, spec=spec(made.spec, replicas=3))
    refused(it.ask(ANN, Update(more)), Reason.NOT_ALLOWED)
    less = spec(made, spec=spec(made.spec, replicas=1))
    it.yes(ANN, Update(less))


def test_warn_tells_the_writer_and_audit_writes_it_down_alone() -> None:
    """[B4, B5]"""
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
            assert "cannot be judged" in refused(answer, Reason.NOT_ALLOWED).message
        else:
            noted = accepted(answer).metadata.annotations[HINTS_ANNOTATION]
            assert "cannot be judged" in noted


def test_components_are_not_judged_and_policies_themselves_can_always_be_mended() -> None:
    """A policy that refuses everything stops no controller and locks nobody out. [B5, C7.5]"""
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
    """The policy is a record that the transaction compares, also while there is none. [B4]"""
    it = Furnished()
    answer = it.plane.ask_all((ADMIN, Create(policy("acme"))), (ANN, Create(workload())))
    accepted(answer[0])
    refused(answer[1], Reason.NOT_ALLOWED)


def test_a_tenant_writes_no_policy() -> None:
    """[C6.7]"""
    it = Furnished()
    refused(it.ask(ANN, Create(policy("acme"))), Reason.NOT_ALLOWED)
