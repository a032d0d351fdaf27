"""Containers are work like any other: held, stopped, adopted and proven to have ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.runtime_protocol import (
    Attempt,
    Check,
    Clear,
    Exited,
    NotLaunched,
    Probed,
    RunProbe,
)
from holdfast.host.runtime import shim_binary
from holdfast.host.runtime.cgroups import detect
from holdfast.host.runtime.cgroups.groups import mounted_hierarchies
from holdfast.host.runtime.containers import containers
from holdfast.host.runtime.logs import ended
from holdfast.host.runtime.starting import RuntimeOptions
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import (
    EnvVar,
    ExecAction,
    File,
    Port,
    Resources,
    Runtime,
    Template,
)
from tests.live.test_entering import Screen, beside, said
from tests.workshop import (
    NODE,
    Workshop,
    command,
    eventually,
    halt,
    is_running,
    marked,
    play,
    workshop,
)

BUSYBOX = shutil.which("busybox")
STUBBORN = "trap '' TERM; setsid sleep 600 & echo up; while :; do sleep 1; done"
APPLETS = ("sh", "cat", "id", "ls", "sleep", "touch", "tail", "grep", "hostname", "setsid", "echo")


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """The smallest root file system that has a shell; skipped where no container can be run."""
    if BUSYBOX is None or b"statically" not in _described(BUSYBOX):
        pytest.skip("no static busybox is installed here")
    folder = tmp_path / "replicas"
    folder.mkdir()
    groups = detect.find(NODE, folder)
    try:
        containers.check(folder, groups, shim_binary.find())
    except Unavailable as problem:
        pytest.skip(str(problem))
    finally:
        groups.retire()
    root = tmp_path / "images" / "busybox"
    (root / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    before = _all_below(root)
    yield root
    # However containers end, the image is as it was, and nothing is mounted any more.
    assert _all_below(root) == before
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not [it for it in mounted_hierarchies() if (it.root / groups.relative).exists()]


def _described(program: str) -> bytes:
    """Whether a program needs a loader, by the name of one in it."""
    return b"" if b"/ld-linux" in Path(program).read_bytes() else b"statically"


def _all_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@asynccontextmanager
async def _workshop(image: Path, *, leaves_work: bool = False) -> AsyncIterator[Workshop]:
    folder, options = image.parents[1] / "replicas", RuntimeOptions(images=(image.parent,))
    async with workshop(folder, leaves_work=leaves_work, options=options) as one:
        yield one


def _box(image: Path, script: str, **others: object) -> Template:
    template = Template(
        runtime=Runtime.CONTAINER, image=str(image), command=("/bin/sh", "-c", script)
    )
    return msgspec.structs.replace(template, **others)


async def _ended(one: Workshop, template: Template) -> tuple[Process, str]:
    attempt = one.launch(template)
    process = (await one.heard(Exited, attempt)).process
    return process, one.output(attempt)


def test_a_container_sees_its_image_its_files_and_its_variables(image: Path) -> None:
    """And of the node no more than its network. [H1]"""
    script = (
        'echo "$GREETING $PORT_WEB $HOLDFAST_TOKEN"; cat conf/a.txt; ls /; id; hostname; '
        "touch /written; ls /root /home /usr 2>&1 | grep -c 'No such'; "
        "grep -c . /proc/net/route; ls /proc | grep -c '^[0-9]'; grep NoNewPrivs /proc/self/status"
    )
    template = _box(
        image,
        script,
        env=(EnvVar("GREETING", 'say "hi" to $(PORT_WEB)\n\u00e4'),),
        files=(File("conf/a.txt", "content\n"),),
        ports=(Port("web"),),
    )

    async def story() -> None:
        async with _workshop(image) as one:
            process, text = await _ended(one, template)
            assert process.exit_code == 0, text
            lines = text.splitlines()
            port = lines[1].split()[1]
            assert lines[0] == f'say "hi" to {port}'
            assert lines[1] == f"\u00e4 {port} 7"
            assert lines[2] == "content"
            assert {"bin", "dev", "etc", "holdfast", "proc", "sys"} <= set(lines[3:])
            assert "home" not in lines
            assert "uid=0 gid=0" in lines
            assert "NoNewPrivs:\t1" in lines

    play(story())


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_of_a_container_is_reported(code: int, image: Path) -> None:
    """[H1]"""

    async def story() -> None:
        async with _workshop(image) as one:
            process, _ = await _ended(one, _box(image, f"exit {code}"))
            assert (process.exit_code, process.reason) == (code, "Exited")

    play(story())


def test_a_container_is_asked_to_stop_and_then_killed(image: Path) -> None:
    """One obeys, one does not; of neither anything is left. [H1, INV2]"""

    async def story() -> None:
        async with _workshop(image) as one:
            script = "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.1; done"
            good = await one.launched(_box(image, script))
            await one.prints(good)
            one.do(halt(good, 5_000))
            process = (await one.heard(Exited, good)).process
            assert (process.exit_code, process.reason) == (7, "Stopped")
            bad = await one.launched(_box(image, STUBBORN))
            await one.prints(bad)
            assert marked(bad)
            one.do(halt(bad, 200))
            process = (await one.heard(Exited, bad)).process
            assert process.reason == "Stopped"
            assert not marked(bad)

    play(story())


def test_a_container_past_its_deadline_is_gone_without_any_agent(image: Path) -> None:
    """[H7, INV2]"""

    async def story() -> None:
        async with _workshop(image, leaves_work=True) as one:
            attempt = await one.launched(
                _box(image, "trap '' TERM; sleep 600"), within_ms=5_000, grace_ms=200
            )
        await eventually(lambda: not one.attempts.look(attempt).is_alive)
        assert not marked(attempt)
        async with _workshop(image) as later:
            (item,) = (await later.inventory()).items
            assert (item.attempt, item.is_running) == (attempt, False)
            assert item.process.reason == "DeadlinePassed"

    play(story())


def test_a_container_is_adopted_by_the_next_agent(image: Path) -> None:
    """[H2]"""

    async def story() -> None:
        async with _workshop(image, leaves_work=True) as one:
            script = "trap 'exit 5' TERM; echo up; while :; do sleep 0.1; done"
            attempt = await one.launched(_box(image, script, limits=Resources(memory="64Mi")))
            await one.prints(attempt)
        async with _workshop(image) as later:
            (item,) = (await later.inventory()).items
            assert (item.attempt, item.is_running) == (attempt, True)
            assert "64Mi" in item.process.limits["memory"]
            later.do(halt(attempt, 5_000))
            assert (await later.heard(Exited, attempt)).process.exit_code == 5
            later.do(Clear(attempt.uid))
            await later.inventory()
            assert os.listdir(later.folder) == [ended.FOLDER]

    play(story())


@pytest.mark.parametrize("isolation", ["pid-namespace", "session"])
def test_a_container_ends_with_the_death_of_its_shim(isolation: str, image: Path) -> None:
    """[H1, INV2]"""

    async def story() -> None:
        folder, options = image.parents[1] / "replicas", RuntimeOptions(images=(image.parent,))
        async with workshop(folder, isolation, options=options) as one:
            attempt = await one.launched(_box(image, "echo up; setsid sleep 600 & sleep 600"))
            await one.prints(attempt)
            state = one.attempts.look(attempt).state
            assert state is not None
            # The shell and both of what it started; runc has the mark as well.
            await eventually(lambda: len(marked(attempt)) >= 3)
            before = marked(attempt)
            os.kill(state.shim.pid, signal.SIGKILL)
            await one.heard(Exited, attempt)
            assert not [pid for pid in before if is_running(pid)]

    play(story())


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_beside_a_container_runs_inside_it(code: int, image: Path) -> None:
    """It sees the files that the container wrote, and the container goes on."""

    async def story() -> None:
        async with _workshop(image) as one:
            attempt = await one.launched(_box(image, "touch /inside; echo up; sleep 600"))
            await one.prints(attempt)
            action = ExecAction(("/bin/sh", "-c", f"cat /inside && exit {code}"))
            one.do(RunProbe(attempt, Check.READINESS, action, 10_000))
            told = await one.heard(Probed, attempt)
            assert told.ok == (code == 0), told.message
            assert told.message == ("" if code == 0 else "exec: exit code 3")
            assert marked(attempt)

    play(story())


def test_want_of_memory_in_a_container_is_reported(image: Path) -> None:
    """The kernel's count outlives the container. [H1]"""

    async def story() -> None:
        async with _workshop(image) as one:
            template = _box(image, "exec tail /dev/zero", limits=Resources(memory="32Mi"))
            process, _ = await _ended(one, template)
            assert process.oom_killed
            assert process.exit_code == 128 + signal.SIGKILL

    play(story())


