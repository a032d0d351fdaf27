"""The limits of real work: what the machine enforces is enforced, and what it does not is said."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from holdfast.agent.runtime_protocol import Attempt, Clear, Exited, Launched
from holdfast.host.runtime import devices
from holdfast.host.runtime.cgroups import detect
from holdfast.host.runtime.cgroups import groups as cgroups
from holdfast.host.runtime.cgroups.groups import Cgroups, mounted_hierarchies
from holdfast.host.runtime.cgroups.limits import CgroupLimits
from holdfast.host.runtime.logs import ended as ended_logs
from holdfast.host.runtime.starting import RuntimeOptions
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.node import Device
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.template import Resources, Template
from tests.scale import scaled
from tests.workshop import (
    NODE,
    Workshop,
    command,
    eventually,
    halt,
    is_running,
    marked,
    new_uid,
    pid_of,
    play,
    workshop,
)

MEMORY = "import time\nkept = []\nwhile True:\n    kept.append(bytearray(1 << 20))\n"
NOBODY = 65534
HOG = Template(command=("/usr/bin/env", "python3", "-c", MEMORY), limits=Resources(memory="48Mi"))


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Cgroups]:
    """The groups of the test's own agent; skipped where the machine has none to give."""
    found = detect.find(NODE, tmp_path / "replicas")
    lacking = {"cpu", "memory", "pids"} - set(found.controllers)
    if lacking:
        found.retire()
        pytest.skip(f"no control groups for {', '.join(sorted(lacking))} can be made here")
    yield found
    found.retire()


def _files(groups: Cgroups, attempt: Attempt, file: str) -> list[str]:
    """A file of an attempt's groups, wherever a hierarchy has it."""
    paths = (it.root / groups.path(attempt)[1:] / file for it in mounted_hierarchies())
    return [path.read_text().strip() for path in paths if path.exists()]


def _left(groups: Cgroups) -> list[Path]:
    """All groups that are left of this agent's work."""
    folders = (it.root / groups.relative for it in mounted_hierarchies())
    return [path for it in folders if it.exists() for path in it.iterdir() if path.is_dir()]


def test_work_that_takes_more_memory_than_its_limit_is_killed_and_that_is_said(
    groups: Cgroups, tmp_path: Path
) -> None:
    """[H1, A8]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = one.launch(HOG)
            process = (await one.heard(Exited, attempt)).process
            assert process.oom_killed
            assert process.signal == signal.SIGKILL
            launched = await one.heard(Launched, attempt)
            assert launched.process.limits["memory"].startswith("cgroup-v")
            assert "48Mi" in launched.process.limits["memory"]
            assert not _left(groups)

    play(story())


def test_an_end_without_want_of_memory_is_not_called_one(groups: Cgroups, tmp_path: Path) -> None:
    """Neither a kill by another process nor a failure of its own. [H1]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            killed = one.launch(command("kill -9 $$"))
            failed = one.launch(command("exit 3"))
            assert not (await one.heard(Exited, killed)).process.oom_killed
            ended = (await one.heard(Exited, failed)).process
            assert (ended.oom_killed, ended.exit_code) == (False, 3)

    play(story())


def test_want_of_memory_while_no_agent_was_there_is_found_by_every_later_one(
    groups: Cgroups, tmp_path: Path
) -> None:
    """The group is gone after the first of them, the record is not. [H1]"""

    async def story() -> None:
        folder = tmp_path / "replicas"
        go = tmp_path / "go"
        script = f"while [ ! -e {go} ]; do sleep 0.05; done\nexec python3 -c '{MEMORY}'"
        template = msgspec.structs.replace(HOG, command=("/bin/sh", "-c", script))
        async with workshop(folder, leaves_work=True) as one:
            attempt = await one.launched(template)
        go.touch()
        await eventually(lambda: not one.attempts.look(attempt).is_alive)
        for _ in range(2):
            async with workshop(folder) as later:
                (item,) = (await later.inventory()).items
                assert item.attempt == attempt
                assert not item.is_running
                assert item.process.oom_killed
                assert not _left(groups)

    play(story())


