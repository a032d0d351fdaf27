"""The form of a request: whether its fields can become keys and records at all.

`decide` checks this before anything is read. Admission validates objects later; this is about the
fields of the request itself: names that become keys, numbers and times that are stored. A name with
a slash would be the key of another object, and a number out of range would make an unreadable
record.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import msgspec

from holdfast.model.access.identity import Identity
from holdfast.model.kinds.reservation import Claim, ReservationOwner
from holdfast.model.meta import INT_MAX, Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Bind, PromisedPlace, Target, Term
from holdfast.model.validation.names import DOTTED_MAX
from holdfast.model.validation.text import OPERATION_ID_MAX, SENTENCE_MAX

COUNT_MAX = 1_000_000
# More field managers than an object can ever have.
MANAGERS_MAX = 128
SECONDS_MAX = 315_360_000

Rule = Callable[[Any], str]


def clip(text: str) -> str:
    """A sentence as it is stored: one that is too long ends in dots."""
    return text if len(text) <= SENTENCE_MAX else f"{text[: SENTENCE_MAX - 3]}..."


def _name(text: str) -> str:
    if len(text) <= DOTTED_MAX and "/" not in text and text.isprintable():
        return ""
    return f"must be a name: printable, without a slash, at most {DOTTED_MAX} characters"


def _operation(text: str) -> str:
    if len(text) <= OPERATION_ID_MAX and text.isprintable():
        return ""
    return f"must be printable, at most {OPERATION_ID_MAX} characters"


def _operations(names: tuple[str, ...]) -> str:
    """Each has its caller as a prefix."""
    return "" if all(name.isprintable() for name in names) else "must be printable"


def _within(most: int) -> Rule:
    def rule(number: int | None) -> str:
        if number is None or 0 <= number <= most:
            return ""
        return f"must be from 0 to {most}"

    return rule


def _moment(at: datetime | None) -> str:
    return "" if at is None or at.tzinfo is not None else "must have a time zone"


def _target(target: Target) -> str:
    return _name(target.namespace) or _name(target.name)


def _targets(targets: tuple[Target, ...]) -> str:
    return next((rule for rule in map(_target, targets) if rule), "")


def _members(places: tuple[PromisedPlace, ...]) -> str:
    return next((rule for it in places if (rule := _target(it.target) or _name(it.node))), "")


def _term(term: Term | None) -> str:
    return "" if term is None else _operation(term.scope)


def _object(obj: Object) -> str:
    # The server keeps these itself; what a client sends is checked and mostly dropped.
    if len(obj.metadata.managed_fields) > MANAGERS_MAX:
        return f"metadata.managedFields must have at most {MANAGERS_MAX} entries"
    return _name(obj.namespace) or _name(obj.name)


def _owner(owner: ReservationOwner) -> str:
    return _name(owner.name)


def _claims(claims: tuple[Claim, ...]) -> str:
    return next((rule for claim in claims if (rule := _name(claim.node))), "")


def _binds(binds: tuple[Bind, ...]) -> str:
    return next((rule for bind in binds if (rule := broken_rule(bind))), "")


def _node(node: str | Object) -> str:
    return _object(node) if isinstance(node, Object) else _name(node)


# By field name, which has the same meaning in every request.
RULES: dict[str, Rule] = {
    "target": _target,
    "victims": _targets,
    "members": _members,
    "term": _term,
    "scope": _operation,
    "object": _object,
    "owner": _owner,
    "claims": _claims,
    "binds": _binds,
    "node": _node,
    "namespace": _name,
    "name": _name,
    "reservation": _name,
    "gang": _name,
    "policy": _name,
    "approval": _name,
    "operation": _operation,
    "operations": _operations,
    "deadline": _moment,
    "snapshot_revision": _within(INT_MAX),
    "node_revision": _within(INT_MAX),
    "snapshot_age_ms": _within(INT_MAX),
    "duration_ms": _within(INT_MAX),
    "waited_ms": _within(INT_MAX),
    "min_available": _within(COUNT_MAX),
    "grace_seconds": _within(SECONDS_MAX),
}


@cache
def _rules_of(struct: type[msgspec.Struct]) -> tuple[tuple[str, Rule], ...]:
    """The rules for requests of this type, in the order of its fields."""
    return tuple((field, RULES[field]) for field in struct.__struct_fields__ if field in RULES)


def broken_rule(request: msgspec.Struct) -> str:
    """The first rule of form that the request breaks, with its field, or an empty string."""
    for field, rule in _rules_of(type(request)):
        broken = rule(getattr(request, field))
        if broken:
            return f"{field}: {broken}"
    return ""


def form_refusal(identity: Identity, request: Any) -> Refusal | None:
    """Refuse a malformed request."""
    if _operation(identity.name):
        return Refusal(Reason.UNAUTHENTICATED, "unknown identity: its name is malformed")
    broken = broken_rule(request)
    if not broken:
        return None
    return Refusal(Reason.INVALID, broken, {"field": broken.partition(":")[0]})
