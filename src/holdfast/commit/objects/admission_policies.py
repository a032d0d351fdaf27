"""Operators' admission policies: evaluated on what people write in a tenant, inside the
transaction.

`admission` calls this after the built-in policies. The tenant's policy and that of all tenants are
records that the transaction compares: a concurrent change of one makes the write be judged again.
All servers evaluate them alike, and no external service is needed.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, for_each
from holdfast.model import keys
from holdfast.model.access.admission_rules import RESOURCES, RuleViolation, rule_violations
from holdfast.model.access.identity import acts_as
from holdfast.model.encoding.wire import encode
from holdfast.model.kinds.admissionpolicy import (
    AdmissionPolicy,
    FailureMode,
    PolicyAction,
    PolicyOperation,
)
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of, kind_of_struct

FINDINGS_MAX = 64


def policy_keys(obj: Object) -> tuple[str, ...]:
    """The records that a write of this object reads, so that they are loaded with all others."""
    if kind_of(obj).plural not in RESOURCES or obj.namespace in ("", SYSTEM_NAMESPACE):
        return ()
    kind = kind_of_struct(AdmissionPolicy)
    return tuple(keys.object_key(kind, "", name) for name in (SYSTEM_NAMESPACE, obj.namespace))


class PolicyVerdict(msgspec.Struct, frozen=True):
    """The warnings of an accepted object: for its writer, and for the record."""

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def evaluate_policies(
    draft: Draft, context: Context, obj: Object, old: Object | None, *, is_new: bool = True
) -> PolicyVerdict | Refusal:
    """The refusal of the first rule that denies the object, or the warnings of the others.

    A change that asks for nothing new may keep the fields of a rule that the object already breaks;
    it may break no other rule.
    """
    resource = kind_of(obj).plural
    is_theirs = obj.namespace not in ("", SYSTEM_NAMESPACE) and resource in RESOURCES
    if not is_theirs or Actor.USER not in acts_as(context.identity):
        return PolicyVerdict()
    operation = PolicyOperation.CREATE if old is None else PolicyOperation.UPDATE
    warnings, notes = list[str](), list[str]()
    document = before = None
    names = (SYSTEM_NAMESPACE, obj.namespace)
    policies = for_each(names, lambda name: draft.object(AdmissionPolicy, "", name))
    for name, policy in zip(names, policies, strict=True):
        if policy is None or not policy.spec.rules:
            continue
        document = document or msgspec.json.decode(encode(obj))
        if old is not None and not is_new:
            before = before or msgspec.json.decode(encode(old))
        for finding in rule_violations(policy, resource, operation, document, before):
            if _denies(finding, policy.spec.failure):
                return _refusal(finding, name)
            said = warnings if _warns(finding) else notes
            if len(said) < FINDINGS_MAX:
                said.append(_sentence(finding, name))
    return PolicyVerdict(tuple(warnings), tuple(notes))


def _denies(finding: RuleViolation, failure: FailureMode) -> bool:
    if not finding.is_judged:
        return failure is FailureMode.CLOSED
    return finding.rule.action is PolicyAction.DENY


def _warns(finding: RuleViolation) -> bool:
    return finding.is_judged and finding.rule.action is PolicyAction.WARN


def _scope(policy: str) -> str:
    return "cluster" if policy == SYSTEM_NAMESPACE else f"Tenant {policy}"


def _sentence(finding: RuleViolation, policy: str) -> str:
    at = ": ".join(it for it in (finding.field, finding.value, finding.why) if it)
    more = f"; {finding.rule.message}" if finding.rule.message else ""
    return f"{at}{more} (rule {finding.rule.name} of AdmissionPolicy {policy})"


def _refusal(finding: RuleViolation, policy: str) -> Refusal:
    return Refusal(
        Reason.NOT_ALLOWED,
        _sentence(finding, policy),
        {
            "field": finding.field,
            "policy": f"{policy}/{finding.rule.name}",
            "scope": _scope(policy),
        },
    )
