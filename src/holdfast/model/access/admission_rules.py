"""Evaluates the rules of an AdmissionPolicy for an object.

A rule is data: paths into the object's wire form, and comparisons. There are no expressions, so the
cost is bounded by counting: each object may cost `LOOKS_MAX` reads of values, whatever its rules.
`commit/objects/admission_policies.py` calls this inside the transaction that compares the policy;
`validation/admission.py` refuses a path that matches no field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.model import quantity
from holdfast.model.encoding.problems import excerpt
from holdfast.model.errors import Invalid
from holdfast.model.kind_declaration import PEOPLE
from holdfast.model.kinds.admissionpolicy import (
    AdmissionPolicy,
    AdmissionRule,
    FieldCondition,
    PolicyOperation,
    PolicyOperator,
)
from holdfast.model.registry import KINDS

# The resources that tenants write and that rules may cover. Policies are not among them: it must be
# possible to correct a wrong policy.
RESOURCES = (
    *(kind.plural for kind in KINDS if kind.writers.spec == PEOPLE),
    "roles",
    "rolebindings",
    "tokens",
)
# Values of these never appear in a message.
SECRET_RESOURCES = tuple(kind.plural for kind in KINDS if kind.is_secret)
# A document has at most 20,000 values, and a rule may read all of them.
LOOKS_MAX = 100_000
PATH_MAX = 253
STEPS_MAX = 16
# This many characters of a text cost as much as one more value.
TEXT_PER_LOOK = 64
ANY = "*"

_STEP = re.compile(r"(?:^|\.)([A-Za-z][A-Za-z0-9]*)|\[([^\[\]]{1,253})\]", re.ASCII)


class PathStep(msgspec.Struct, frozen=True):
    """One step of a path: a field, or in brackets a key, or * for all keys or items."""

    name: str
    is_key: bool = False


class RuleViolation(msgspec.Struct, frozen=True):
    """A rule that an object breaks or that cannot be evaluated, with the field and the cause."""

    rule: AdmissionRule
    field: str
    value: str
    why: str
    is_judged: bool = True


class TooCostly(Exception):
    """The rules read more values than one object may cost."""


class _Looks:
    """The remaining budget of reads."""

    def __init__(self) -> None:
        self.left = LOOKS_MAX

    def take(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise TooCostly


@lru_cache(maxsize=4096)
def path_steps(path: str) -> tuple[PathStep, ...] | None:
    """Parses a path; None if the text is not a path."""
    found, at = list[PathStep](), 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None or match.end() == at:
            return None
        found.append(PathStep(match[1]) if match[1] else PathStep(match[2], is_key=True))
        at = match.end()
    is_path = path[:1].isalpha() and len(path) <= PATH_MAX and len(found) <= STEPS_MAX
    return tuple(found) if is_path else None


def rule_violations(
    policy: AdmissionPolicy,
    resource: str,
    operation: PolicyOperation,
    document: Any,
    before: Any = None,
) -> Iterator[RuleViolation]:
    """Yields all violations, in the order of the rules.

    before: the object before an update. If given, rules whose fields do not change are skipped.
    """
    looks, compares = _Looks(), _Looks()
    for rule in policy.spec.rules:
        if resource not in rule.resources or operation not in (rule.operations or (operation,)):
            continue
        found = tuple(_of_rule(rule, document, looks, resource))
        if found and not (before is not None and _is_untouched(rule, before, document, compares)):
            yield from found


def _of_rule(
    rule: AdmissionRule, document: Any, looks: _Looks, resource: str
) -> Iterator[RuleViolation]:
    try:
        if any(_broken(it, document, looks, resource) is not None for it in rule.when):
            return
        for condition in rule.require:
            broken = _broken(condition, document, looks, resource)
            if broken is not None:
                yield RuleViolation(rule, *broken)
    except TooCostly:
        yield RuleViolation(rule, "", "", f"reads more than {LOOKS_MAX} values", is_judged=False)
    except Invalid as error:
        yield RuleViolation(rule, "", "", f"cannot be evaluated: {error.message}", is_judged=False)


def _is_untouched(rule: AdmissionRule, old: Any, new: Any, looks: _Looks) -> bool:
    """Whether an update leaves all fields of a rule unchanged, or closer to what it requires.

    Then the rule has the same result for both versions, so the old one need not be evaluated. A
    number with an upper limit may fall.
    """
    asked = [(it, False) for it in rule.when] + [(it, True) for it in rule.require]
    try:
        return all(_is_kept(it, old, new, looks, is_required) for it, is_required in asked)
    except (TooCostly, Invalid):
        return False


def _is_kept(
    condition: FieldCondition, old: Any, new: Any, looks: _Looks, is_required: bool
) -> bool:
    path = path_steps(condition.field) or ()
    before, after = (dict(_reached(it, path, "", looks)) for it in (old, new))
    if _is_same(before, after, looks):
        return True
    may_fall = is_required and condition.operator is PolicyOperator.AT_MOST
    return may_fall and all(
        place in before and _number(value) <= _number(before[place])
        for place, value in after.items()
    )


def _is_same(old: Any, new: Any, looks: _Looks) -> bool:
    """Whether two parts of documents are equal. Every compared value is counted."""
    looks.take()
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(
            _is_same(old[key], value, looks) for key, value in new.items()
        )
    if isinstance(old, list) and isinstance(new, list):
        pairs = zip(old, new, strict=False)
        return len(old) == len(new) and all(_is_same(*pair, looks) for pair in pairs)
    return type(old) is type(new) and bool(old == new)


def _broken(
    condition: FieldCondition, document: Any, looks: _Looks, resource: str
) -> tuple[str, str, str] | None:
    """The field that breaks a condition, its value and the rule; None if it holds."""
    is_there = False
    for place, value in _reached(document, path_steps(condition.field) or (), "", looks):
        is_there = True
        why = _wrong(condition, value, looks)
        if why:
            shown = "" if resource in SECRET_RESOURCES else excerpt(value)
            return place, shown, why
    if condition.operator is PolicyOperator.EXISTS and not is_there:
        return condition.field, "", "must be given"
    return None


def _reached(
    value: Any, path: tuple[PathStep, ...], place: str, looks: _Looks
) -> Iterator[tuple[str, Any]]:
    """Yields the values that a path matches, each with its own path."""
    looks.take()
    if not path:
        yield place, value
        return
    first, rest = path[0], path[1:]
    if not first.is_key:
        if isinstance(value, dict) and first.name in value:
            inner = f"{place}.{first.name}" if place else first.name
            yield from _reached(value[first.name], rest, inner, looks)
        return
    entries: Any = ()
    if isinstance(value, dict):
        entries = value.items() if first.name == ANY else _one(value, first.name)
    elif isinstance(value, list) and first.name == ANY:
        entries = enumerate(value)
    for key, inside in entries:
        yield from _reached(inside, rest, f"{place}[{key}]", looks)


def _one(value: dict[str, Any], key: str) -> tuple[tuple[str, Any], ...]:
    return ((key, value[key]),) if key in value else ()


def _wrong(condition: FieldCondition, value: Any, looks: _Looks) -> str:
    """The rule that an existing value breaks; empty if it holds."""
    values = condition.values
    match condition.operator:
        case PolicyOperator.EXISTS:
            return ""
        case PolicyOperator.DOES_NOT_EXIST:
            return "must be left out"
        case PolicyOperator.AT_MOST:
            is_good = _number(value) <= quantity.parse(values[0])
            return "" if is_good else f"must be at most {values[0]}"
        case PolicyOperator.AT_LEAST:
            is_good = _number(value) >= quantity.parse(values[0])
            return "" if is_good else f"must be at least {values[0]}"
        case PolicyOperator.IN | PolicyOperator.NOT_IN:
            text = _text(value)
            looks.take(len(values) * (1 + len(text) // TEXT_PER_LOOK))
            found = next((it for it in values if matches(text, it)), None)
            if condition.operator is PolicyOperator.IN:
                return "" if found is not None else f"must be one of {', '.join(values)}"
            return "" if found is None else f"must not be {found}"


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return quantity.parse(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return quantity.exact(value)
    raise Invalid("the value is neither a number nor a quantity")


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        raise Invalid("the value is not a scalar")
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def matches(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern in which * stands for any text. It never backtracks."""
    first, *others = pattern.split(ANY)
    if not others:
        return text == pattern
    *middle, last = others
    if not text.startswith(first) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(last)
