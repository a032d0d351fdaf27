"""Kinds as people type them: `workloads`, `workload`, `wl`, `Workload`, or `workload/hello`."""

from __future__ import annotations

import difflib

from holdfast.cli.ending import Misused
from holdfast.model.registry import KINDS, Kind

_BY_NAME = {
    name: kind for kind in KINDS for name in (kind.plural, kind.singular, *kind.short_names)
}


def kind_named(text: str) -> Kind:
    """The kind that is meant. Raises Misused with what comes near."""
    wanted = text.lower().partition(".")[0]
    found = _BY_NAME.get(wanted)
    if found is not None:
        return found
    near = difflib.get_close_matches(wanted, [kind.plural for kind in KINDS], n=1)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else "it must be one of " + ", ".join(kind.plural for kind in KINDS)
    )
    raise Misused(f"KIND: {text[:63]!r} is no kind; {hint}")


def kind_and_name(kind: str, name: str) -> tuple[Kind, str]:
    """Both, also from `KIND/NAME` in one word. Raises Misused."""
    first, slash, second = kind.partition("/")
    if slash and name:
        raise Misused(f"NAME: {name[:63]!r} is given beside {kind[:63]!r}, which has one already")
    if slash and not second:
        raise Misused(f"KIND: {kind[:63]!r} must have a name after the slash")
    return kind_named(first), second or name
