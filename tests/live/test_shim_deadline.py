"""The shim holds the deadline of real work, with or without an agent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import (
    DEADLINE_PASSED,
    Attempt,
    Exited,
    Extend,
    Launched,
    NotLaunched,
)
from holdfast.host.process.clock import boot_id, monotonic_ms
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.shim_records import PROTOCOL
from tests.patience import PATIENCE_S
from tests.shim_script import Script, read, scripts, slowed
from tests.workshop import command, control, eventually, marked, new_uid, play, workshop
from tests.yardstick import Timer

ROOT = Path(__file__).parents[2]
_MANNERS = {
    "obeys": "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done",
    "ignores": "trap '' TERM; echo ready; while :; do sleep 1; done",
}


def _work(script: Script) -> str:
    if script.exits_ms is not None:
        first = "trap '' TERM; " if script.work == "outlasts" else ""
        return f"{first}echo ready; sleep {script.exits_ms / 1000}; exit {script.code}"
    return _MANNERS[script.work]


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_the_program_ends_as_the_script_says(path: Path, tmp_path: Path) -> None:
    """A machine that is too busy to start the work before its deadline gets more time.
    [INV2, SC6]"""

    async def story(script: Script) -> bool:
        ending = script.ending
        assert ending is not None
        async with workshop(tmp_path / "replicas") as one:
            began_ms = monotonic_ms()
            timer = Timer()
            attempt = one.launch(
                command(_work(script)), within_ms=script.deadline_ms, grace_ms=script.grace_ms
            )
            told = await one.heard((Launched, NotLaunched), attempt)
            if isinstance(told, NotLaunched):
                assert told.process.reason == DEADLINE_PASSED
                assert not (one.path(attempt) / "stdout").exists()
                return ending.reason == DEADLINE_PASSED
            await one.prints(attempt)
            answers = []
            reader, writer = await control(one.path(attempt))
            for step in script.steps:
                await asyncio.sleep(max(0, began_ms + step.at_ms - monotonic_ms()) / 1000)
                boot = boot_id() if step.verb == "extend" else "another-boot"
                words = {
                    "stop": f"stop {step.number}",
                    "extend": f"extend {boot} {began_ms + step.number}",
                    "foreign": f"extend {boot} {began_ms + step.number}",
                }
                writer.write(words[step.verb].encode() + b"\n")
                answer = (await reader.readline()).decode().split()
                answers.append(" ".join(answer if answer[0] == "refused" else answer[:1]))
            writer.close()
            told = await one.heard(Exited, attempt)
            took_ms = monotonic_ms() - began_ms
            found = one.attempts.look(attempt).exit
            assert found is not None
            assert answers == [step.answer for step in script.steps]
            assert (found.reason, found.code, found.signal, bool(found.is_killed)) == (
                ending.reason,
                ending.code,
                ending.signal,
                ending.is_killed,
            )
            assert ending.at_ms <= took_ms + 1
            assert took_ms < ending.at_ms + timer.room_ms()
            assert not marked(attempt)
            return True

    async def stories() -> None:
        for factor in (1, 4, 16):
            if await story(slowed(read(path), factor)):
                return
        pytest.fail("the work never started before its deadline")

    play(stories())


# Two years: what a clock shows then does not fit into 32 bits of milliseconds, nor of seconds/100.
LONG_UP = ("unshare", "--time", "--boottime", "63072000", "--fork", "--kill-child=KILL", "--")


@pytest.mark.parametrize(
    "blow, wrap",
    [(signal.SIGKILL, ()), (signal.SIGSTOP, ()), (signal.SIGKILL, LONG_UP)],
    ids=["killed", "paused", "long-up"],
)
def test_the_deadline_is_held_when_the_agent_is_not_there(
    blow: signal.Signals, wrap: tuple[str, ...], tmp_path: Path
) -> None:
    """Neither a dead nor a paused agent can fence; the work ends by deadline + grace all the same,
    also on a computer that has run for years, which a time namespace pretends.

    [INV2, SC6]
    """
    if wrap and subprocess.run([*wrap, "true"], capture_output=True).returncode:
        pytest.skip("no time namespace can be made here")
    folder, attempt = tmp_path / "replicas", Attempt(new_uid(), 0)
    script = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 60' &) ; sleep 60"
    began_ms = monotonic_ms()
    timer = Timer()
    within_ms, grace_ms = 1_500, 300
    agent = subprocess.Popen(
        [
            *wrap,
            sys.executable,
            "-m",
            "tests.live.shim_agent",
            str(folder),
            attempt.uid,
            "1500",
            "300",
            script,
        ],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    try:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"launched\n"
        attempts = AttemptFolders(folder)

        async def story() -> None:
            # The work, and what it started in a session of its own.
            await eventually(lambda: len(marked(attempt)) >= 2)
            agent.send_signal(blow)
            await eventually(lambda: not attempts.look(attempt).is_alive)

        play(story())
        found = attempts.look(attempt).exit
        assert found is not None
        assert (found.reason, found.signal, found.is_killed) == (DEADLINE_PASSED, 9, 1)
        assert not marked(attempt)
        # It was launched after we began to count, so its deadline is later by the start's time.
        assert monotonic_ms() - began_ms >= within_ms + grace_ms
        assert found.ended_ms - found.started_ms < within_ms + grace_ms + timer.room_ms()
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()


def test_an_extension_reaches_all_work_that_has_a_deadline(tmp_path: Path) -> None:
    """Also work that is just being launched; work without one gets none. [INV2]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            first = await one.launched(command("sleep 60"), within_ms=1_000)
            keep = await one.launched(command("sleep 60"), within_ms=None)
            second = one.launch(command("sleep 60"), within_ms=1_000)
            until = monotonic_ms() + 60_000
            one.do(Extend(until))
            await one.heard(Launched, second)
            for attempt, expected in ((first, until), (second, until), (keep, -1)):
                reader, writer = await control(one.path(attempt))
                writer.write(b"status\n")
                words = (await reader.readline()).decode().split()
                assert words[:2] == ["status", "running"]
                assert words[3:] == [str(expected), "-1", str(PROTOCOL)]
                writer.close()

    play(story())


