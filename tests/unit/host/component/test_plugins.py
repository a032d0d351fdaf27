"""Filters and scorers of other packages are found by name; other objects are refused."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from holdfast.host.component.plugins import ADDED_MAX, added_filters, added_scorers
from holdfast.model.errors import Invalid
from holdfast.propose.filters import FILTERS, Filter
from holdfast.propose.scores import Scorer

QUIET = Filter("quiet", lambda work, node: None, lambda *_: None, ("TooLoud",), passes=True)
CHEAP = Scorer("cheap", lambda work, view, rows, more: np.zeros(1))
TAKEN = FILTERS[0]
NOT_ONE = "a text"


class Points:
    """Return entry points as installed packages would name them."""

    def __init__(self, **named: str) -> None:
        self.named = named

    def __call__(self, group: str) -> Iterable[EntryPoint]:
        return [EntryPoint(name, f"{__name__}:{of}", group) for name, of in self.named.items()]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this module importable under its name here."""
    import sys
    import types

    module = types.ModuleType(__name__)
    for name in ("QUIET", "CHEAP", "TAKEN", "NOT_ONE"):
        setattr(module, name, globals()[name])
    monkeypatch.setitem(sys.modules, __name__, module)


def test_what_packages_bring_is_found_by_its_name() -> None:
    """[F3]"""
    assert added_filters(Points(quiet="QUIET")) == (QUIET,)
    assert added_scorers(Points(cheap="CHEAP")) == (CHEAP,)
    assert added_filters(Points()) == ()


@pytest.mark.parametrize(
    "named, words",
    [
        ({"x": "NOT_ONE"}, "is a str, must be a Filter"),
        ({"x": "CHEAP"}, "is a Scorer, must be a Filter"),
        ({"loud": "QUIET"}, "is called quiet, must have the name of its entry point"),
        ({TAKEN.name: "TAKEN"}, f"the name {TAKEN.name} is taken"),
    ],
)
def test_what_is_no_filter_is_refused(named: dict[str, str], words: str) -> None:
    """The message names the entry point."""
    with pytest.raises(Invalid, match=words):
        added_filters(Points(**named))


def test_two_packages_cannot_bring_the_same_name() -> None:
    def twice(group: str) -> Iterable[EntryPoint]:
        return [*Points(quiet="QUIET")(group), *Points(quiet="QUIET")(group)]

    with pytest.raises(Invalid, match="the name quiet is taken"):
        added_filters(twice)
    assert ADDED_MAX > 1
