"""A whole plane is upgraded to the next version, part by part, and its format raised at the end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import __version__
from holdfast.cli.main import root
from holdfast.cli.upgrade import raise_format
from holdfast.host.client.transport import Transport
from holdfast.model.errors import Conflict
from holdfast.model.plane_format import FORMAT, RaiseRequest, is_older
from tests.live.part import Part
from tests.live.whole_plane import LONG_FENCE, WholePlane

NEXT_VERSION = "99.0.0"
# The next version, generated: all of this one, with one more format.
NEXT = (
    sys.executable,
    "-c",
    f"""
import runpy, holdfast
holdfast.__version__ = {NEXT_VERSION!r}
from holdfast.model import plane_format
plane_format.FORMAT = {FORMAT + 1}
runpy.run_module("holdfast.host", run_name="__main__")
""",
)
PARTS = ("scheduler", "controllers", "n1")


async def command(plane: WholePlane, *words: str) -> tuple[int, str]:
    """The exit code and the words of a command, run in this process."""
    config = str(plane.folder / "server-1" / "kubeconfig")
    ran = await asyncio.to_thread(
        CliRunner().invoke,
        root,
        ["upgrade", *words, "--kubeconfig", config],
        standalone_mode=False,
    )
    return int(ran.return_value if ran.exception is None else 1), ran.output


async def finish(plane: WholePlane) -> tuple[int, str]:
    return await command(plane, "finish", "--reason", "ticket 7", "--yes")


async def restarted(plane: WholePlane, *names: str, program: tuple[str, ...] = NEXT) -> None:
    """Replace these parts by others of that version."""
    lives = {name: plane.parts[name].lives for name in names}
    for name in names:
        part = plane.parts[name]
        part.program = program
        part.kill()
        part.spawn()

    async def back() -> bool:
        return all(
            it.lives > lives[it.name] and it.works for it in map(plane.parts.get, names) if it
        )

    await plane.until(back)


@pytest.mark.timeout(600)
def test_the_format_is_raised_when_no_older_part_lives_and_older_servers_stay_out(
    tmp_path: Path,
) -> None:
    """The command names the parts that are older and refuses while one lives; work runs on through
    all of it as the same process.
    """
    assert is_older(__version__, NEXT_VERSION)

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",), fence=LONG_FENCE) as plane:
            await plane.apply(1)
            (web,) = await plane.ready(1)
            code, told = await finish(plane)
            assert code == 1
            assert "nothing to finish" in told
            await restarted(plane, "server-1")
            await _refused_while_older_parts_live(plane)
            await restarted(plane, *PARTS)
            await plane.until(lambda: _all_new(plane))
            code, told = await command(plane, "finish")
            assert (code, "Nothing was changed" in told) == (0, True), told
            code, told = await finish(plane)
            assert (code, f"has format {FORMAT + 1}" in told) == (0, True), told
            (same,) = await plane.ready(1)
            assert same.status.process.id == web.status.process.id
            await plane.scale(2)
            await plane.until(lambda: _replicas(plane, 2))
            await _older_server_stays_out(plane)

    asyncio.run(story())


async def _refused_while_older_parts_live(plane: WholePlane) -> None:
    async def heard() -> bool:
        _, told = await command(plane, "status")
        return NEXT_VERSION in told

    await plane.until(heard)
    code, told = await command(plane, "status")
    assert code == 1
    for name in ("scheduler", "controller", "agent"):
        assert any(line.startswith(name) and "older" in line for line in told.splitlines()), told
    code, told = await finish(plane)
    assert code == 1
    assert f"agent n1 ({__version__})" in told
    assert f"The plane has format {FORMAT};" in told
    # The server refuses it, too, whatever asks for it.
    async with Transport(plane.access) as to:
        with pytest.raises(Conflict, match="agent n1"):
            await raise_format(to, RaiseRequest(FORMAT + 1, "in a hurry"))


async def _all_new(plane: WholePlane) -> bool:
    code, _ = await command(plane, "status")
    return code == 0


async def _replicas(plane: WholePlane, count: int) -> bool:
    return len(await plane.replicas()) == count


async def _older_server_stays_out(plane: WholePlane) -> None:
    server = plane.parts["server-1"]
    # It is not started again when it ends: no process supervises it.
    older = Part(plane.folder, "server-of-before", *server.arguments)
    server.kill()
    older.spawn()

    async def ended() -> bool:
        return not older.is_alive

    await plane.until(ended)
    assert f"the plane has format {FORMAT + 1} and this version of holdfast" in older.log
