"""Nothing that work started outlives it, whatever it does, and whichever process dies."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Attempt, Exited, Halt, Launched
from holdfast.host.runtime.shim_binary import ISOLATIONS, find
from holdfast.model.errors import Unavailable
from tests.workshop import Workshop, command, eventually, is_running, marked, play, workshop

# Ignores SIGTERM, and starts a grandchild that ignores it, too, in a session of its own, whose
# parents are gone: nothing but a namespace or a subreaper finds it.
# A daemon creates the file once it runs, however slow the machine is.
ONCE_THERE = "until test -e there; do sleep 0.1; done;"
STUBBORN = (
    "trap '' TERM; "
    '(setsid sh -c \'trap "" TERM HUP; echo grandchild; touch there; '
    "while :; do sleep 1; done' &); "
    f"{ONCE_THERE} echo ready; while :; do sleep 1; done"
)


@pytest.fixture(params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        find(name)
    except Unavailable as problem:
        pytest.skip(str(problem))
    return name


async def _stubborn(one: Workshop) -> Attempt:
    attempt = await one.launched(command(STUBBORN))
    await one.prints(attempt, 2)
    assert len(marked(attempt)) >= 2
    return attempt


def test_a_tree_that_ignores_the_request_is_killed_after_the_grace(
    isolation: str, tmp_path: Path
) -> None:
    """[INV2]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            attempt = await _stubborn(one)
            one.do(Halt(attempt, 300))
            told = await one.heard(Exited, attempt)
            assert not marked(attempt)
            assert (told.process.reason, told.process.signal) == ("Stopped", 9)

    play(story())


def test_what_the_work_leaves_behind_is_ended_with_it(isolation: str, tmp_path: Path) -> None:
    """The first process ends by itself; a daemon that it left does not run on. [INV2]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            script = f"(setsid sh -c 'echo left; touch there; sleep 60' &); {ONCE_THERE} exit 5"
            attempt = await one.launched(command(script), grace_ms=200)
            told = await one.heard(Exited, attempt)
            assert one.output(attempt) == "left\n"
            assert not marked(attempt)
            assert (told.process.reason, told.process.exit_code) == ("Exited", 5)

    play(story())


def test_the_death_of_a_shim_ends_its_tree_and_is_reported(isolation: str, tmp_path: Path) -> None:
    """[INV2, H1]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            attempt = await _stubborn(one)
            state = one.attempts.look(attempt).state
            assert state is not None
            assert state.isolation == isolation
            os.kill(state.shim.pid, signal.SIGKILL)
            told = await one.heard(Exited, attempt)
            assert not marked(attempt)
            assert told.process.reason == "ShimDied"
            assert told.process.id.endswith(f"/{state.work.pid}/{state.work.start}")
            # A later look finds the same.
            (item,) = (await one.inventory()).items
            assert not item.is_running
            assert item.process.reason == "ShimDied"

    play(story())


def test_a_fork_bomb_dies(isolation: str, tmp_path: Path) -> None:
    """[INV2]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            # It doubles seven times, and each goes on starting others.
            grow = "f() { [ $1 -gt 6 ] || { f $(($1+1)) & f $(($1+1)) & }; sleep 0.1; f $1; }"
            attempt = await one.launched(command(f"trap '' TERM; {grow}; echo ready; f 0"))
            await one.prints(attempt)
            await asyncio.sleep(0.3)
            one.do(Halt(attempt, 0))
            await one.heard(Exited, attempt)
            assert not marked(attempt)

    play(story())


def test_a_paused_shim_does_not_save_its_work_from_a_halt(tmp_path: Path) -> None:
    """It does not answer, so the host ends it and the tree with it. [INV2]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await _stubborn(one)
            state = one.attempts.look(attempt).state
            assert state is not None
            os.kill(state.shim.pid, signal.SIGSTOP)
            one.do(Halt(attempt, 100))
            told = await one.heard(Exited, attempt)
            assert told.process.reason == "ShimDied"
            assert not marked(attempt)

    play(story())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_shim_that_gets_a_signal_stops_its_work_first(
    number: signal.Signals, isolation: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            # It starts nothing after it is ready: what a shell has forked and is not yet another
            # program would say farewell as well.
            script = "trap 'echo bye; exit 4' TERM; sleep 60 & sleep 0.1; echo ready; wait"
            attempt = await one.launched(command(script), grace_ms=5_000)
            await one.prints(attempt)
            state = one.attempts.look(attempt).state
            assert state is not None
            os.kill(state.shim.pid, number)
            told = await one.heard(Exited, attempt)
            assert (told.process.reason, told.process.exit_code) == ("Stopped", 4)
            # A shell may hear it twice, once with its group and once as itself.
            assert one.output(attempt).splitlines()[:2] == ["ready", "bye"]

    play(story())


def test_work_that_is_paused_gets_the_stop_signal(isolation: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            attempt = await one.launched(
                command("trap 'exit 6' TERM; echo; kill -STOP $$; sleep 9")
            )
            await one.prints(attempt)
            one.do(Halt(attempt, 5_000))
            process = (await one.heard(Exited, attempt)).process
            assert (process.reason, process.exit_code) == ("Stopped", 6)

    play(story())


def test_work_cannot_kill_its_shim_from_inside_its_namespace(tmp_path: Path) -> None:
    """[INV2]"""
    if find().isolation == "session":
        pytest.skip("no PID namespace can be had here")

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("kill -9 1; kill -STOP 1; echo tried; sleep 60"))
            await one.prints(attempt)
            state = one.attempts.look(attempt).state
            assert state is not None
            assert is_running(state.shim.pid)
            one.do(Halt(attempt, 5_000))
            assert (await one.heard(Exited, attempt)).process.reason == "Stopped"

    play(story())


def test_work_in_a_namespace_sees_its_own_proc(tmp_path: Path) -> None:
    if not find().has_own_proc:
        pytest.skip("no /proc of its own can be had here")

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("ls /proc | grep -c '^[0-9]*$'; sleep 60"))
            (count,) = await one.prints(attempt)
            assert int(count) <= 6
            told = await one.heard(Launched, attempt)
            assert told.process.limits["proc"] == "own"

    play(story())


def test_a_foreign_signal_is_reported(isolation: str, tmp_path: Path) -> None:
    """[H1]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            attempt = await one.launched(command("kill -SEGV $$"))
            process = (await one.heard(Exited, attempt)).process
            assert (process.reason, process.signal, process.exit_code) == ("Killed", 11, None)

    play(story())


def test_two_hundred_pieces_of_work_leave_nothing_behind(tmp_path: Path) -> None:
    """Neither descriptors nor zombies nor processes."""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            warm = await one.launched(command("exit 0"))
            await one.heard(Exited, warm)
            before = len(os.listdir("/proc/self/fd"))
            attempts = [one.launch(command("sleep 60")) for _ in range(200)]
            for attempt in attempts:
                await one.heard((Exited, Launched), attempt)
            shims = [one.attempts.look(attempt).state for attempt in attempts]
            for attempt in attempts:
                one.do(Halt(attempt, 1_000))
            for attempt in attempts:
                await one.heard(Exited, attempt)
            await eventually(
                lambda: not any(Path(f"/proc/{s.shim.pid}").exists() for s in shims if s)
            )
            assert len([s for s in shims if s]) == 200
            assert len(os.listdir("/proc/self/fd")) <= before + 1

    play(story())
