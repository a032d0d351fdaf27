"""What a kind declares beside its structs: its names, who writes which field, how it is listed.

Each kind declares one `Kind` at the end of its module in `model/kinds/`, and `registry.py` lists
them all. Routes, storage keys, schema, command line, built-in roles, the checks of writers and the
tables of `kubectl get` are derived from the declarations, and so is how objects are
validated, how long they are kept and which are deleted with a tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object

if TYPE_CHECKING:
    from holdfast.model.validation.findings import FieldPath

SYSTEM = tuple(actor for actor in Actor if actor not in (Actor.USER, Actor.OPERATOR, Actor.AGENT))
PEOPLE = (Actor.USER,)
OPERATORS = (Actor.OPERATOR,)

Cell = Callable[[Any, datetime], Any]


class Writers(msgspec.Struct, frozen=True):
    """The writers of a kind.

    `spec` may create it and change all but its status. `makers` may only create it, under rules of
    their own. `status` maps each part of the status to its one writer, and `conditions` each type
    of condition. `removers` may delete it besides the writers of its spec.
    """

    spec: tuple[Actor, ...]
    status: dict[str, Actor] = {}
    conditions: dict[str, Actor] = {}
    removers: tuple[Actor, ...] = (Actor.GARBAGE,)
    makers: tuple[Actor, ...] = ()

    @property
    def of_status(self) -> tuple[Actor, ...]:
        """Everyone who writes a part of the status."""
        return tuple(dict.fromkeys((*self.status.values(), *self.conditions.values())))


class Column(msgspec.Struct, frozen=True):
    """One column of a table. Priority 1 is for `-o wide`."""

    name: str
    cell: Cell
    description: str
    type: str = "string"
    format: str = ""
    priority: int = 0


def text(name: str, get: Callable[[Any], Any], description: str, *, wide: bool = False) -> Column:
    """A column of text."""
    return Column(name, lambda obj, now: get(obj), description, priority=int(wide))


def count(name: str, get: Callable[[Any], int], description: str) -> Column:
    """A column of numbers."""
    return Column(name, lambda obj, now: get(obj), description, type="integer")


def moment(
    name: str, get: Callable[[Any], datetime | None], description: str, *, wide: bool = False
) -> Column:
    """A column of times, empty where there is none."""

    def cell(obj: Any, now: datetime) -> str:
        at = get(obj)
        return at.isoformat(timespec="seconds") if at is not None else ""

    return Column(name, cell, description, priority=int(wide))


def join_map(table: Mapping[str, object]) -> str:
    """A map in one cell."""
    return ",".join(f"{key}={value}" for key, value in table.items()) or "-"


class NoEffectRow(msgspec.Struct, frozen=True):
    """One field, or a whole kind if `path` is empty. `instead` says what happens meanwhile.

    A field that equals its default is not written, so a row cannot tell a default that was stated
    from one that was left out.
    """

    path: str
    is_set: Callable[[Any], bool]
    instead: str


def no_effect(instead: str) -> tuple[NoEffectRow]:
    """The row of a kind that nothing acts on."""
    return (NoEffectRow("", lambda obj: True, instead),)


class Unwritten(msgspec.Struct, frozen=True):
    """Fields of a status, and types of its conditions, that nothing writes yet. Their descriptions
    say so.
    """

    fields: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()


class Retention(msgspec.Struct, frozen=True):
    """How long objects of a kind are kept once nothing needs them, and how many of one tenant.

    `since` says from when the time counts. 0 as `per_tenant_max` means no limit.
    """

    kept_ms: int
    since: str
    per_tenant_max: int = 0

    @property
    def kept(self) -> timedelta:
        return timedelta(milliseconds=self.kept_ms)


class KindRules(msgspec.Struct, frozen=True):
    """The validation rules of one kind: for the spec, for the status, and for an update.

    Each gets an object of the kind, which the types cannot express, and reports what is wrong.
    """

    wanted: Callable[[Any, FieldPath], None]
    observed: Callable[[Any, FieldPath], None] | None = None
    update: Callable[[Any, Any, FieldPath], None] | None = None


class Kind(msgspec.Struct, frozen=True, eq=False):
    """One kind.

    `namespaced` kinds belong to a tenant. `dotted` kinds may have dots in their names. An update
    that changes an `immutable` field is refused. `status` is whether it has a status subresource.
    `is_secret` hides it from those who may see everything else of a tenant.

    `rules` gives what validates it beyond its types: functions beside it, or those of a larger kind
    from `model/validation/`, imported there because clients need not load them. `computed` are the
    parts of a status that servers fill in when they answer: a client that writes a status it has
    read sends them back, and they are not stored. `removal_order` is when controller:garbage
    removes it with its tenant, None if something else does. `retention` is how long it is kept
    after its use, if time alone ends that.
    """

    struct: type[Object]
    plural: str
    writers: Writers
    columns: tuple[Column, ...]
    rules: Callable[[], KindRules]
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    dotted: bool = False
    status: bool = True
    scale: bool = False
    is_secret: bool = False
    immutable: tuple[str, ...] = ()
    removal_order: int | None = 1
    retention: Retention | None = None
    computed: tuple[str, ...] = ()
    no_effect: tuple[NoEffectRow, ...] = ()
    unwritten: Unwritten = Unwritten()

    @property
    def name(self) -> str:
        return self.struct.__name__

    @property
    def singular(self) -> str:
        return self.name.lower()
