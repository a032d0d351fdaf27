"""The built-in roles as objects: created at the first start, repaired at any other."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from holdfast.commit.ledgers.recount import recount
from holdfast.host.server.caller_rights import built_in_objects, publish_built_in_roles
from holdfast.model.access.identity import server
from holdfast.model.access.roles import HELD_BY, ROLES
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.access import Role
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Create, Update
from tests.plane import Plane, accepted
from tests.rights_rig import listed

ALL = len(ROLES) + len(HELD_BY)


def start(plane: Plane) -> list[Any]:
    """Return what a starting server asks for and gets."""
    asked: list[Any] = []

    async def ask(request: Any) -> Any:
        asked.append(request)
        return plane.ask(server("one"), request)

    assert asyncio.run(publish_built_in_roles(listed(plane.store), ask)) == ""
    return asked


def test_the_first_start_shows_all_and_the_next_has_nothing_to_do() -> None:
    plane = Plane()
    assert [type(it) for it in start(plane)] == [Create] * ALL
    assert start(plane) == []
    for obj in built_in_objects():
        shown = plane.get(obj)
        assert shown is not None
        if isinstance(obj, Role):
            assert shown.rules == ROLES[obj.name]
    assert recount(plane.store.range("", "~").records) == []


def test_another_version_paints_it_over() -> None:
    plane = Plane()
    start(plane)
    meta = ObjectMeta(name="auditor", namespace=SYSTEM_NAMESPACE)
    old = plane.get(Role(meta))
    accepted(plane.ask(server("old"), Update(msgspec.structs.replace(old, rules=()))))
    assert [(type(it), it.object.name) for it in start(plane)] == [(Update, "auditor")]
    assert plane.get(Role(meta)).rules == ROLES["auditor"]


def test_a_server_starts_also_when_it_cannot_paint() -> None:
    async def down(request: Any) -> Any:
        raise Unavailable("the store does not answer")

    trouble = asyncio.run(publish_built_in_roles(listed(Plane().store), down))
    assert "the store does not answer" in trouble


def test_two_servers_that_start_together_create_the_same_roles() -> None:
    plane = Plane()
    hub = listed(plane.store)

    async def ask(request: Any) -> Any:
        return plane.ask(server("one"), request)

    for _ in range(2):
        # Both have seen nothing there.
        assert asyncio.run(publish_built_in_roles(hub, ask)) == ""
    answer = plane.ask(server("one"), Create(next(built_in_objects())))
    assert answer.reason is Reason.EXISTS
