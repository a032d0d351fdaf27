"""The client for programs without asyncio is a shell over the other one, and nothing is missing."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import (
    Access,
    AsyncClient,
    Client,
    Invalid,
    Missing,
    RetryPolicy,
    Unavailable,
    kinds,
)
from holdfast.model.registry import KINDS
from tests.unit.host.client.scripted import Scripted, refuses, says, stays_open
from tests.unit.host.client.test_client import document
from tests.unit.host.client.test_list_watch import event, list_end

ONCE = RetryPolicy(tries_max=1, looks_max=1, deadline_ms=20_000, try_ms=5_000, pause_ms=1)
# The layers beneath, and what needs an event loop of the caller's.
NOT_SHARED = {
    *("ask", "ask_all", "exec_session", "fetch", "namespace_of", "pass_warnings", "path_of"),
    *("read", "update_status"),
}


def methods(cls: type) -> dict[str, Any]:
    found = inspect.getmembers(cls, inspect.isfunction)
    return {name: it for name, it in found if not name.startswith("_")}


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    ours, theirs = methods(Client), methods(AsyncClient)
    assert set(ours) == set(theirs) - NOT_SHARED
    for name, it in ours.items():
        mine, other = inspect.signature(it), inspect.signature(theirs[name])
        assert list(mine.parameters.values()) == list(other.parameters.values()), name


def test_every_kind_has_a_public_name() -> None:
    for kind in KINDS:
        assert getattr(kinds, kind.struct.__name__) is kind.struct
        assert kind.struct.__name__ in kinds.__all__


@contextlib.asynccontextmanager
async def server(folder: Path, *replies: Any) -> AsyncIterator[Scripted]:
    async with asyncio.timeout(60), Scripted(folder, *replies) as made:
        yield made


def use(folder: Path, act: Any, *replies: Any) -> None:
    """Run a function with a client, in a thread beside the server's loop."""

    async def story() -> None:
        async with server(folder, *replies) as it:

            def work() -> None:
                with Client(it.client_access(), policy=ONCE) as client:
                    act(client)

            await asyncio.to_thread(work)

    asyncio.run(story())


def test_calls_return_and_raise_as_those_of_the_other(tmp_path: Path) -> None:
    def act(client: Client) -> None:
        assert client.get(kinds.Workload, "web", "acme").name == "web"
        with pytest.raises(Missing, match="nothing there"):
            client.get(kinds.Workload, "web", "acme")

    use(tmp_path, act, says(document()), refuses(404, "Missing", "nothing there"))


def test_a_watch_is_an_iterator_that_can_be_left(tmp_path: Path) -> None:
    def act(client: Client) -> None:
        changes = client.watch(kinds.Tenant)
        assert next(changes).revision == 5
        assert next(changes).revision == 6
        changes.close()
        assert list(changes) == []

    use(tmp_path, act, stays_open(list_end(5, 0), event("ADDED", "a", 6)))


def test_it_works_beside_a_running_event_loop_and_from_several_threads(tmp_path: Path) -> None:
    async def story() -> None:
        async with server(tmp_path, says(document())) as it:
            client = await asyncio.to_thread(Client, it.client_access())
            names = await asyncio.gather(
                *(asyncio.to_thread(client.get, kinds.Workload, "web", "acme") for _ in range(4))
            )
            assert [found.name for found in names] == ["web"] * 4
            await asyncio.to_thread(client.close)

    asyncio.run(story())


def test_a_client_that_is_closed_or_was_never_made_leaves_no_thread() -> None:
    def ours() -> list[str]:
        return [it.name for it in threading.enumerate() if it.name == "holdfast-client"]

    with pytest.raises(Invalid, match="is not an https address"):
        Client(Access(servers=("http://127.0.0.1:1",)))
    client = Client(Access(servers=("https://127.0.0.1:1",)), policy=ONCE)
    with pytest.raises(Unavailable, match="Connection refused"):
        client.list(kinds.Node)
    client.close()
    client.close()
    assert ours() == []
    with pytest.raises(Unavailable, match="this client is closed"):
        client.list(kinds.Node)
    with pytest.raises(Unavailable, match="this client is closed"):
        next(client.watch(kinds.Node))