def test_the_processors_are_limited_as_the_template_says(groups: Cgroups, tmp_path: Path) -> None:
    """Seen in the kernel's own files; memory is limited to what is set aside. [D6]"""
    template = msgspec.structs.replace(
        command("sleep 60"),
        resources=Resources(cpu="250m", memory="64Mi"),
        limits=Resources(cpu="500m"),
    )

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(template)
            quota = _files(groups, attempt, "cpu.cfs_quota_us") + _files(groups, attempt, "cpu.max")
            assert quota in (["50000"], ["50000 100000"])
            memory = _files(groups, attempt, "memory.limit_in_bytes")
            assert memory + _files(groups, attempt, "memory.max") == [str(64 << 20)]
            limits = (await one.heard(Launched, attempt)).process.limits
            assert limits["cpu"].endswith(" 500m")
            assert limits["share"].endswith(" 250m")
            assert "64Mi" in limits["memory"]
            # The work is in there, and its shim is not.
            state = one.attempts.look(attempt).state
            assert state is not None
            for text in _files(groups, attempt, "cgroup.procs"):
                assert str(state.work.pid) in text.split()
                assert str(state.shim.pid) not in text.split()
            one.do(halt(attempt))
            await one.heard(Exited, attempt)
            assert not _left(groups)

    play(story())


def test_a_bomb_of_processes_is_contained(groups: Cgroups, tmp_path: Path) -> None:
    """It gets no more than it may have, others go on, and all of it ends."""
    bomb = (
        "import os, time\n"
        "while True:\n"
        "    try:\n"
        "        os.fork()\n"
        "    except OSError:\n"
        "        time.sleep(0.05)\n"
    )
    template = Template(command=("/usr/bin/env", "python3", "-c", bomb))

    async def story() -> None:
        async with workshop(tmp_path / "replicas", options=RuntimeOptions(pids_max=40)) as one:
            attempt = await one.launched(template)
            await eventually(lambda: "40" in _files(groups, attempt, "pids.current"))
            assert len(marked(attempt)) <= 40
            calm = await one.launched(command("true; exit 0"))
            assert (await one.heard(Exited, calm)).process.exit_code == 0
            one.do(halt(attempt, 100))
            await one.heard(Exited, attempt)
            assert not marked(attempt)
            assert not _left(groups)

    play(story())


# A daemon that left its parents and threw its variables away: only its group still knows it.
DAEMON = (
    "python3 -c '\n"
    "import os, time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    'os.execve("/bin/sleep", ["sleep", "611"], {})\n'
    "'; echo ready; sleep 60"
)


