"""An agent's restart stops no work: the next one finds it, by identity and never by pid alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import (
    DEADLINE_PASSED,
    Attempt,
    Clear,
    Exited,
    Extend,
    Halt,
    Launched,
    NotLaunched,
)
from holdfast.host.process.clock import boot_id, monotonic_ms
from holdfast.host.runtime.cgroups import detect
from holdfast.host.runtime.survivors import start_of
from holdfast.model.kinds.template import Port, Template
from tests.workshop import command, eventually, is_running, marked, pid_of, play, workshop


def test_the_next_agent_adopts_what_runs_and_learns_what_ended(tmp_path: Path) -> None:
    """With names, identity and addresses, and hears of its end. [H1, C7.4]"""

    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder, leaves_work=True) as first:
            template = Template(command=("sleep", "60"), ports=(Port(name="http"),))
            runs = await first.launched(template)
            ended = await first.launched(command("exit 3"))
            await first.heard(Exited, ended)
            launched = first.told[0].process
        async with workshop(folder) as second:
            items = {item.attempt: item for item in (await second.inventory()).items}
            assert items[runs].is_running
            assert items[runs].process == launched
            assert (items[runs].namespace, items[runs].name) == ("team", f"web-{runs.uid}")
            assert not items[ended].is_running
            assert items[ended].process.exit_code == 3
            assert items[ended].name == f"web-{ended.uid}"
            # What was adopted can be extended and stopped like one's own.
            second.do(Extend(monotonic_ms() + 90_000))
            second.do(Halt(runs, 2_000))
            told = await second.heard(Exited, runs)
            assert (told.process.reason, told.process.id) == ("Stopped", launched.id)
            assert not is_running(pid_of(launched.id))

    play(story())


def test_only_the_latest_attempt_that_began_is_found(tmp_path: Path) -> None:
    """An agent that died before it started the shim has left a directory and no work. [H1]"""

    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder) as one:
            for number, code in ((0, 1), (1, 2)):
                attempt = await one.launched(command(f"exit {code}"), uid="u", number=number)
                await one.heard(Exited, attempt)
            (folder / "u" / "2").mkdir()
            (folder / "not a uid").mkdir()
            (folder / "u" / "x").mkdir()
            (item,) = (await one.inventory()).items
            assert (item.attempt, item.process.exit_code) == (Attempt("u", 1), 2)
            # What never began may begin.
            attempt = await one.launched(command("exit 6"), uid="u", number=2)
            assert (await one.heard(Exited, attempt)).process.exit_code == 6

    play(story())


def test_an_attempt_is_started_once(tmp_path: Path) -> None:
    """A repeated request gets the one that runs, or how it ended: never that it does not run,
    for then a second copy might be started elsewhere. [INV2]
    """

    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder, leaves_work=True) as first:
            attempt = await first.launched(command("echo once; sleep 60"))
            process = first.told[0].process
            over = await first.launched(command("exit 3"))
            await first.heard(Exited, over)
            never = first.launch(command("exit 3"), within_ms=-1)
            await first.heard(NotLaunched, never)
        async with workshop(folder) as second:
            for again in (attempt, over, never):
                second.launch(command("echo twice; sleep 60"), uid=again.uid)
            assert (await second.heard(Launched, attempt)).process == process
            assert await second.prints(attempt) == ["once"]
            assert (await second.heard(Exited, over)).process.exit_code == 3
            assert (await second.heard(NotLaunched, never)).process.reason == DEADLINE_PASSED
            second.do(Halt(attempt, 2_000))
            assert (await second.heard(Exited, attempt)).process.id == process.id
            assert not marked(attempt)

    play(story())


@pytest.mark.parametrize("isolation", [None, "session"])
@pytest.mark.parametrize("has_groups", [True, False])
def test_work_whose_directory_is_gone_is_ended_before_anything_is_said_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str | None, has_groups: bool
) -> None:
    """No directory proves that nothing was started: a second copy would run beside it. The work of
    another agent on the same machine is left alone. [INV2, C6.4]"""
    if not has_groups:
        monkeypatch.setattr(detect, "mounted_hierarchies", lambda _proc: [])

    async def story() -> None:
        folder, beside = tmp_path / "replicas", tmp_path / "others"
        async with workshop(beside, isolation) as other:
            theirs = await other.launched(command("sleep 60"), within_ms=None)
            async with workshop(folder, isolation, leaves_work=True) as first:
                lost = await first.launched(command("sleep 60 & sleep 60"), within_ms=None)
                kept = await first.launched(command("sleep 60"), within_ms=None)
            assert marked(lost)
            shutil.rmtree(folder / lost.uid)
            async with workshop(folder, isolation) as second:
                (item,) = (await second.inventory()).items
                assert (item.attempt, item.is_running) == (kept, True)
                assert not marked(lost)
                assert marked(theirs)
                # What was ended may be started again; the count of attempts was lost with it.
                again = await second.launched(command("sleep 60"), uid=lost.uid)
                assert again == lost

    play(story())


def test_work_that_ends_after_its_directory_is_gone_is_said_to_have_run(tmp_path: Path) -> None:
    """Also what it left running is ended first. [INV2]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", "session") as one:
            attempt = await one.launched(command("setsid sleep 60 & sleep 60"), within_ms=None)
            state = one.attempts.look(attempt).state
            assert state is not None
            shutil.rmtree(one.folder / attempt.uid)
            os.kill(state.shim.pid, signal.SIGKILL)
            ended = await one.heard(Exited, attempt)
            assert ended.process.reason == "ShimDied"
            assert not marked(attempt)

    play(story())


