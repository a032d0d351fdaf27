"""Audit entries: who made an accepted request, what it changed, which fields, and why.

`authority.py` calls this when a draft is accepted and writes the entries of a whole group under one
key, in the group's own transaction (`model/audit/audit_records.py`). So no request is accepted
without an entry, and no entry exists for a request that was not accepted. The next group overwrites
the key: the store's history holds each entry until the audit writer has read it.

An entry contains no value of an object, so it can contain no secret: only names of fields, and the
reasons that the request states.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from holdfast.commit.dispatch import Approval
from holdfast.commit.draft import Draft
from holdfast.model import keys
from holdfast.model.access.identity import SYSTEM_PREFIX, Identity
from holdfast.model.audit.audit_records import Mutation
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.replica import Replica, ReplicaStatus
from holdfast.model.meta import Object
from holdfast.model.requests import Bind, ForgetOperations

# The number of changed fields that are named, and of other objects that were changed with it.
FIELDS_MAX = 24
OTHERS_RECORDED_MAX = 32
# Groups of the system come first in the author's groups: they grant the widest rights, and no list
# of other groups pushes them out of the entry.
GROUPS_RECORDED_MAX = 32
# The characters of names in one list of an entry.
LIST_CHARS_MAX = 4_000
FIELD_DEPTH_MAX = 3
# A reason is for people to read. It is longer on the object itself, where there is one.
REASON_MAX = 256
# Fields that the commit updates with every change say nothing about the change.
_BOOKKEEPING = frozenset(
    {
        "metadata.operations",
        "metadata.managedFields",
        "metadata.generation",
        "status.transitions",
        "status.transitionNumber",
    }
)
# A bind writes the replica, and the ledgers of its node and its tenant.
_BIND_WRITES = 3
_BIND_FIELDS = ("status.state", "status.stage", "status.binding")
# The request fields that state a reason.
_REASONS = ("cause", "word", "reason", "evidence")


class _Form(msgspec.Struct, frozen=True):
    """The audit-relevant fields of one request type, computed once for each type."""

    verb: str
    reasons: tuple[str, ...]
    is_about_replica: bool
    has_operation: bool
    has_subresource: bool
    has_force: bool


@cache
def _form(request: type[msgspec.Struct]) -> _Form:
    fields = request.__struct_fields__
    return _Form(
        verb=request.__name__,
        reasons=tuple(field for field in _REASONS if field in fields),
        is_about_replica="target" in fields,
        has_operation="operation" in fields,
        has_subresource="subresource" in fields,
        has_force="force" in fields,
    )


def mutation(draft: Draft, identity: Identity, request: Any, decided: Approval) -> Mutation | None:
    """The audit entry of an accepted request; None if it changed nothing.

    A renewal has no entry: it says that a holder is still alive, many times a minute and for each
    controller. The entry of the takeover says how many there were.
    """
    writes = draft.writes
    if not writes or not request.is_recorded or _only_remembers(request, writes):
        return None
    if type(request) is Bind and len(writes) <= _BIND_WRITES:
        return _bound(identity, request)
    sort: type[msgspec.Struct] = type(request)
    form = _form(sort)
    main, others = _told_apart(writes, decided)
    old, new = draft.before(main), writes[main]
    if form.is_about_replica and type(new) is Replica:
        # Most requests are of this type, and change the status alone.
        fields = _changed_status(old, new)
    else:
        fields = changed_fields(old, new)
    known = new if new is not None else old
    plural, namespace, name, uid = _named(main, known)
    return Mutation(
        who=identity.name,
        groups=recorded_groups(identity),
        verb=form.verb,
        kind=plural,
        namespace=namespace,
        name=name,
        uid=uid,
        change="created" if old is None else "deleted" if new is None else "",
        subresource=request.subresource if form.has_subresource else "",
        fields=fields,
        more=others,
        reason=_reason(request, form.reasons) if form.reasons else "",
        forced=form.has_force and request.force,
        renewals=old.spec.renewals if type(old) is Lease else 0,
        operation=request.operation if form.has_operation else "",
    )


def _only_remembers(request: Any, writes: dict[str, Any]) -> bool:
    """Whether the only write is the remembered operation."""
    if len(writes) > 1 or type(request) is ForgetOperations:
        return False
    return next(iter(writes)).startswith(keys.OPERATIONS)


def _bound(identity: Identity, request: Bind) -> Mutation:
    """The entry of a bind without a reservation; there are thousands of them a second."""
    target = request.target
    return Mutation(
        who=identity.name,
        groups=recorded_groups(identity),
        verb="Bind",
        kind="replicas",
        namespace=target.namespace,
        name=target.name,
        uid=target.uid,
        fields=_BIND_FIELDS,
        operation=request.operation,
    )


def recorded_groups(identity: Identity) -> tuple[str, ...]:
    """The groups that the entry names."""
    groups = identity.groups
    if len(groups) > GROUPS_RECORDED_MAX or sum(map(len, groups)) > LIST_CHARS_MAX:
        groups = tuple(sorted(groups, key=lambda it: not it.startswith(SYSTEM_PREFIX)))
        return _bounded(groups, GROUPS_RECORDED_MAX)
    return groups


def _told_apart(writes: dict[str, Any], decided: Approval) -> tuple[str, tuple[str, ...]]:
    """The key that the request is about, and the other objects that it changed.

    It is about its answer, or about the first object that it wrote.
    """
    answer = decided.objects[0] if decided.objects else writes
    main, others = "", []
    for key, value in writes.items():
        if value is answer:
            main = key
        elif key.startswith(keys.OBJECTS):
            others.append(key)
    if not main:
        gone = keys.key_of(decided.objects[0]) if decided.objects else ""
        main = gone if gone in others else others[0] if others else next(iter(writes))
        others = [key for key in others if key != main]
    if not others:
        return main, ()
    return main, _bounded([key[len(keys.OBJECTS) :] for key in others], OTHERS_RECORDED_MAX)


def _bounded(names: Sequence[str], most: int) -> tuple[str, ...]:
    """The first names, within bounds on number and length: an entry must not grow with names
    that its author makes up.
    """
    kept, chars = 0, 0
    for name in names[:most]:
        chars += len(name)
        if chars > LIST_CHARS_MAX:
            break
        kept += 1
    return tuple(names[:kept])


def _named(key: str, value: Any) -> tuple[str, str, str, str]:
    """Plural, namespace, name and uid."""
    if isinstance(value, Object):
        metadata = value.metadata
        plural = key[len(keys.OBJECTS) : key.index("/", len(keys.OBJECTS))]
        return plural, metadata.namespace, metadata.name, metadata.uid
    # A ledger, or operations that are forgotten.
    sort, _, rest = key.partition("/")
    return sort, "", rest, ""


def _reason(request: Any, fields: tuple[str, ...]) -> str:
    said = [getattr(request, field) for field in fields]
    text = ": ".join([str(part) for part in said if part])
    return text if len(text) <= REASON_MAX else f"{text[: REASON_MAX - 3]}..."


# Which fields are others now --------------------------------------------------------------------


def changed_fields(old: Any, new: Any) -> tuple[str, ...]:
    """The paths of the fields that differ. Empty for a created or deleted object."""
    if type(old) is not type(new) or not isinstance(new, msgspec.Struct):
        return ()
    found: list[str] = []
    _differ(old, new, "", FIELD_DEPTH_MAX, found)
    if len(found) > FIELDS_MAX:
        found[FIELDS_MAX - 1 :] = [f"and {len(found) - FIELDS_MAX + 1} more"]
    return tuple(found)


def _differ(
    old: msgspec.Struct, new: msgspec.Struct, path: str, depth: int, found: list[str]
) -> None:
    # Most fields are the same objects before and after; this check is fast.
    pairs = zip(msgspec.structs.astuple(old), msgspec.structs.astuple(new), strict=True)
    for name, (before, after) in zip(_names(type(new)), pairs, strict=True):
        if before is after or before == after:
            continue
        where = f"{path}{name}"
        same_sort = type(before) is type(after) and isinstance(after, msgspec.Struct)
        if depth > 1 and same_sort:
            _differ(before, after, f"{where}.", depth - 1, found)
        elif where not in _BOOKKEEPING:
            found.append(where)


def _changed_status(old: Any, new: Replica) -> tuple[str, ...]:
    """The same for a change of a replica's status alone."""
    if type(old) is not Replica:
        return ()
    before, after = msgspec.structs.astuple(old.status), msgspec.structs.astuple(new.status)
    return tuple(
        [
            where
            for place, where in _STATUS
            if before[place] is not after[place] and before[place] != after[place]
        ]
    )


@cache
def _names(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(struct))


_STATUS = tuple(
    (place, f"status.{name}")
    for place, name in enumerate(_names(ReplicaStatus))
    if f"status.{name}" not in _BOOKKEEPING
)