@pytest.mark.parametrize("isolation", ["pid-namespace", "session"])
def test_a_daemon_without_a_trace_ends_with_the_death_of_its_shim(
    isolation: str, groups: Cgroups, tmp_path: Path
) -> None:
    """[INV2]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            attempt = await one.launched(command(DAEMON))
            await one.prints(attempt)
            # The shell goes on before the daemon has become what it is to be.
            await eventually(lambda: len(_daemons(groups, attempt)) == 1)
            (daemon,) = _daemons(groups, attempt)
            assert daemon not in marked(attempt)
            state = one.attempts.look(attempt).state
            assert state is not None
            os.kill(state.shim.pid, signal.SIGKILL)
            await one.heard(Exited, attempt)
            assert not is_running(daemon)
            assert not _left(groups)

    play(story())


def _daemons(groups: Cgroups, attempt: Attempt) -> list[int]:
    procs = {int(it) for text in _files(groups, attempt, "cgroup.procs") for it in text.split()}
    return [pid for pid in sorted(procs) if _arguments(pid) == b"sleep\x00611\x00"]


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_groups_of_an_attempt_without_a_holder_are_swept(groups: Cgroups, tmp_path: Path) -> None:
    """An agent died between making them and starting anything."""
    lost = Attempt(new_uid(), 3)
    groups.make(lost, CgroupLimits())

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            running = await one.launched(command("sleep 60"))
            await one.inventory()
            assert {path.name for path in _left(groups)} == {cgroups.name(running)}
            assert is_running(pid_of((await one.heard(Launched, running)).process.id))

    play(story())


def test_work_gains_no_privileges(tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("grep NoNewPrivs /proc/self/status"))
            (line,) = await one.prints(attempt)
            assert line.split() == ["NoNewPrivs:", "1"]

    play(story())


def test_work_finds_its_devices_and_cannot_open_those_of_others(
    groups: Cgroups, tmp_path: Path
) -> None:
    """By the variables of the work, and by the kernel where it keeps devices apart."""
    local = (
        devices.LocalDevice(Device(id="g0", device_class="gpu"), "/dev/null"),
        devices.LocalDevice(Device(id="g1", device_class="gpu"), "/dev/full"),
    )
    owned = (DeviceShare("g0", "gpu", 1000),)
    script = (
        'echo "$HOLDFAST_DEVICES $CUDA_VISIBLE_DEVICES"; cat /dev/null && echo mine; '
        "head -c1 /dev/full >/dev/null 2>&1 && echo theirs; echo done"
    )

    async def story() -> None:
        async with workshop(tmp_path / "replicas", options=RuntimeOptions(devices=local)) as one:
            attempt = one.launch(command(script), devices=owned)
            told = await one.heard(Launched, attempt)
            await one.heard(Exited, attempt)
            lines = one.output(attempt).splitlines()
            assert lines[:2] == ["g0 0", "mine"]
            is_kept_apart = told.process.limits["devices"].startswith("cgroup-v1")
            assert is_kept_apart == ("devices" in groups.controllers)
            assert ("theirs" in lines) != is_kept_apart

    play(story())


def test_an_agent_without_control_groups_says_what_it_does_not_enforce() -> None:
    """An ordinary user may make none; the work runs all the same."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    # Other users may not pass through pytest's own directory.
    with TemporaryDirectory(prefix="holdfast-nobody-") as made:
        os.chown(made, NOBODY, NOBODY)
        limits = _of_nobody(Path(made))
    for resource in ("cpu", "memory", "pids"):
        assert limits[resource].startswith("none: control groups cannot be made here"), limits


def _of_nobody(folder: Path) -> dict[str, str]:
    """The limits that work of an agent without any rights really has."""
    told = folder / "told"
    pid = os.fork()
    if pid == 0:
        _as_nobody(folder / "replicas", told)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, told.read_text()
    return dict(line.split("=", 1) for line in told.read_text().splitlines())


def _as_nobody(folder: Path, told: Path) -> None:
    """The rest of the life of a child: run some work and write down what its limits are."""
    code, limits = 1, dict[str, str]()
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        # The compiled shim lies in root's cache.
        os.environ["XDG_CACHE_HOME"] = str(told.parent)

        async def story() -> None:
            async with workshop(folder) as one:
                template = msgspec.structs.replace(
                    command("sleep 60"), limits=Resources(cpu=1, memory="64Mi")
                )
                attempt = await one.launched(template)
                process = (await one.heard(Launched, attempt)).process
                limits.update(process.limits)
                one.do(halt(attempt, 100))
                await one.heard(Exited, attempt)

        asyncio.run(story())
        told.write_text("".join(f"{k}={v}\n" for k, v in limits.items()))
        code = 0
    except (OSError, HoldfastError) as error:
        told.write_text(repr(error))
    finally:
        os._exit(code)


def test_many_short_jobs_leave_nothing_behind(groups: Cgroups, tmp_path: Path) -> None:
    """No groups, no descriptors, no directories, no processes; and the logs of the last."""
    jobs, at_once = scaled(200, 1_000), 20

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            await _run_jobs(one, at_once)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(jobs // at_once):
                await _run_jobs(one, at_once)
            assert len(os.listdir("/proc/self/fd")) <= before
            assert not _left(groups)
            assert os.listdir(tmp_path / "replicas") == [ended_logs.FOLDER]
            kept = os.listdir(tmp_path / "replicas" / ended_logs.FOLDER)
            assert len(kept) == ended_logs.KEPT_MAX

    play(story())


async def _run_jobs(one: Workshop, count: int) -> None:
    attempts = [one.launch(command("exit 0")) for _ in range(count)]
    for attempt in attempts:
        assert (await one.heard(Exited, attempt)).process.exit_code == 0
        one.do(Clear(attempt.uid))
    one.told.clear()
    await one.inventory()
