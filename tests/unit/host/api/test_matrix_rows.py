"""The matrix of who may do what has a row for every route, and its page shows it as it is."""

from __future__ import annotations

import pytest

from holdfast.host.api.routes import table
from holdfast.model.access.identity import acts_as, controller
from holdfast.model.lifecycle import Actor
from tools.matrix_page import PAGE, names_of, page, places, resource_of, rows, verb_of
from tools.matrix_rows import CONTROLLERS, GROUPS, IDENTITIES, TURNED_AWAY, UNKNOWN


def test_no_route_is_without_a_row_and_no_row_without_a_route() -> None:
    assert sorted(set(places()) - set(rows())) == []
    assert sorted(set(rows()) - set(places())) == []


def test_no_two_routes_hide_behind_one_row_unless_they_do_the_same() -> None:
    handlers: dict[tuple[str, str], set[object]] = {}
    for route in table():
        handlers.setdefault((resource_of(route), verb_of(route)), set()).add(route.handler)
    assert [place for place, found in handlers.items() if len(found) > 1] == []


def test_every_controller_is_in_the_matrix() -> None:
    known = {actor.value for actor in Actor if actor.value.startswith("controller:")}
    assert {f"controller:{it}" for it in CONTROLLERS} == known
    assert all(acts_as(controller(it)) for it in CONTROLLERS)


def test_a_caller_that_is_not_admitted_is_allowed_nothing() -> None:
    """But for the few paths that are open to all. [B5]"""
    for row in rows().values():
        assert not {*row.may, *row.hidden} & set(TURNED_AWAY)
        if {*row.may} & set(UNKNOWN):
            assert row.resource in ("/livez", "/readyz", "/healthz", "/ca", "/ca/bundle", "/join")


def test_an_unknown_name_is_refused() -> None:
    assert set(names_of("known")) == set(IDENTITIES)
    assert all(names_of(words) for words in GROUPS.values())
    with pytest.raises(KeyError):
        names_of("edtor-a")


def test_the_page_shows_the_rows() -> None:
    """`make matrix-page` rewrites it."""
    assert PAGE.read_text() == page()
