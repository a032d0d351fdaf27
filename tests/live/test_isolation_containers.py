"""Tenants whose containers share a machine: none of them is anyone on the node, or reaches it.

The agent is set up by its own command line as `holdfast up` starts it, with nothing said about
tenants. All tests share one agent, since an attack must not harm its neighbours.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent.runtime_protocol import (
    Attempt,
    Check,
    Exited,
    Launched,
    NotLaunched,
    Probed,
    RunProbe,
)
from holdfast.host.runtime import shim_binary
from holdfast.host.runtime.cgroups import detect
from holdfast.host.runtime.cgroups.limits import CPU, MEMORY
from holdfast.host.runtime.containers import containers
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.template import File, HttpAction, Port, TcpAction, Template
from holdfast.model.kinds.template import Runtime as RuntimeKind
from tests.live.test_isolation import ACME, RIVAL, options_of, targets, victim
from tests.live.test_publishing import publisher as publishing
from tests.workshop import NODE, Workshop, halt, is_running, play, workshop

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run containers"),
    pytest.mark.xdist_group("isolation-containers"),
]

APPLETS = (
    *("sh", "cat", "id", "ls", "sleep", "touch", "grep", "chmod", "cp", "stat", "chown", "mkdir"),
    *("unshare", "mount", "nc", "httpd", "wget", "kill", "mknod", "dd", "ip", "tr"),
)
Story = Callable[[Workshop], Coroutine[Any, Any, None]]


class Plant:
    """One agent for all tests of this module, each of which runs it for as long as it lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image = folder / "images" / "box"
        programs = self.image / "bin"
        programs.mkdir(parents=True)
        busybox = shutil.which("busybox")
        assert busybox is not None
        shutil.copy(busybox, programs / "busybox")
        for applet in APPLETS:
            (programs / applet).symlink_to("busybox")
        # A program that makes its caller root, where such programs count.
        shutil.copy(busybox, programs / "busybox-root")
        (programs / "busybox-root").chmod(0o4755)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Workshop]:
        options = options_of(self.folder, "--images", str(self.image.parent))
        async with workshop(self.folder / "agent", options=options) as one:
            yield one

    def run(self, story: Story) -> None:
        async def whole() -> None:
            async with self.agent() as one:
                await story(one)

        play(whole())

    def box(self, script: str, **others: object) -> Template:
        template = Template(
            runtime=RuntimeKind.CONTAINER,
            image=str(self.image),
            command=("/bin/sh", "-c", script),
        )
        return msgspec.structs.replace(template, **others)


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    folder = tmp_path_factory.mktemp("plant")
    groups = detect.find(NODE, folder)
    try:
        containers.check(folder, groups, shim_binary.find())
    except Unavailable as problem:
        pytest.skip(str(problem))
    finally:
        groups.retire()
    yield Plant(folder)
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


async def said(one: Workshop, template: Template, namespace: str) -> str:
    """What a container said that ended well."""
    attempt = one.launch(template, namespace=namespace)
    await one.heard(Launched, attempt)
    process = (await one.heard(Exited, attempt)).process
    assert process.exit_code == 0, one.output(attempt, "stderr") + one.output(attempt)
    return one.output(attempt)


def test_root_in_a_container_is_no_one_on_the_node(plant: Plant) -> None:
    """And another one for each tenant. What it writes belongs to it outside, too: a program that
    it marks makes no process root.
    """
    script = (
        "cat /proc/self/uid_map /proc/self/gid_map; cp /bin/busybox /holdfast/su;"
        " chmod 4755 /holdfast/su; touch /made; chown 33:33 /made; stat -c %u:%g /made /bin;"
        " cat conf"
    )

    async def story(one: Workshop) -> None:
        firsts = []
        for tenant in (ACME, RIVAL, ACME):
            template = plant.box(script, files=(File("conf", "mine\n"),))
            attempt = await one.launched(template, namespace=tenant)
            assert (await one.heard(Exited, attempt)).process.exit_code == 0
            users, groups, *rest = one.output(attempt).splitlines()
            assert rest == ["33:33", "0:0", "mine"]
            inside, outside, count = map(int, users.split())
            assert groups == users
            assert (inside, count) == (0, 65_536)
            assert outside >= 65_536
            made = one.path(attempt)
            assert (made / "work" / "su").stat().st_uid == outside
            assert (made / "layer" / "upper" / "made").stat().st_uid == outside + 33
            firsts.append(outside)
        assert firsts[0] == firsts[2]
        assert abs(firsts[0] - firsts[1]) >= 65_536
        # The image is as it was.
        assert (plant.image / "bin").stat().st_uid == 0

    plant.run(story)


