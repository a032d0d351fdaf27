"""The default and the minimum resources of work, as options of a server.

They apply to all tenants without rules of their own (`spec.defaults` and `spec.minimum` of a
Tenant). `commit/objects/object_defaults.py` and `commit/objects/admission_checks.py` apply them.
"""

from __future__ import annotations

import msgspec

from holdfast.host.component.machine_facts import pairs
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kinds.template import Resources
from holdfast.model.quantity import Resource, demand

DEFAULT_OPTION, MINIMUM_OPTION = "default-resources", "minimum-resources"
# What a small process needs. Requested memory and disk are also the limits where none is stated, so
# that no work can fill a disk that others need.
DEFAULT = "cpu=100m,memory=128Mi,disk=512Mi"
# No process needs less, and a thousand of them would still be a load.
MINIMUM = "cpu=10m,memory=4Mi"
DEFAULT_HELP = "resources reserved for each replica of work that does not state them"
MINIMUM_HELP = "the least resources that each replica of a tenant's work must reserve"
_NAMES = (Resource.CPU, Resource.MEMORY, Resource.DISK)


class WorkRules(msgspec.Struct, frozen=True):
    """Both rules of one server; an empty field means no rule."""

    default: Resources = Resources()
    minimum: Resources = Resources()


def work_rules(default: str, minimum: str) -> WorkRules:
    """Return the rules on the command line. Raises Invalid."""
    rules = WorkRules(
        _resources(f"--{DEFAULT_OPTION}", default), _resources(f"--{MINIMUM_OPTION}", minimum)
    )
    for name in _NAMES:
        least, given = getattr(rules.minimum, name.value), getattr(rules.default, name.value)
        if 0 < demand(name, given) < demand(name, least):
            raise _wrong(f"--{DEFAULT_OPTION}", f"{name}={given}", f"must be at least {least}")
    return rules


def _resources(option: str, text: str) -> Resources:
    """Parse `cpu=100m,memory=128Mi,disk=512Mi`; empty means no rule."""
    given = pairs(option, text.split(",")) if text else {}
    for name, amount in given.items():
        if name not in _NAMES:
            raise _wrong(option, name, "must be cpu, memory or disk")
        try:
            demand(name, amount)
        except Invalid as error:
            raise _wrong(option, f"{name}={amount}", error.errors[0].rule) from None
    return msgspec.structs.replace(Resources(), **given)


def _wrong(option: str, value: str, rule: str) -> Invalid:
    error = FieldError(option, value[:40], rule)
    return Invalid(str(error), (error,))