def test_a_reused_pid_is_neither_adopted_nor_killed(tmp_path: Path) -> None:
    """The record names a pid that by now another process has, and a shim that is gone. [INV2]"""
    innocent = subprocess.Popen(["sleep", "60"])
    try:

        async def story() -> None:
            folder = tmp_path / "replicas"
            async with workshop(folder, leaves_work=True) as first:
                attempt = await first.launched(command("sleep 60"))
                state = first.attempts.look(attempt).state
                assert state is not None
            os.kill(state.shim.pid, signal.SIGKILL)
            await eventually(lambda: not is_running(state.shim.pid))
            record = first.path(attempt) / "state"
            lines = record.read_text().splitlines()
            # An earlier process of this pid started earlier; a tick is 10 ms, and tests are quick.
            earlier = (start_of(innocent.pid) or 0) - 1
            forged = [
                f"{line.split()[0]} {innocent.pid}/{earlier}"
                if line.startswith(("shim ", "work "))
                else line
                for line in lines
            ]
            record.write_text("\n".join(forged) + "\n")
            async with workshop(folder) as second:
                (item,) = (await second.inventory()).items
                assert not item.is_running
                assert item.process.reason == "ShimDied"
            assert innocent.poll() is None

        play(story())
    finally:
        innocent.kill()
        innocent.wait()


def test_a_forged_state_does_not_stand_in_for_the_shim_s_report(tmp_path: Path) -> None:
    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder, leaves_work=True) as first:
            attempt = await first.launched(command("sleep 60"))
            process = first.told[0].process
        record = first.path(attempt) / "state"
        record.write_text(record.read_text().replace("work ", "work 1"))
        async with workshop(folder) as second:
            (item,) = (await second.inventory()).items
            assert item.process.id == process.id

    play(story())


def test_an_exit_counts_only_when_the_shim_is_gone(tmp_path: Path) -> None:
    """An exit is a proof of stop; one that was written while the work runs proves nothing.

    [INV2]
    """

    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder, leaves_work=True) as first:
            done = await first.launched(command("exit 0"))
            await first.heard(Exited, done)
            runs = await first.launched(command("sleep 60"))
        shutil.copy(first.path(done) / "exit", first.path(runs) / "exit")
        async with workshop(folder) as second:
            items = {item.attempt: item for item in (await second.inventory()).items}
            assert items[runs].is_running
            assert marked(runs)

    play(story())


