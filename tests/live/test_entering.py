"""A command beside real work: where it runs, what it sees, and that it never stays behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.runtime_protocol import Attempt, Exited, Halt
from holdfast.host.runtime import shim_binary
from holdfast.host.runtime.enter_namespaces import CommandEnd, RunningCommand, enter, pieces
from holdfast.model.kinds.template import EnvVar, Template
from tests.patience import PATIENCE_S
from tests.workshop import Workshop, command, eventually, is_running, play, workshop

ISOLATIONS = (shim_binary.find(None).isolation, "session")


def beside(one: Workshop, attempt: Attempt, *words: str, **wishes: bool) -> Any:
    held = one.runtime.running_attempt(attempt)
    assert held is not None
    wishes = {"has_terminal": False, "has_input": False} | wishes
    return enter(one.runtime.place, held, words, **wishes)


async def said(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None
    return b"".join([piece async for piece in pieces(stream)])


async def ran(one: Workshop, attempt: Attempt, script: str) -> tuple[bytes, bytes, CommandEnd]:
    async with beside(one, attempt, "/bin/sh", "-c", script) as it:
        output, error, end = await asyncio.gather(said(it.output), said(it.error), it.wait_end())
        return output, error, end


def groups_of(one: Workshop, attempt: Attempt) -> str:
    """The groups of the work itself."""
    held = one.runtime.running_attempt(attempt)
    assert held is not None
    assert held.state is not None
    return Path(f"/proc/{held.state.work.pid}/cgroup").read_text()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_it_runs_where_the_work_runs_with_what_the_work_has(
    tmp_path: Path, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same directory, variables, groups and processes; nothing of the agent's own."""
    monkeypatch.setenv("AGENTS_OWN", "secret")

    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            template = Template(command=("sleep", "60"), env=(EnvVar("COLOUR", "blue"),))
            attempt = await one.launched(template)
            output, error, end = await ran(one, attempt, "pwd; env; ls /proc; echo no >&2; exit 7")
            lines = output.decode().splitlines()
            assert lines[0] == str(one.path(attempt) / "work")
            assert "COLOUR=blue" in lines
            assert not any("AGENTS_OWN" in line for line in lines)
            assert (error, end) == (b"no\n", CommandEnd(7))
            if isolation != "session":
                assert str(os.getpid()) not in lines
            output, _, _ = await ran(one, attempt, "cat /proc/self/cgroup /proc/self/status")
            if isolation == "session":
                assert groups_of(one, attempt) in output.decode()
            assert b"NoNewPrivs:\t1" in output

    play(story())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("has_terminal", [False, True])
def test_it_runs_as_the_user_of_the_work_and_gains_nothing(
    tmp_path: Path, has_terminal: bool
) -> None:
    """Also what has a set-user-id bit is no more than the work is."""
    script = "id -un; cp /bin/cat mine && chmod 4755 mine; ./mine /etc/shadow 2>&1; stat -c %U ."

    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(Template(command=("sleep", "60"), user="nobody"))
            words = ("/bin/sh", "-c", script)
            async with beside(one, attempt, *words, has_terminal=has_terminal) as it:
                output = (await said(it.output)).decode().split()
            assert output[0] == output[-1] == "nobody"
            assert "denied" in output
            assert not any(word.startswith("root:") for word in output)

    play(story())


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_it_ends_with_the_work(tmp_path: Path, isolation: str) -> None:
    """Stopping a replica stops commands inside it, within the same bounds."""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            attempt = await one.launched(command("exec sleep 60"))
            async with beside(one, attempt, "sh", "-c", "trap '' TERM; echo $$; sleep 60") as it:
                assert await it.output.readline()
                one.do(Halt(attempt, 100))
                await one.heard(Exited, attempt)
                async with asyncio.timeout(PATIENCE_S):
                    end = await it.wait_end()
            assert (end.code or 0) > 128

    play(story())


def test_it_ends_with_its_caller_and_so_does_all_it_started(tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas", "session") as one:
            attempt = await one.launched(command("exec sleep 60"))
            script = "sleep 61 & setsid sleep 62 & echo $! $$; wait"
            async with beside(one, attempt, "sh", "-c", script) as it:
                pids = [int(pid) for pid in (await it.output.readline()).split()]
                assert all(is_running(pid) for pid in pids)
            await eventually(lambda: not any(is_running(pid) for pid in pids))
            assert one.runtime.running_attempt(attempt) is not None

    play(story())


def test_twenty_megabytes_go_through_it_and_back_intact(tmp_path: Path) -> None:
    """Both ways at once, each at the speed of the slower side."""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("exec sleep 60"))
            sent = os.urandom(1 << 20) * 20
            async with beside(one, attempt, "cat", has_input=True) as it:

                async def give() -> None:
                    for at in range(0, len(sent), 32_768):
                        await it.write(sent[at : at + 32_768])
                    it.close_input()

                _, got, end = await asyncio.gather(give(), said(it.output), it.wait_end())
            assert got == sent
            assert end == CommandEnd(0)

    play(story())


def test_a_terminal_is_one_with_a_size_that_changes_and_keys_that_interrupt(tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("exec sleep 60"))
            wishes = {"has_terminal": True, "has_input": True}
            async with beside(one, attempt, "/bin/sh", **wishes) as it:
                screen = Screen(it)
                it.resize(132, 43)
                await it.write(b"stty size; tty; echo $TERM\r")
                for text in (b"43 132", b"/dev/pts/", b"xterm"):
                    await screen.shows(text)
                # The key is for what runs in the foreground, so that has to say that it does; and a
                # shell forgets what was typed before it has dealt with the interrupt.
                await it.write(b"PS1='re''ady>'; sh -c 'echo now; exec cat'\r")
                await screen.shows(b"now\r\n")
                await it.write(b"\x03")
                await screen.shows(b"ready>")
                await it.write(b"exit 3\r")
                assert await it.wait_end() == CommandEnd(3)

    play(story())


class Screen:
    """What a terminal shows, from where was last looked."""

    def __init__(self, of: RunningCommand) -> None:
        assert of.output is not None
        self._output, self._text = of.output, b""

    async def shows(self, text: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while text not in self._text:
                piece = await self._output.read(4096)
                assert piece, self._text
                self._text += piece
        self._text = self._text.partition(text)[2]


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("exec sleep 60"))
            async with beside(one, attempt, "/no/such/program") as it:
                end = await it.wait_end()
            assert end.code is None
            assert end.message == "the command cannot be run: no such file or directory"

    play(story())
