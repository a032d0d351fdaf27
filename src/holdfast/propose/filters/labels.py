"""Labels: what the work requires of the node's labels.

The commit does not check this again: labels are a rule of the scheduler. With an old snapshot, the
work goes to a node whose labels have just changed, as if it had been placed a moment earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.model.placement.placement_rules import labels_of, selector_refusal
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import Expression, SelectorOperator, holds
from holdfast.observe.node_columns import Bools, Codes, Level, Rows
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork

REASONS = (Reason.SELECTOR_MISMATCH,)


def labels(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the node has the labels that the work asks for."""
    node = candidate.site.node
    have = labels_of(node) if node is not None else {}
    return selector_refusal(have, work.placement)


def label_codes(work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level) -> Codes | None:
    """The same for many nodes."""
    placement = work.placement
    wanted = [
        Expression(key=key, operator=SelectorOperator.IN, values=(value,))
        for key, value in placement.node_selector.items()
    ]
    wanted += placement.node_expressions
    if not wanted:
        return None
    return (~all_hold(wanted, view, rows)).astype(np.uint8)


def all_hold(expressions: Sequence[Expression], view: FleetSnapshot, rows: Rows) -> Bools:
    """The rows where all of these hold."""
    held = _holds(expressions[0], view, rows)
    for expression in expressions[1:]:
        held &= _holds(expression, view, rows)
    return held


def _holds(expression: Expression, view: FleetSnapshot, rows: Rows) -> Bools:
    """The rows where one expression holds.

    In and NotIn compare value numbers, since a key such as the host's name has as many values as
    there are nodes. The others evaluate the rule for each value.
    """
    of_key = view.columns.facts.label(expression.key)
    have = of_key.column[rows]
    if expression.operator in (SelectorOperator.IN, SelectorOperator.NOT_IN):
        numbers = [of_key.numbers[v] for v in expression.values if v in of_key.numbers]
        found: Bools = np.isin(have, numbers) if len(numbers) != 1 else have == numbers[0]
        return found if expression.operator is SelectorOperator.IN else ~found
    if expression.operator is SelectorOperator.EXISTS:
        return have >= 0
    if expression.operator is SelectorOperator.DOES_NOT_EXIST:
        return have < 0
    key = expression.key
    # The last entry is for rows without a value, whose number is -1.
    table = [holds(expression, {key: value}) for value in of_key.values]
    return np.array([*table, holds(expression, {})], np.bool_)[have]
