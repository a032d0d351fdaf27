"""Validates admission policies: a rule that can never apply or never be met is refused."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import inspect

from holdfast.model import quantity
from holdfast.model.access.admission_rules import ANY, PATH_MAX, RESOURCES, PathStep, path_steps
from holdfast.model.encoding.struct_types import struct_type
from holdfast.model.errors import Invalid
from holdfast.model.kinds.admissionpolicy import (
    AdmissionPolicy,
    AdmissionRule,
    FieldCondition,
    PolicyOperator,
)
from holdfast.model.registry import kind_of_plural
from holdfast.model.validation import names, text
from holdfast.model.validation.findings import FieldPath

RULES_MAX = 64
CONDITIONS_MAX = 16
VALUES_MAX = 64
VALUE_MAX = 253
# Each star may cost a scan of the text.
STARS_MAX = 8

_PRESENCE = (PolicyOperator.EXISTS, PolicyOperator.DOES_NOT_EXIST)
_AMOUNTS = (PolicyOperator.AT_MOST, PolicyOperator.AT_LEAST)


def admission_policy(obj: AdmissionPolicy, at: FieldPath) -> None:
    at = at["spec"]["rules"]
    if names.at_most(at, obj.spec.rules, RULES_MAX):
        names.unique(at, [rule.name for rule in obj.spec.rules])
        for index, rule in enumerate(obj.spec.rules):
            _rule(at[index], rule)


def _rule(at: FieldPath, rule: AdmissionRule) -> None:
    names.name(at["name"], rule.name)
    text.sentence(at["message"], rule.message)
    if not rule.resources:
        at["resources"].wrong(rule.resources, "must have at least one item")
    known = True
    if names.at_most(at["resources"], rule.resources, len(RESOURCES)):
        names.unique(at["resources"], rule.resources)
        for index, resource in enumerate(rule.resources):
            if resource not in RESOURCES:
                known = False
                at["resources"][index].wrong(resource, f"must be one of {', '.join(RESOURCES)}")
    names.unique(at["operations"], rule.operations)
    if not rule.require:
        at["require"].wrong(
            rule.require, "must have at least one item: the rule would require nothing"
        )
    for field, conditions in (("when", rule.when), ("require", rule.require)):
        if names.at_most(at[field], conditions, CONDITIONS_MAX):
            for index, condition in enumerate(conditions):
                _condition(at[field][index], condition, rule.resources if known else ())


def _condition(at: FieldPath, of: FieldCondition, resources: tuple[str, ...]) -> None:
    path = path_steps(of.field)
    if path is None:
        rule = f"must be a path such as spec.template.env[*].name, at most {PATH_MAX} characters"
        at["field"].wrong(of.field, rule)
    else:
        for resource in resources:
            found = list(_led_to(struct_type(kind_of_plural(resource).struct), path))
            if not found:
                at["field"].wrong(of.field, f"must be a field of {resource}")
            elif of.operator not in _PRESENCE and not any(map(_is_plain, found)):
                rule = f"must be a plain value of {resource} for {of.operator.value}"
                at["field"].wrong(of.field, rule)
    _values(at["values"], of)


def _values(at: FieldPath, of: FieldCondition) -> None:
    values = of.values
    if of.operator in _PRESENCE:
        if values:
            at.wrong(values, f"must be left out for {of.operator.value}")
        return
    if of.operator in _AMOUNTS:
        if len(values) != 1:
            at.wrong(values, f"must be one number or quantity for {of.operator.value}")
            return
        try:
            quantity.parse(values[0])
        except Invalid:
            at[0].wrong(values[0], "must be a number or a quantity such as 500m or 2Gi")
        return
    if not values:
        at.wrong(values, f"must have at least one item for {of.operator.value}")
    if names.at_most(at, values, VALUES_MAX):
        for index, value in enumerate(values):
            if len(value) > VALUE_MAX or value.count(ANY) > STARS_MAX:
                rule = f"must have at most {VALUE_MAX} characters and {STARS_MAX} stars"
                at[index].wrong(value, rule)


def _led_to(info: inspect.Type, path: tuple[PathStep, ...]) -> Iterator[inspect.Type]:
    """Yields the types of the fields that a path matches; nothing if it matches none."""
    if isinstance(info, inspect.UnionType):
        for option in info.types:
            yield from _led_to(option, path)
        return
    if not path:
        if not isinstance(info, inspect.NoneType):
            yield info
        return
    first, rest = path[0], path[1:]
    if isinstance(info, inspect.StructType) and not first.is_key:
        for field in info.fields:
            if field.encode_name == first.name:
                yield from _led_to(field.type, rest)
    elif isinstance(info, inspect.DictType) and first.is_key:
        yield from _led_to(info.value_type, rest)
    elif isinstance(info, inspect.VarTupleType | inspect.ListType) and first.name == ANY:
        yield from _led_to(info.item_type, rest)


def _is_plain(info: inspect.Type) -> bool:
    return not isinstance(
        info, inspect.StructType | inspect.DictType | inspect.VarTupleType | inspect.ListType
    )