def test_a_container_gains_no_rights_and_asks_the_kernel_for_little(plant: Plant) -> None:
    """No new namespaces, no mounts, no devices, no programs that make root of a user."""
    script = (
        "grep -E '^(CapBnd|CapEff|Seccomp|NoNewPrivs):' /proc/self/status;"
        " for kind in -U -m -n -p -i -u; do unshare $kind true && echo unshared $kind; done;"
        " mount -t tmpfs none /tmp && echo mounted; mknod /dev/mine b 8 0 && echo made a device;"
        " /bin/busybox-root id -u; grep -E ' / ' /proc/self/mounts | tr ' ' '\\n' | grep nosuid"
    )

    async def story(one: Workshop) -> None:
        root = await said(one, plant.box(script), ACME)
        other = await said(one, plant.box(script, user="4242"), ACME)
        for text, user, rights in ((root, "0", "CapEff:\t00000000000004fb"), (other, "4242", None)):
            lines = text.splitlines()
            assert "Seccomp:\t2" in lines
            assert "NoNewPrivs:\t1" in lines
            assert (rights or f"CapEff:\t{0:016x}") in lines
            *_, ran_as, options = lines
            assert ran_as == user
            assert {"nosuid", "nodev"} <= set(options.split(","))
            assert not [line for line in lines if line.startswith(("unshared", "mounted", "made"))]

    plant.run(story)


@asynccontextmanager
async def listening(family: int, address: Any) -> AsyncIterator[socket.socket]:
    """Something of the node, or of another tenant, that listens."""
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
        yield listener


def test_a_container_is_on_a_network_of_its_own(plant: Plant) -> None:
    """It reaches neither what listens for the node alone nor abstract sockets, and takes no port
    there; without ports it has nothing but its own loopback.
    """

    async def story(one: Workshop) -> None:
        async with (
            listening(socket.AF_INET, ("127.0.0.1", 0)) as tcp,
            listening(socket.AF_UNIX, "\0holdfast-test") as abstract,
        ):
            port = tcp.getsockname()[1]
            script = (
                f"nc 127.0.0.1 {port} </dev/null & sleep 0.2; kill $!;"
                " grep -c holdfast-test /proc/net/unix; ls /sys/class/net;"
                f" nc -l -p {port} -s 127.0.0.1 & sleep 0.2; kill $!; echo listened"
            )
            lines = (await said(one, plant.box(script), RIVAL)).splitlines()
            assert lines == ["0", "lo", "listened"]
            ports = (Port("web"),)
            lines = (await said(one, plant.box(script, ports=ports), RIVAL)).splitlines()
            assert lines == ["0", "eth0", "lo", "listened"]
            for listener in (tcp, abstract):
                with pytest.raises(BlockingIOError):
                    listener.accept()

    plant.run(story)


async def fetched(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"GET /index.html HTTP/1.0\r\n\r\n")
        return await reader.read()
    finally:
        writer.close()


WEB = (
    "mkdir /www; echo of {whose} > /www/index.html; httpd -p $PORT_WEB -h /www;"
    " echo ready; exec sleep 600"
)


def addresses(one: Workshop, of: Attempt) -> dict[str, str]:
    held = one.runtime.running_attempt(of)
    assert held is not None
    return held.process.addresses


def test_the_ports_of_a_container_are_published_on_the_node(plant: Plant) -> None:
    """Of two containers each answers on its own; probes ask the container itself, so that one
    that does not listen yet is not taken for one that does.
    """

    async def story(one: Workshop) -> None:
        found = []
        for tenant in (ACME, RIVAL):
            script = WEB.format(whose=tenant)
            template = plant.box(script, ports=(Port("web"),))
            attempt = await one.launched(template, namespace=tenant)
            await one.prints(attempt)
            address = addresses(one, attempt)["web"]
            assert (await fetched(address)).endswith(f"of {tenant}\n".encode())
            found.append((attempt, int(address.rpartition(":")[2])))
        idle = await one.launched(plant.box("sleep 600", ports=(Port("web"),)), namespace=ACME)
        silent = int(addresses(one, idle)["web"].rpartition(":")[2])
        for attempt, port, is_up in ((*found[0], True), (*found[1], True), (idle, silent, False)):
            for action in (TcpAction(port), HttpAction(port, "/index.html")):
                one.told.clear()
                one.do(RunProbe(attempt, Check.READINESS, action, 10_000))
                assert (await one.heard(Probed, attempt)).ok is is_up
        with pytest.raises(ConnectionError):
            await fetched(f"127.0.0.1:{silent}")
        for attempt in (*(it for it, _ in found), idle):
            one.do(halt(attempt))
            await one.heard(Exited, attempt)
        with pytest.raises(ConnectionError):
            await fetched(f"127.0.0.1:{found[0][1]}")

    plant.run(story)


