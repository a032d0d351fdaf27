"""Every route, every verb, every identity, asked of one live server over TLS, cell by cell.

What is expected is written in `tools/matrix_rows.py`, what is asked in `matrix_wishes.py`. Lines
are kept, so that ten thousand cells take seconds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.api.app import Api
from holdfast.host.api.routes import table
from holdfast.host.server import server_process as plane_module
from holdfast.host.server.server_process import ServerProcess
from holdfast.host.server.settings import ListenAddress, ServerSettings
from tests.lines import TurnedAway
from tests.live.matrix_plane import MatrixPlane
from tests.live.matrix_wishes import NONE, Probe, Wishes
from tools.matrix_page import EXTRAS, Row, rows, verb_of
from tools.matrix_rows import CERTIFICATES_ONLY, IDENTITIES, TOKENS, TURNED_AWAY, UNKNOWN

Cell = tuple[Row, Probe]


def cells(plane: MatrixPlane) -> list[Cell]:
    """Every row with what is asked for it."""
    wishes, written = Wishes(plane.objects), rows()
    found = [
        (written[resource, verb_of(route)], probe)
        for route in table()
        for resource, probe in wishes.of_route(route).items()
    ]
    return found + [(written[path, "use"], wishes.of_extra(path)) for path in EXTRAS]


def may_see(identity: str, row: Row) -> bool:
    """Whether the caller may get what a row is about, so that it is no secret that it is there."""
    resource = "replicas" if row.resource.startswith("requests/") else row.resource
    while (resource, "get") not in rows():
        resource = resource.rpartition("/")[0]
    return identity in rows()[resource, "get"].may


async def column(plane: MatrixPlane, identity: str, asked: list[Cell]) -> list[str]:
    """Every cell of one identity that is not as it is written."""
    wrong = []
    for row, probe in asked:
        wish = probe.wish(identity)
        answer = await plane.ask(identity, wish)
        heard, expected = probe.heard(answer), row.expected(identity)
        is_nobody = identity in UNKNOWN or (
            identity in TOKENS and row.resource.startswith(CERTIFICATES_ONLY)
        )
        if is_nobody and expected == 403:
            expected = 401
        where = f"{identity}: {row.resource} {row.verb}: {wish.method} {wish.path}"
        told = answer.raw[:300].decode(errors="replace")
        if heard != expected:
            wrong.append(f"{where}: {heard} instead of {expected}: {told}")
        elif probe.name and expected != 200 and not may_see(identity, row):
            none = await plane.ask(identity, probe.of_none(identity))
            if (none.code, none.raw.replace(NONE.encode(), b"")) != (answer.code, answer.raw):
                wrong.append(f"{where}: {told} but for nothing {none.code}: {none.raw[:300]!r}")
    return wrong


async def turned_away(plane: MatrixPlane, identity: str, asked: list[Cell]) -> list[str]:
    """Every cell at which a caller got further than the handshake."""
    wrong = []
    for row, probe in asked:
        try:
            answer = await plane.ask(identity, probe.wish(identity))
        except TurnedAway:
            continue
        wrong.append(f"{identity}: {row.resource} {row.verb}: {answer.code}")
    return wrong


def test_every_cell_is_as_it_is_written(tmp_path: Path) -> None:
    """And a no is the same, to the letter, whether there is something or not.
    [A9, A10, C6.7]"""

    async def story() -> tuple[int, list[str]]:
        plane = MatrixPlane(tmp_path)
        try:
            await plane.start()
            asked = cells(plane)
            columns = [column(plane, it, asked) for it in (*IDENTITIES, *UNKNOWN)]
            columns += [turned_away(plane, it, asked) for it in TURNED_AWAY]
            wrong = await asyncio.gather(*columns)
        finally:
            await plane.stop()
        return len(asked) * len(columns), [it for one in wrong for it in one]

    count, wrong = asyncio.run(story())
    assert wrong == []
    assert count > 10_000


def test_every_path_beside_the_router_is_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: set[str] = set()

    class Seen(Api):
        def __init__(self, **parts: Any) -> None:
            found.update(parts["extras"])
            super().__init__(**parts)

    async def story() -> None:
        listen = ListenAddress("127.0.0.1", 0)
        plane = ServerProcess(
            ServerSettings(data=tmp_path, listen=listen, store="memory:", name="one")
        )
        await plane.start()
        await plane.stop()

    monkeypatch.setattr(plane_module, "Api", Seen)
    asyncio.run(story())
    assert found == {path.partition("?")[0] for path in EXTRAS}
