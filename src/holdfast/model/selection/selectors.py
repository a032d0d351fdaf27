"""Label selectors for objects, and label expressions for nodes.

List and watch requests, endpoints, spread and affinity, node placement and explain all use this
implementation. All functions are total: they work for any labels and any valid selector.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from holdfast.model.meta import Part


class SelectorOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class Expression(Part, frozen=True):
    """One condition on one label.

    key: the label.
    operator: In, NotIn, Exists, DoesNotExist, Gt or Lt; the last two compare integers.
    values: what the label is compared with.
    """

    key: str
    operator: SelectorOperator
    values: tuple[str, ...] = ()


class LabelSelector(Part, frozen=True):
    """Holds when every label and every expression does; an empty selector holds for everything.

    match_labels: labels that must have exactly these values.
    match_expressions: further conditions.
    """

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()


def _as_int(text: str) -> int | None:
    # int() would also accept " 1", "1_000" and digits of other scripts, which are no numbers in
    # labels.
    digits = text[1:] if text[:1] == "-" else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None


def holds(expression: Expression, labels: Mapping[str, str]) -> bool:
    """Whether one expression holds.

    As in Kubernetes, NotIn also holds where the label is absent.
    """
    value = labels.get(expression.key)
    match expression.operator:
        case SelectorOperator.EXISTS:
            return value is not None
        case SelectorOperator.DOES_NOT_EXIST:
            return value is None
        case SelectorOperator.IN:
            return value is not None and value in expression.values
        case SelectorOperator.NOT_IN:
            return value is None or value not in expression.values
        case SelectorOperator.GT | SelectorOperator.LT:
            have = _as_int(value) if value is not None else None
            want = _as_int(expression.values[0]) if len(expression.values) == 1 else None
            if have is None or want is None:
                return False
            return have > want if expression.operator is SelectorOperator.GT else have < want


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether a selector matches an object with these labels."""
    return all(labels.get(k) == v for k, v in selector.match_labels.items()) and all(
        holds(e, labels) for e in selector.match_expressions
    )
