"""Portions: a whole number, or per cent of a total, as Kubernetes writes them.

Rollouts, disruption budgets and canary steps state how much of a workload they mean either as a
number of replicas (3) or as a share of all of them ("25%"). Validation refuses every other text,
so that `portion` is total for accepted objects.
"""

from __future__ import annotations

import re

from holdfast.model.errors import FieldError, Invalid

# A workload has at most so many replicas, so no portion of it can be larger.
PORTION_MAX = 1_000_000
RULE = f'must be a whole number from 0 to {PORTION_MAX} or a percentage from "0%" to "100%"'

_PERCENT = re.compile(r"(0|[1-9][0-9]?|100)%", re.ASCII)


def percent(value: int | str) -> int | None:
    """The per cent that a portion states, or None where it states a number."""
    found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) if found is not None else None


def is_portion(value: int | str) -> bool:
    """Whether this is a portion at all. A number in quotes is not, as in Kubernetes."""
    if isinstance(value, str):
        return percent(value) is not None
    return not isinstance(value, bool) and 0 <= value <= PORTION_MAX


def is_nothing(value: int | str) -> bool:
    """Whether this portion of any total is zero."""
    return value in (0, "0%")


def portion(value: int | str, total: int, *, round_up: bool) -> int:
    """How many of `total` are meant.

    A number is taken as it is, also beyond the total: a surge of 3 on top of 2 replicas means 3.
    Only a percentage is rounded, up or down as the caller needs to stay on the safe side.
    """
    if not is_portion(value):
        error = FieldError(path="", value=repr(value)[:60], rule=RULE)
        raise Invalid(str(error), (error,))
    share = percent(value)
    if share is None:
        return int(value)
    return -(-total * share // 100) if round_up else total * share // 100