def test_work_of_another_boot_is_gone(tmp_path: Path) -> None:
    """The machine restarted: nothing runs, and no pid of then means anything now. [INV2, H1]"""

    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder, leaves_work=True) as first:
            attempt = await first.launched(command("sleep 60"))
            state = first.attempts.look(attempt).state
            assert state is not None
        os.kill(state.shim.pid, signal.SIGKILL)
        await eventually(lambda: not is_running(state.shim.pid))
        record = first.path(attempt) / "state"
        record.write_text(record.read_text().replace(boot_id(), "0" * 8))
        async with workshop(folder) as second:
            (item,) = (await second.inventory()).items
            assert (item.is_running, item.process.reason) == (False, "Rebooted")

    play(story())


def test_work_whose_control_socket_is_gone_is_not_left_to_itself(tmp_path: Path) -> None:
    """No process could extend or stop it any more, so it is ended, and said to be. [INV2]"""

    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder, leaves_work=True) as first:
            attempt = await first.launched(command("sleep 60"))
        (first.path(attempt) / "control").unlink()
        async with workshop(folder) as second:
            (item,) = (await second.inventory()).items
            assert item.process.reason == "ShimDied"
            assert not marked(attempt)

    play(story())


def test_work_is_adopted_with_the_deadline_that_was_granted_meanwhile(tmp_path: Path) -> None:
    """The agent was acknowledged before it had found its work again. [INV2]"""

    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder, leaves_work=True) as first:
            attempt = await first.launched(command("sleep 60"), within_ms=1_500)
            launched_ms = monotonic_ms()
        async with workshop(folder) as second:
            second.do(Extend(monotonic_ms() + 60_000))
            await second.inventory()
            await eventually(lambda: monotonic_ms() > launched_ms + 1_700)
            assert marked(attempt)

    play(story())


def test_a_halt_of_what_is_not_there_is_answered(tmp_path: Path) -> None:
    """The agent asks before it has looked, or of work that never began."""

    async def story() -> None:
        folder = tmp_path / "replicas"
        async with workshop(folder, leaves_work=True) as first:
            runs = await first.launched(command("sleep 60"))
        async with workshop(folder) as second:
            second.do(Halt(runs, 1_000))
            assert (await second.heard(Exited, runs)).process.reason == "Stopped"
            nowhere = Attempt("nowhere", 4)
            second.do(Halt(nowhere, 1_000))
            reason = (await second.heard(Exited, nowhere)).process.reason
            assert reason == "NotStarted: the node has nothing of this attempt"

    play(story())


def test_clearing_removes_everything_but_what_links_lead_to(tmp_path: Path) -> None:
    async def story() -> None:
        folder, outside = tmp_path / "replicas", tmp_path / "outside"
        outside.mkdir()
        (outside / "precious").write_text("x")
        async with workshop(folder) as one:
            script = (
                f"ln -s {outside} out; mkdir -p a/b/c; touch a/b/c/f; chmod 0 a/b; ln -s / root"
            )
            attempt = await one.launched(command(script))
            await one.heard(Exited, attempt)
            one.do(Clear(attempt.uid))
            await eventually(lambda: not (folder / attempt.uid).exists())
            assert (outside / "precious").read_text() == "x"
            assert (await one.inventory()).items == ()

    play(story())


def test_old_attempts_are_removed_and_the_last_ones_kept(tmp_path: Path) -> None:
    """A replica that restarts for ever does not fill the disk."""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            for number in range(6):
                attempt = await one.launched(command("exit 1"), uid="u", number=number)
                await one.heard(Exited, attempt)
            assert one.attempts.numbers("u") == [5, 4, 3]

    play(story())


def test_a_deep_directory_is_no_problem_for_the_control_socket(tmp_path: Path) -> None:
    """A socket's address has 107 bytes, and a directory may have thousands."""

    async def story() -> None:
        folder = tmp_path.joinpath(*["d" * 60] * 6, "replicas")
        async with workshop(folder, leaves_work=True) as first:
            attempt = await first.launched(command("sleep 60"))
        async with workshop(folder) as second:
            (item,) = (await second.inventory()).items
            assert (item.attempt, item.is_running) == (attempt, True)

    play(story())