def test_the_publisher_of_a_container_s_ports_is_charged_to_the_container(plant: Plant) -> None:
    """For processor and memory, as all that is in it."""

    async def story(one: Workshop) -> None:
        script = WEB.format(whose=ACME)
        attempt = await one.launched(plant.box(script, ports=(Port("web"),)), namespace=ACME)
        await one.prints(attempt)
        address = addresses(one, attempt)["web"]
        await fetched(address)
        publisher = publishing(int(address.rpartition(":")[2]))
        joins = one.runtime.place.groups.joins(attempt, (CPU, MEMORY))
        assert joins
        for procs in joins:
            assert publisher.name in procs.read_text().split()
        # It is no part of what keeps a container from ending.
        one.do(halt(attempt))
        await one.heard(Exited, attempt)
        assert not publisher.exists()

    plant.run(story)


def test_a_port_that_another_has_taken_is_never_the_container_s_own(plant: Plant) -> None:
    """A container whose port cannot be held does not run, so that no endpoint leads elsewhere,
    and its log says why.
    """

    async def story(one: Workshop) -> None:
        async with listening(socket.AF_INET, ("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            template = plant.box("echo never; sleep 600", ports=(Port("web", port=port),))
            attempt = one.launch(template, namespace=ACME)
            ended = await one.heard(Exited, attempt)
            assert ended.process.exit_code == 1
            assert "never" not in one.output(attempt)
            assert f"port {port}" in one.output(attempt, "stderr")
            with pytest.raises(BlockingIOError):
                taken.accept()

    plant.run(story)


def test_a_container_may_have_no_more_users_than_its_block(plant: Plant) -> None:
    async def story(one: Workshop) -> None:
        attempt = one.launch(plant.box("id", user="65536"), namespace=ACME)
        reason = (await one.heard(NotLaunched, attempt)).process.reason
        assert "must be below 65536" in reason

    plant.run(story)


def test_a_tenant_that_may_use_the_node_s_network_does_so(plant: Plant) -> None:
    """The commit asks the policy; see tests/unit/commit/test_isolation.py."""

    async def story(one: Workshop) -> None:
        async with listening(socket.AF_INET, ("127.0.0.1", 0)) as tcp:
            port = tcp.getsockname()[1]
            script = f"nc 127.0.0.1 {port} </dev/null & sleep 0.2; kill $!; echo done"
            assert await said(one, plant.box(script, host_network=True), ACME) == "done\n"
            reached, _ = tcp.accept()
            reached.close()

    plant.run(story)


def contents(paths: list[str]) -> dict[str, bytes]:
    """What is in those of these files of the node that are there."""
    return {path: Path(path).read_bytes() for path in paths if Path(path).exists()}


def test_a_tenant_s_container_reaches_nothing_that_is_not_its_own(plant: Plant) -> None:
    """Neither files, secrets, sockets and processes of another tenant's work, nor the node's keys,
    the shims and the agent, whatever paths and pids it knows.
    """

    async def story(one: Workshop) -> None:
        attempt, pid = await victim(one)
        known = targets(one, attempt, pid, plant.folder)
        paths = [*known["files"], *known["sockets"]]
        tries = [f"cat '{path}' && echo GOT {path}" for path in paths]
        tries += [f"ls '{path}' && echo GOT {path}" for path in known["folders"]]
        # It may make files of these names in its own root, and changes none of the node's.
        before = contents(known["files"])
        assert len(before) > 5
        tries += [f"echo x >> '{path}'" for path in paths]
        # Pid 1 is the container's own first process.
        for number in known["pids"][1:]:
            tries.append(f"kill -CONT {number} && echo SIGNALLED {number}")
            tries.append(f"cat /proc/{number}/environ && echo GOT environ of {number}")
            tries.append(f"ls /proc/{number}/root && echo GOT root of {number}")
        tries.append("ls /proc | grep -c '^[0-9]'")
        script = "\n".join(f"( {it} ) 2>/dev/null" for it in tries)
        lines = (await said(one, plant.box(script), RIVAL)).splitlines()
        # Of all processes it sees its own: the shell, and those of the last line.
        assert [line for line in lines if not line.isdecimal()] == []
        assert int(lines[-1]) <= 4
        assert is_running(pid)
        assert contents(known["files"]) == before
        one.do(halt(attempt))
        await one.heard(Exited, attempt)

    plant.run(story)


@pytest.mark.parametrize("options", ["noatime,noexec,nodev", "strictatime"])
def test_containers_run_where_the_agent_s_disk_is_mounted_with_options(
    plant: Plant, tmp_path: Path, options: str
) -> None:
    """What such a mount forbids stays forbidden inside, which the kernel insists on."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "test", str(tmp_path)], check=True)

    async def story() -> None:
        given = options_of(tmp_path, "--images", str(plant.image.parent))
        async with workshop(tmp_path / "agent", options=given) as one:
            text = await said(one, plant.box("echo mine > file; cat file"), ACME)
            assert text == "mine\n"

    try:
        play(story())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
