"""AdmissionPolicy: an operator's own rules for what tenants write.

There is one for each tenant, with its name, and one for all tenants, with the name of the system
namespace. `model/access/admission_rules.py` evaluates the rules.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kind_declaration import OPERATORS, Kind, KindRules, Writers, text
from holdfast.model.meta import Object, Part


class PolicyAction(StrEnum):
    """What happens to an object that breaks a rule.

    DENY refuses it, WARN accepts it with a warning to the client, AUDIT accepts it and records the
    violation on the object only.
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
    """What happens to an object for which a rule cannot be evaluated."""

    CLOSED = "Closed"
    OPEN = "Open"


class FieldCondition(Part, frozen=True):
    """A condition on a field. An absent field meets every condition except Exists.

    field: a path such as spec.template.image, spec.template.env[*].name or metadata.labels[team].
    operator: Exists and DoesNotExist test its presence; In and NotIn compare its text with
        values, in which * stands for any text; AtMost and AtLeast compare numbers and quantities.
    values: what it is compared with; one for AtMost and AtLeast.
    """

    field: str
    operator: PolicyOperator
    values: tuple[str, ...] = ()


class AdmissionRule(Part, frozen=True):
    """One rule.

    name: its name in refusals.
    resources: the resources it applies to, such as workloads.
    operations: Create, Update or both; empty means both.
    when: it applies only to objects that meet all of these conditions.
    require: the conditions that must be met.
    action: what happens to an object that breaks it.
    message: an explanation for the client.
    """

    name: str
    resources: tuple[str, ...]
    require: tuple[FieldCondition, ...]
    when: tuple[FieldCondition, ...] = ()
    operations: tuple[PolicyOperation, ...] = ()
    action: PolicyAction = PolicyAction.DENY
    message: str = ""


class AdmissionPolicySpec(Part, frozen=True):
    """All rules, and what happens to objects for which one cannot be evaluated.

    rules: evaluated in this order; the first one that denies is reported.
    failure: Closed refuses objects that cannot be evaluated, Open accepts and records them.
    """

    rules: tuple[AdmissionRule, ...] = ()
    failure: FailureMode = FailureMode.CLOSED


class AdmissionPolicy(Object, frozen=True, kw_only=True, tag="AdmissionPolicy"):
    """An operator's own rules for what a tenant, or all tenants, write.

    spec: the rules.
    """

    spec: AdmissionPolicySpec = AdmissionPolicySpec()


def _admission_policy_rules() -> KindRules:
    from holdfast.model.validation import admission_policy

    return KindRules(admission_policy.admission_policy)


ADMISSION_POLICY_KIND = Kind(
    AdmissionPolicy,
    "admissionpolicies",
    rules=_admission_policy_rules,
    writers=Writers(spec=OPERATORS),
    columns=(
        text("Rules", lambda o: str(len(o.spec.rules)), "how many rules it has"),
        text("Failure", lambda o: o.spec.failure.value, "what becomes of what cannot be judged"),
    ),
    namespaced=False,
    short_names=("ap",),
    status=False,
)