@pytest.mark.parametrize(
    "request_line",
    [b"extend\n", b"extend x y\n", b"stop\n", b"stop -1\n", b"stop 1e3\n", b"\n", b"x" * 300],
)
def test_a_shim_hangs_up_on_nonsense_and_goes_on(request_line: bytes, tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("sleep 60"))
            reader, writer = await control(one.path(attempt))
            writer.write(request_line)
            with suppress(ConnectionResetError):
                # What it did not read of an endless line is thrown back.
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
            reader, writer = await control(one.path(attempt))
            writer.write(b"status\n")
            assert (await reader.readline()).startswith(b"status running ")
            writer.close()

    play(story())


def test_a_request_of_a_later_version_is_answered_and_the_line_stays(tmp_path: Path) -> None:
    """A newer agent asks for more, in words of its own or behind ours."""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("sleep 60"))
            reader, writer = await control(one.path(attempt))
            until_ms = monotonic_ms() + 90_000
            for asked, answer in (
                ("mood", "unknown"),
                (f"extend {boot_id()} {until_ms} gladly", f"extended {until_ms}"),
                ("status whole", "status running "),
            ):
                writer.write(asked.encode() + b"\n")
                said = (await asyncio.wait_for(reader.readline(), PATIENCE_S)).decode()
                assert said.startswith(answer), (asked, said)
            writer.close()

    play(story())


def test_many_on_the_line_keep_no_client_out(tmp_path: Path) -> None:
    """A paused agent holds its line; others are served, and the first as well when it is back."""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("sleep 60"))
            lines = [await control(one.path(attempt)) for _ in range(20)]
            reader, writer = lines[-1]
            writer.write(b"stop 200\n")
            assert (await reader.readline()).startswith(b"stopping ")
            assert (await one.heard(Exited, attempt)).process.reason == "Stopped"
            for _, writer in lines:
                writer.close()

    play(story())