def test_a_container_runs_as_any_user_without_capabilities(image: Path) -> None:
    async def story() -> None:
        async with _workshop(image) as one:
            template = _box(image, "id; touch mine; grep CapEff /proc/self/status", user="4242")
            _, text = await _ended(one, template)
            assert text.splitlines() == ["uid=4242 gid=4242", "CapEff:\t" + "0" * 16]

    play(story())


def test_two_containers_of_one_image_do_not_see_what_the_other_writes(image: Path) -> None:
    async def story() -> None:
        async with _workshop(image) as one:
            script = "ls /; touch /here; ls /"
            outputs = [(await _ended(one, _box(image, script)))[1] for _ in range(2)]
            assert outputs[0] == outputs[1]
            assert outputs[0].splitlines().count("here") == 1

    play(story())


HOSTILE = [
    "/",
    "/etc",
    "/proc/self/root",
    "{images}",
    "{images}/../..",
    "{images}/busybox/../../../etc",
    "{images}/link-out",
    "{images}/a,upperdir=b",
    "{images}/nothing",
    "{images}/busybox/bin/busybox",
    "-v",
    "../busybox",
    "docker.io/$(id)",
    "a b",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_image_leads_out_of_the_directories_of_images(text: str, image: Path) -> None:
    (image.parent / "link-out").symlink_to("/etc")
    (image.parent / "a,upperdir=b").mkdir()

    async def story() -> None:
        async with _workshop(image) as one:
            named = text.replace("{images}", str(image.parent))
            template = msgspec.structs.replace(_box(image, "echo no"), image=named)
            attempt = one.launch(template)
            reason = (await one.heard(NotLaunched, attempt)).process.reason
            assert reason.startswith("NotStarted: image: ")
            # Whatever is wrong with it, the answer shows nothing of what lies there.
            assert "passwd" not in reason
            assert not one.attempts.uids()

    play(story())


def test_a_command_that_the_image_does_not_have_ends_with_the_reason_in_its_log(
    image: Path,
) -> None:
    """[H1]"""

    async def story() -> None:
        async with _workshop(image) as one:
            template = msgspec.structs.replace(_box(image, ""), command=("/bin/nothing",))
            attempt = one.launch(template)
            process = (await one.heard(Exited, attempt)).process
            assert process.exit_code not in (0, None)
            assert "/bin/nothing" in (one.path(attempt) / "stderr").read_text()

    play(story())


def test_without_runc_a_container_is_refused_and_a_process_is_not(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[H1]"""
    monkeypatch.setattr(containers, "TOOLS", ("runc-that-nobody-has", *containers.TOOLS))

    async def story() -> None:
        async with _workshop(image) as one:
            attempt = one.launch(_box(image, "echo no"))
            reason = (await one.heard(NotLaunched, attempt)).process.reason
            wanted = "containers need runc-that-nobody-has; install on this node"
            assert reason == f"NotStarted: {wanted}"
            plain = await one.launched(command("exit 0"))
            assert (await one.heard(Exited, plain)).process.exit_code == 0

    play(story())


@pytest.fixture
def reference(image: Path) -> Iterator[str]:
    """The image under a name of podman's."""
    program = shutil.which("podman")
    if program is None:
        pytest.skip("podman is not installed here")
    name = f"localhost/holdfast-test-{os.getpid()}:1"
    packed = subprocess.run(
        ["tar", "-C", str(image), "-c", "."], capture_output=True, check=True
    ).stdout
    words = ["import", "-c", "ENV FROM_IMAGE=yes", "-c", 'CMD ["/bin/sh","-c","echo $FROM_IMAGE"]']
    try:
        subprocess.run([program, *words, "-", name], input=packed, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"podman cannot import an image here: {error.stderr[-200:]!r}")
    yield name
    for end in (["image", "unmount", "--force", name], ["image", "rm", "--force", name]):
        with suppress(subprocess.CalledProcessError):
            subprocess.run([program, *end], check=True, capture_output=True)


def test_an_image_that_podman_has_is_run_with_its_own_command_and_variables(
    reference: str, image: Path
) -> None:
    """And an unknown one is refused with podman's reason. [H1]"""

    async def story() -> None:
        async with _workshop(image) as one:
            template = Template(runtime=Runtime.CONTAINER, image=reference)
            process, text = await _ended(one, template)
            assert (process.exit_code, text) == (0, "yes\n")
            unknown = msgspec.structs.replace(template, image="localhost/nobody-has-this:1")
            attempt: Attempt = one.launch(unknown)
            reason = (await one.heard(NotLaunched, attempt)).process.reason
            assert "cannot be pulled" in reason

    play(story())


def test_a_person_enters_a_container_as_its_work_sees_it(image: Path) -> None:
    """With pipes and with a terminal; nothing of it stays when the person goes."""
    look = "echo $GREETING; id; ls /; cat; exit 4"

    async def story() -> None:
        async with _workshop(image) as one:
            greeting = (EnvVar("GREETING", "hello"),)
            attempt = await one.launched(_box(image, "echo up; sleep 600", env=greeting, user="12"))
            await one.prints(attempt)
            async with beside(one, attempt, "/bin/sh", "-c", look, has_input=True) as it:
                await it.write(b"typed")
                it.close_input()
                output, end = (await said(it.output)).decode(), await it.wait_end()
            assert end.code == 4
            lines = output.splitlines()
            assert (lines[0], lines[-1]) == ("hello", "typed")
            assert "uid=12 gid=12" in output
            assert "holdfast" in lines
            wishes = {"has_terminal": True, "has_input": True}
            async with beside(one, attempt, "/bin/sh", **wishes) as it:
                screen = Screen(it)
                await it.write(b"cat /proc/self/stat; test -t 0 && echo a ter''minal\r")
                await screen.shows(b"a terminal\r\n")
                await it.write(b"sleep 999; echo woken\r")
                await eventually(lambda: bool(_sleepers()))
            await eventually(lambda: not _sleepers())
            assert one.runtime.running_attempt(attempt) is not None

    play(story())


def _sleepers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == b"sleep\x00999\x00":
                found.append(path.parent.name)
    return found
