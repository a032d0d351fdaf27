"""Validates an object by the rules that its kind declares."""

from __future__ import annotations

from holdfast.model.errors import FieldError, invariant
from holdfast.model.meta import Object, conditions_of
from holdfast.model.registry import KINDS, kind_of
from holdfast.model.validation.findings import FieldPath, Findings
from holdfast.model.validation.metadata import (
    conditions,
    immutable_fields,
    metadata,
    metadata_update,
)

RULES = {kind.struct: kind.rules() for kind in KINDS}


def validate(obj: Object) -> tuple[FieldError, ...]:
    """All errors of an object by itself; empty if it is valid.

    The decoder checks types and ranges. Admission checks what depends on other objects, such as
    whether a region exists.
    """
    findings = Findings()
    at = FieldPath(findings)
    metadata(at["metadata"], kind_of(obj), obj.metadata)
    RULES[type(obj)].wanted(obj, at)
    _observed(obj, at)
    return findings.errors()


def validate_status(obj: Object) -> tuple[FieldError, ...]:
    """All errors of an object's status, for writes that change nothing else.

    Status is written far more often than specs, and a replica's spec is a whole template.
    """
    findings = Findings()
    _observed(obj, FieldPath(findings))
    return findings.errors()


def _observed(obj: Object, at: FieldPath) -> None:
    found = conditions_of(obj)
    if found:
        conditions(at["status"]["conditions"], found)
    observed = RULES[type(obj)].observed
    if observed is not None:
        observed(obj, at)


def validate_update(old: Object, new: Object) -> tuple[FieldError, ...]:
    """All errors of an update; `validate` checks the new version by itself.

    Ownership of fields is not checked here, only changes that are never allowed.
    """
    invariant(type(old) is type(new), "an update changes the kind of an object")
    findings = Findings()
    at = FieldPath(findings)
    metadata_update(old.metadata, new.metadata, at["metadata"])
    immutable_fields(kind_of(new), old, new, at)
    update = RULES[type(new)].update
    if update is not None:
        update(old, new, at)
    return findings.errors()
