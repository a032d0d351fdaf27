"""Agents adopt work whose shims are of the version before theirs, or of the next one.

Both are made from the source of our own shim and compiled, as the shim itself is.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Exited, Extend, Halt
from holdfast.host.process.clock import monotonic_ms
from holdfast.host.runtime import shim_binary
from holdfast.host.runtime.shim_build import SOURCE, build
from holdfast.host.runtime.shim_records import PROTOCOL
from tests.patience import PATIENCE_S
from tests.workshop import command, control, is_running, pid_of, play, workshop

Change = tuple[str, str]
# Before protocols were named: nothing says which it is, and what is not known ends the line.
OLDER: Sequence[Change] = (
    ('"protocol %d\\nend\\n",', '"end\\n",'),
    ("isolation, started_wall_ms, PROTOCOL);", "isolation, started_wall_ms);"),
    ('"status %s %d/%llu %lld %lld %d\\n"', '"status %s %d/%llu %lld %lld\\n"'),
    ("deadline_ms, kill_ms, PROTOCOL);", "deadline_ms, kill_ms);"),
    ('return reply(fd, "unknown\\n");', "return false;"),
)
# One that says more than we know, in each record and each answer, and of its own accord.
NEWER: Sequence[Change] = (
    (f"PROTOCOL = {PROTOCOL},", f"PROTOCOL = {PROTOCOL + 1},"),
    ('"protocol %d\\nend\\n",', '"protocol %d\\nmood fine\\nend\\n",'),
    ('"status %s %d/%llu %lld %lld %d\\n"', '"mood fine\\nstatus %s %d/%llu %lld %lld %d fine\\n"'),
    ('"extended %lld\\n"', '"extended %lld gladly\\n"'),
    ('"stopping %lld\\n"', '"stopping %lld sadly\\n"'),
    ('"exited\\n"', '"mood over\\nexited 0\\n"'),
    ("error %d\\nstep %s\\nend\\n", "error %d\\nstep %s\\nmood over\\nend\\n"),
)


def compiled(folder: Path, changes: Sequence[Change]) -> Path:
    """The program of another version."""
    for part in SOURCE.parent.glob("shim*.[ch]"):
        shutil.copy(part, folder)
    source = folder / SOURCE.name
    text = source.read_text()
    for ours, theirs in changes:
        assert ours in text, ours
        text = text.replace(ours, theirs)
    source.write_text(text)
    build(folder / "shim-of-another-version", source)
    return folder / "shim-of-another-version"


async def _extended(folder: Path, until_ms: int) -> None:
    """Until the shim says that its work may run so long."""
    reader, writer = await control(folder)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            writer.write(b"status\n")
            words = (await reader.readline()).decode().split()
            if words[0] == "status" and words[3] == str(until_ms):
                break
            await asyncio.sleep(0.01)
    writer.close()


@pytest.mark.parametrize("changes, protocol", [(OLDER, 1), (NEWER, PROTOCOL + 1)])
def test_work_of_a_neighbouring_version_is_adopted_extended_and_stopped(
    changes: Sequence[Change], protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what has ended meanwhile is known as it ended. [H1, C7.4]"""
    program = compiled(tmp_path, changes)
    monkeypatch.setattr(shim_binary, "program_path", lambda: program)

    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder, leaves_work=True) as other:
            runs = await other.launched(command("sleep 60"), within_ms=30_000)
            ended = await other.launched(command("exit 3"))
            await other.heard(Exited, ended)
            process = other.told[0].process
        monkeypatch.undo()
        async with workshop(folder) as ours:
            items = {item.attempt: item for item in (await ours.inventory()).items}
            assert items[runs].is_running
            assert items[runs].process == process
            assert items[ended].process.exit_code == 3
            state = ours.attempts.look(runs).state
            assert state is not None
            assert (state.protocol, state.is_neighbour) == (protocol, True)
            until_ms = monotonic_ms() + 90_000
            ours.do(Extend(until_ms))
            await _extended(ours.path(runs), until_ms)
            ours.do(Halt(runs, 2_000))
            told = await ours.heard(Exited, runs)
            assert (told.process.reason, told.process.id) == ("Stopped", process.id)
            assert not is_running(pid_of(process.id))

    play(story())
