"""Filters and scorers that users added, found by their entry points.

The host loads them once, when it starts a scheduler, and passes them to the machine: a pure room
imports nothing by name. docs/checklists/adding-a-filter.md shows a complete example.

A package names them in its own pyproject.toml:

    [project.entry-points."holdfast.filters"]
    rack-power = "acme_holdfast:RACK_POWER"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from holdfast.model.errors import Invalid
from holdfast.propose.filters import FILTERS, Filter
from holdfast.propose.scores import COMPANY_WEIGHTS, SCORERS, Scorer

FILTERS_GROUP = "holdfast.filters"
SCORES_GROUP = "holdfast.scores"
# More than this is a packaging mistake.
ADDED_MAX = 64

T = TypeVar("T", Filter, Scorer)
Find = Callable[[str], Iterable[EntryPoint]]


def _installed(group: str) -> Iterable[EntryPoint]:
    return entry_points(group=group)


def added_filters(find: Find = _installed) -> tuple[Filter, ...]:
    """Return the filters of installed packages. Raises Invalid for other objects."""
    return _loaded(FILTERS_GROUP, Filter, {each.name for each in FILTERS}, find)


def added_scorers(find: Find = _installed) -> tuple[Scorer, ...]:
    """Return the scorers of installed packages. Raises Invalid for other objects."""
    taken = {each.name for each in SCORERS} | set(COMPANY_WEIGHTS)
    return _loaded(SCORES_GROUP, Scorer, taken, find)


def _loaded(group: str, kind: type[T], taken: set[str], find: Find) -> tuple[T, ...]:
    found: dict[str, T] = {}
    # By name, so that all schedulers with the same packages have them in the same order.
    for point in sorted(find(group), key=lambda each: (each.name, each.value)):
        loaded = point.load()
        where = f"entry point {point.name} of {group} ({point.value})"
        if not isinstance(loaded, kind):
            raise Invalid(f"{where} is a {type(loaded).__name__}, must be a {kind.__name__}")
        if loaded.name != point.name:
            raise Invalid(f"{where} is called {loaded.name}, must have the name of its entry point")
        if loaded.name in taken or loaded.name in found:
            raise Invalid(f"{where}: the name {loaded.name} is taken")
        found[loaded.name] = loaded
        if len(found) > ADDED_MAX:
            raise Invalid(f"{group} has more than {ADDED_MAX} entry points")
    return tuple(found.values())
