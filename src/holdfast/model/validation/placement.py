"""Validates placement and selectors."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.kinds.placement import (
    Affinity,
    Placement,
    Preference,
    Spread,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from holdfast.model.selection.selectors import Expression, LabelSelector, SelectorOperator
from holdfast.model.validation import names
from holdfast.model.validation.findings import FieldPath

# A scheduler evaluates each of these for each candidate.
PLACES_MAX = 256
EXPRESSIONS_MAX = 64
VALUES_MAX = 256
TOLERATIONS_MAX = 64
AFFINITIES_MAX = 16

_LISTED = (SelectorOperator.IN, SelectorOperator.NOT_IN)
_COMPARED = (SelectorOperator.GT, SelectorOperator.LT)


def placement(at: FieldPath, of: Placement) -> None:
    """Checks where replicas may run."""
    names.names(at["regions"], of.regions, PLACES_MAX)
    names.names(at["zones"], of.zones, PLACES_MAX)
    names.names(at["data"], of.data, PLACES_MAX)
    names.optional_name(at["residency"], of.residency)
    names.optional_name(at["pool"], of.pool)
    names.label_map(at["nodeSelector"], of.node_selector)
    expressions(at["nodeExpressions"], of.node_expressions)
    _tolerations(at["tolerations"], of.tolerations)
    _spread(at["spread"], of.spread)
    _affinities(at["affinity"], of.affinity)
    _affinities(at["antiAffinity"], of.anti_affinity)
    _preferences(at["prefer"], of.prefer)


def expressions(at: FieldPath, items: Sequence[Expression]) -> None:
    """Checks conditions on labels: each operator must have the right number of values."""
    if not names.at_most(at, items, EXPRESSIONS_MAX):
        return
    for index, item in enumerate(items):
        _expression(at[index], item)


def _expression(at: FieldPath, item: Expression) -> None:
    names.key(at["key"], item.key)
    values, operator = at["values"], item.operator
    if not names.at_most(values, item.values, VALUES_MAX):
        return
    if operator in _LISTED and not item.values:
        values.wrong(item.values, f"must have at least one item with {operator.value}")
    elif operator in _COMPARED:
        if len(item.values) != 1 or not _is_integer(item.values[0]):
            values.wrong(item.values, f"must have exactly one whole number with {operator.value}")
        return
    elif operator not in _LISTED and item.values:
        values.wrong(item.values, f"must be left out with {operator.value}")
    for index, value in enumerate(item.values):
        names.label_value(values[index], value)


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18


def selector(at: FieldPath, of: LabelSelector) -> None:
    """Checks a label selector."""
    names.label_map(at["matchLabels"], of.match_labels)
    expressions(at["matchExpressions"], of.match_expressions)


def _tolerations(at: FieldPath, items: Sequence[Toleration]) -> None:
    if not names.at_most(at, items, TOLERATIONS_MAX):
        return
    for index, item in enumerate(items):
        _toleration(at[index], item)


def _toleration(at: FieldPath, item: Toleration) -> None:
    exists = item.operator is TolerationOperator.EXISTS
    if item.key:
        names.key(at["key"], item.key)
    elif not exists:
        at["operator"].wrong(item.operator.value, "must be Exists where no key is given")
    if exists and item.value:
        at["value"].wrong(item.value, "must be left out with Exists")
    names.label_value(at["value"], item.value)
    if item.toleration_seconds is not None and item.effect is not TaintEffect.NO_EXECUTE:
        at["tolerationSeconds"].wrong(
            item.toleration_seconds, "must be left out unless the effect is NoExecute"
        )


def taints(at: FieldPath, items: Sequence[Taint]) -> None:
    """Checks the taints of a node: one value for each key and effect."""
    if not names.at_most(at, items, TOLERATIONS_MAX):
        return
    for index, item in enumerate(items):
        names.key(at[index]["key"], item.key)
        names.label_value(at[index]["value"], item.value)
    seen: set[tuple[str, TaintEffect]] = set()
    for index, item in enumerate(items):
        if (item.key, item.effect) in seen:
            at[index]["key"].wrong(item.key, "must not appear twice with the same effect")
        seen.add((item.key, item.effect))


def _spread(at: FieldPath, items: Sequence[Spread]) -> None:
    if names.at_most(at, items, AFFINITIES_MAX):
        names.unique(at, [item.over.value for item in items], "over")


def _affinities(at: FieldPath, items: Sequence[Affinity]) -> None:
    if not names.at_most(at, items, AFFINITIES_MAX):
        return
    for index, item in enumerate(items):
        selector(at[index]["selector"], item.selector)


def _preferences(at: FieldPath, items: Sequence[Preference]) -> None:
    if not names.at_most(at, items, AFFINITIES_MAX):
        return
    for index, item in enumerate(items):
        if not item.expressions:
            at[index]["expressions"].wrong((), "must have at least one item")
        expressions(at[index]["expressions"], item.expressions)
