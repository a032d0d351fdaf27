"""AdmissionPolicy: an operator's own rules for what tenants write.

One for each tenant, by its name, and one for all tenants, by the name of the system namespace.
`model/access/admission_rules` says what a rule comes to.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.meta import Object, Part


class PolicyAction(StrEnum):
    """What becomes of an object that breaks a rule.

    DENY refuses it, WARN lets it in and tells its writer, AUDIT lets it in and writes it down on
    the object alone.
    """

    DENY = "Deny"
    WARN = "Warn"
    AUDIT = "Audit"


class PolicyOperation(StrEnum):
    CREATE = "Create"
    UPDATE = "Update"


class PolicyOperator(StrEnum):
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    IN = "In"
    NOT_IN = "NotIn"
    AT_MOST = "AtMost"
    AT_LEAST = "AtLeast"


class FailureMode(StrEnum):
    """What becomes of an object of which a rule cannot be judged."""

    CLOSED = "Closed"
    OPEN = "Open"


class FieldCondition(Part, frozen=True):
    """Something that may be so of a field. A field that is not there meets all but Exists.

    field: a path such as spec.template.image, spec.template.env[*].name or metadata.labels[team].
    operator: Exists and DoesNotExist ask whether it is there; In and NotIn compare its text with
        values, in which * stands for any text; AtMost and AtLeast compare numbers and quantities.
    values: what it is compared with; one for AtMost and AtLeast.
    """

    field: str
    operator: PolicyOperator
    values: tuple[str, ...] = ()


class AdmissionRule(Part, frozen=True):
    """One rule.

    name: how refusals name it.
    resources: what it is about, such as workloads.
    operations: Create, Update or both; empty means both.
    when: it is asked only of objects of which all of these are so.
    require: all of these must be so.
    action: what becomes of an object that breaks it.
    message: what its writer should know.
    """

    name: str
    resources: tuple[str, ...]
    require: tuple[FieldCondition, ...]
    when: tuple[FieldCondition, ...] = ()
    operations: tuple[PolicyOperation, ...] = ()
    action: PolicyAction = PolicyAction.DENY
    message: str = ""


class AdmissionPolicySpec(Part, frozen=True):
    """All rules, and what becomes of objects of which one cannot be judged.

    rules: in this order; the first one that denies is the one that is heard.
    failure: Closed refuses what cannot be judged, Open lets it in and writes it down.
    """

    rules: tuple[AdmissionRule, ...] = ()
    failure: FailureMode = FailureMode.CLOSED


class AdmissionPolicy(Object, frozen=True, kw_only=True, tag="AdmissionPolicy"):
    """An operator's own rules for what a tenant writes, or all tenants.

    spec: the rules.
    """

    spec: AdmissionPolicySpec = AdmissionPolicySpec()
