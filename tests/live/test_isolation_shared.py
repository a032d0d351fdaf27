"""What processes share on a node, ports, names and the disk, is no way to harm another tenant."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import struct
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.runtime_protocol import (
    Attempt,
    Check,
    Exited,
    Launched,
    PortsOpened,
    Probed,
    RunProbe,
)
from holdfast.host.runtime import ports, shim_binary, supervisor
from holdfast.host.runtime.cgroups import disk
from holdfast.model.kinds.template import (
    ExecAction,
    HttpAction,
    Port,
    Resources,
    TcpAction,
    Template,
)
from tests.free_ports import free_ports
from tests.live.test_isolation import ACME, RIVAL, options_of
from tests.workshop import (
    PATIENCE_S,
    Workshop,
    command,
    eventually,
    halt,
    is_running,
    new_uid,
    play,
    workshop,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

LISTEN = (
    "import socket, sys, time; s = socket.socket();"
    " s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
    " s.bind(('0.0.0.0', {port})); s.listen(); print('ready', flush=True); time.sleep(600)"
)


def listener(port: int) -> Template:
    """Work that listens there whatever its command says."""
    return Template(command=("/usr/bin/python3", "-c", LISTEN.format(port=port)))


def pid_of(one: Workshop, of: Attempt) -> int:
    held = one.runtime.running_attempt(of)
    assert held is not None
    assert held.state is not None
    return held.state.work.pid


def test_no_address_of_a_tenant_leads_to_another_one_s_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when the port was taken before the start nor when it is taken afterwards: the work
    is ended with the reason, and no probe of it is answered by someone else.
    """
    monkeypatch.setattr(supervisor, "PORTS_LOOK_S", 0.1)

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            (port,) = free_ports(1)
            thief = await one.launched(listener(port), namespace=RIVAL)
            assert await one.prints(thief) == ["ready"]
            waiting = Template(command=("sleep", "600"), ports=(Port("web", port),))
            late = one.launch(waiting, namespace=ACME)
            process = (await one.heard(Exited, late)).process
            assert process.reason == (f"PortTaken: TCP/{port} is used by other work of this node")
            one.do(halt(thief))
            await one.heard(Exited, thief)
            early = await one.launched(waiting, namespace=ACME)
            await one.launched(listener(port), namespace=RIVAL)
            assert (await one.heard(Exited, early)).process.reason.startswith("PortTaken")

    play(story())


def test_a_probe_is_not_answered_by_another_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ready by a probe is so by its own listener."""
    monkeypatch.setattr(supervisor, "PORTS_LOOK_S", 600.0)
    monkeypatch.setattr(supervisor, "OPENING_S", 0.0)

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            (port,) = free_ports(1)
            waiting = Template(command=("sleep", "600"), ports=(Port("web", port),))
            mine = await one.launched(waiting, namespace=ACME)
            thief = await one.launched(listener(port), namespace=RIVAL)
            assert await one.prints(thief) == ["ready"]
            for action in (TcpAction(port), HttpAction(port)):
                one.told.clear()
                one.do(RunProbe(mine, Check.READINESS, action, 60_000))
                told = await one.heard(Probed, mine)
                assert (told.ok, f"TCP/{port} is used by other work" in told.message) == (
                    False,
                    True,
                )
            one.do(halt(thief))
            await one.heard(Exited, thief)
            # One that has its own port is asked as ever.
            own = Template(command=listener(port).command, ports=(Port("web", port),))
            served = await one.launched(own, namespace=RIVAL)
            await one.prints(served)
            one.do(RunProbe(served, Check.READINESS, TcpAction(port), 60_000))
            assert (await one.heard(Probed, served)).ok

    play(story())


def test_a_port_counts_as_opened_once_the_work_itself_listens_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then its agent must not publish it; the next agent finds out by itself."""

    async def story() -> None:
        number, other = free_ports(2)
        waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        late = Template(
            command=("/usr/bin/python3", "-c", waits + LISTEN.format(port=number)),
            ports=(Port("web", number), Port("never", other)),
        )
        async with workshop(
            tmp_path / "agent", options=options_of(tmp_path), leaves_work=True
        ) as one:
            mine = one.launch(late, namespace=ACME)
            begun = await one.heard(Launched, mine)
            assert begun.unopened == ("web", "never")
            assert set(begun.process.addresses) == {"web", "never"}
            # A listener of another tenant beside it opens nothing.
            script = BESIDE.format(family="AF_INET", address="127.0.0.2", port=number)
            beside = Template(command=("/usr/bin/python3", "-c", script))
            rival = await one.launched(beside, namespace=RIVAL)
            assert await one.prints(rival) == ["ready"]
            one.do(halt(rival))
            await one.heard(Exited, rival)
            assert not any(isinstance(it, PortsOpened) for it in one.told)
            (one.path(mine) / "work" / "go").touch()
            assert (await one.heard(PortsOpened, mine)).unopened == ("never",)
            # Work whose ports no other process can take has none to be opened.
            whose = Template(command=("sleep", "600"))
            assert (await one.heard(Launched, one.launch(whose, namespace=ACME))).unopened == ()
        monkeypatch.setattr(supervisor, "PORTS_LOOK_S", 600.0)
        monkeypatch.setattr(supervisor, "OPENING_S", 0.0)
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as two:
            found = {it.attempt: it.unopened for it in (await two.inventory()).items}
            assert found[mine] == ("never",)

    play(story())


BESIDE = (
    "import socket, time; s = socket.socket(socket.{family});"
    " s.family == socket.AF_INET6 and s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1);"
    " s.bind(('{address}', {port})); s.listen(); print('ready', flush=True); time.sleep(600)"
)


@pytest.mark.parametrize("own", ["0.0.0.0", "127.0.0.1"])
def test_a_listener_at_another_address_ends_no_work_of_another_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    """Neither work that listens itself nor work that is about to, as at each of its restarts. A
    tenant could otherwise end what it wants of others.
    """
    monkeypatch.setattr(supervisor, "PORTS_LOOK_S", 0.1)

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            port, other = free_ports(2)
            beside = [("AF_INET6", "::")] + [("AF_INET", "127.0.0.2")] * (own == "127.0.0.1")
            for family, address in beside:
                script = BESIDE.format(family=family, address=address, port=port)
                command = ("/usr/bin/python3", "-c", script)
                rival = await one.launched(Template(command=command), namespace=RIVAL)
                assert await one.prints(rival) == ["ready"]
            waits = Template(command=("sleep", "600"), ports=(Port("web", port),))
            waiting = await one.launched(waits, namespace=ACME)
            script = BESIDE.format(family="AF_INET", address=own, port=port)
            serves = Template(command=("/usr/bin/python3", "-c", script), ports=waits.ports)
            serving = await one.launched(serves, namespace=ACME)
            assert await one.prints(serving) == ["ready"]
            one.do(RunProbe(serving, Check.READINESS, TcpAction(port), 60_000))
            assert (await one.heard(Probed, serving)).ok
            # The look that ends this one comes after those, and is at all of them.
            victim = await one.launched(
                Template(command=("sleep", "600"), ports=(Port("web", other),)), namespace=ACME
            )
            await one.launched(listener(other), namespace=RIVAL)
            assert (await one.heard(Exited, victim)).process.reason.startswith("PortTaken")
            assert [is_running(pid_of(one, it)) for it in (waiting, serving)] == [True, True]

    play(story())


HOLDER = (
    "import socket, time\n"
    "held = []\n"
    "for number in range({first}, {last} + 1):\n"
    "    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "    s.bind('\\0holdfast-port/TCP/%d' % number); held.append(s)\n"
    "print('ready', flush=True); time.sleep(600)\n"
)


def test_a_tenant_that_takes_all_names_of_ports_keeps_no_other_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any process may have any abstract socket, so that the agent relies on none."""
    monkeypatch.setattr(ports, "FIRST", 30_000)
    monkeypatch.setattr(ports, "LAST", 30_500)

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            script = HOLDER.format(first=30_000, last=30_500)
            thief = await one.launched(
                Template(command=("/usr/bin/python3", "-c", script)), namespace=RIVAL
            )
            assert await one.prints(thief) == ["ready"]
            await one.launched(
                Template(command=("sleep", "600"), ports=(Port("web"),)), namespace=ACME
            )

    play(story())


ABSTRACT = (
    "import socket, sys, time\n"
    "stream, letters = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, 2)\n"
    "stream.bind('\\0{name}'); stream.listen(); letters.bind('\\0{name}-letters')\n"
    "own = socket.socket(socket.AF_UNIX); own.connect('\\0{name}')\n"
    "print('ready', flush=True); time.sleep(600)\n"
)
REACH = (
    "import socket\n"
    "def tried(kind, what):\n"
    "    try: what(socket.socket(socket.AF_UNIX, kind))\n"
    "    except PermissionError: print('refused', flush=True)\n"
    "    else: print('reached', flush=True)\n"
    "tried(1, lambda it: it.connect('\\0{name}'))\n"
    "tried(2, lambda it: it.sendto(b'x', '\\0{name}-letters'))\n"
)


def test_a_tenant_cannot_connect_to_another_one_s_abstract_sockets(tmp_path: Path) -> None:
    """Neither from its work nor by a command beside that; who made them can."""
    if not shim_binary.can_scope_sockets(shim_binary.find()):
        pytest.skip("the kernel has no Landlock with scopes, and nodes say so")

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            name = f"holdfast-test-{new_uid()}"
            serve, reach = ABSTRACT.format(name=name), REACH.format(name=name)
            python = "/usr/bin/python3"
            owner = await one.launched(Template(command=(python, "-c", serve)), namespace=ACME)
            assert await one.prints(owner) == ["ready"]
            rival = await one.launched(
                Template(command=(python, "-c", f"{reach}\nimport time; time.sleep(600)")),
                namespace=RIVAL,
            )
            assert await one.prints(rival, 2) == ["refused", "refused"]
            # It fails, and so says what it wrote.
            beside = ExecAction((python, "-c", f"{reach}\nraise SystemExit(1)"))
            one.do(RunProbe(rival, Check.READINESS, beside, 60_000))
            message = (await one.heard(Probed, rival)).message
            assert (message.count("refused"), message.count("reached")) == (2, 0)
            with socket.socket(socket.AF_UNIX) as agent:
                agent.connect(f"\0{name}")

    play(story())


def forget_landlock() -> None:
    """Let the kernel say to this process, for good, that it has no Landlock."""
    allow, no_such_call = 0x7FFF0000, 0x00050000 | errno.ENOSYS
    rules = ((0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, no_such_call), (0x06, 0, 0, allow))
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *it) for it in rules))
    program = struct.pack("@HP", len(rules), ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == libc.prctl(22, 2, program) == 0


@pytest.mark.parametrize("has_landlock", [True, False])
def test_work_runs_on_a_kernel_without_landlock_and_reaches_abstract_sockets_there(
    has_landlock: bool,
) -> None:
    """What the node says of it then: tests/unit/host/runtime/test_isolation_levels.py."""
    program = shim_binary.find()
    is_scoped = has_landlock and shim_binary.can_scope_sockets(program)
    name = f"holdfast-test-{new_uid()}"
    words = ["/usr/bin/python3", "-c", REACH.format(name=name)]
    with (
        socket.socket(socket.AF_UNIX) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as letters,
        tempfile.TemporaryFile() as text,
    ):
        stream.bind(f"\0{name}")
        stream.listen()
        letters.bind(f"\0{name}-letters")
        text.write(b"".join(word.encode() + b"\0" for word in words))
        text.flush()
        work = os.pidfd_open(os.getpid())
        given = (text.fileno(), work)
        shim = (str(program.path), "beside", "session", "2000001234:2000001234", "60000", "3", "0")
        done = subprocess.run(
            (*shim, *map(str, given), "/", "tmp"),
            pass_fds=given,
            preexec_fn=None if has_landlock else forget_landlock,
            capture_output=True,
            text=True,
            check=True,
        )
        os.close(work)
    assert done.stdout.split("\n", 1)[0].startswith("code 0")
    assert done.stdout.split()[-2:] == ["refused" if is_scoped else "reached"] * 2


def test_a_process_that_says_that_it_is_other_work_is_not_taken_for_it(tmp_path: Path) -> None:
    """Neither for work of which the directory is gone, which the agent would end, nor for a part
    of another tenant's, whose end would wait for it.
    """

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            victim = await one.launched(command("sleep 600"), namespace=ACME)
            unknown = new_uid()
            forged = [(unknown, f"{one.folder.absolute()}/{unknown}/0/work")]
            forged.append((victim.uid, str(one.path(victim).absolute() / "work")))
            liars = []
            for uid, folder in forged:
                words = (f"HOLDFAST_ATTEMPT={uid}/0", f"HOLDFAST_DIRECTORY={folder}")
                lying = Template(command=("/usr/bin/env", *words, "sleep", "600"))
                liars.append(await one.launched(lying, namespace=RIVAL))
            pids = [pid_of(one, it) for it in (victim, *liars)]
            marks = [f"HOLDFAST_ATTEMPT={uid}/0".encode() for uid, _ in forged]
            for pid, mark in zip(pids[1:], marks, strict=True):
                await eventually(
                    lambda pid=pid, mark=mark: mark in Path(f"/proc/{pid}/environ").read_bytes()
                )
            items = (await one.inventory()).items
            assert {it.attempt.uid for it in items} == {it.uid for it in (victim, *liars)}
            assert all(map(is_running, pids))
            one.do(halt(victim))
            await one.heard(Exited, victim)
            assert [is_running(pid) for pid in pids] == [False, True, True]

    play(story())


def test_work_that_fills_the_disk_is_ended_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its directory and in its /tmp; the next agent minds it as well."""
    monkeypatch.setattr(disk, "LOOK_S", 0.1)
    fill = "while :; do head -c 65536 /dev/zero >> {where}; sleep 0.01; done"

    async def story() -> None:
        limits = Resources(disk="2Mi")
        async with workshop(
            tmp_path / "agent", options=options_of(tmp_path), leaves_work=True
        ) as one:
            modest = await one.launched(
                Template(command=("sh", "-c", "echo x > kept; sleep 600"), limits=limits),
                namespace=ACME,
            )
            for where in ("full", "/tmp/full"):
                template = Template(command=("sh", "-c", fill.format(where=where)), limits=limits)
                attempt = await one.launched(template, namespace=RIVAL)
                process = (await one.heard(Exited, attempt)).process
                assert process.reason == "DiskLimitExceeded"
                left = set(os.listdir(one.path(attempt)))
                assert not left & {"work", "tmp"}
                assert {"stdout", "exit"} <= left
            # One that is adopted has its limit from the launch.
            wait = "until test -e go; do sleep 0.05; done; "
            sleeper = Template(
                command=("sh", "-c", wait + fill.format(where="full")), limits=limits
            )
            later = await one.launched(sleeper, namespace=RIVAL)
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as two:
            await two.inventory()
            (two.path(later) / "work" / "go").touch()
            assert (await two.heard(Exited, later)).process.reason == "DiskLimitExceeded"
            assert two.runtime.running_attempt(modest) is not None
            assert (two.path(modest) / "work" / "kept").exists()

    play(story())


# Does this for ever, also when there is no room for it.
GREEDY = """
import itertools, os, time
hoard = os.open(".", os.O_TMPFILE | os.O_WRONLY)
for number in itertools.count():
    try:
        {step}
    except OSError:
        pass
    time.sleep({pause})
"""
# Keeps what it writes without a name.
HOARD = GREEDY.format(step="os.write(hoard, bytes(65536))", pause=0.002)


def test_work_is_bounded_by_what_is_set_aside_and_by_files_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no limit is stated, what is set aside is one; unlinked files are seen."""
    monkeypatch.setattr(disk, "LOOK_S", 0.1)

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            hoard = Template(
                command=("/usr/bin/python3", "-c", HOARD), resources=Resources(disk="2Mi")
            )
            attempt = await one.launched(hoard, namespace=RIVAL)
            assert (await one.heard(Exited, attempt)).process.reason == "DiskLimitExceeded"
            # The next attempt finds the disk as empty as the first one did.
            wrote = Template(command=("sh", "-c", "echo x > file; echo said"))
            uid = new_uid()
            for number in range(2):
                await one.heard(Exited, one.launch(wrote, namespace=ACME, uid=uid, number=number))
            before, last = one.path(Attempt(uid, 0)), one.path(Attempt(uid, 1))
            assert set(os.listdir(before)) >= {"stdout", "exit"}
            assert not (before / "work").exists()
            assert (last / "work" / "file").exists()

    play(story())


@pytest.mark.parametrize("fill", ["bytes", "files"])
def test_a_tenant_that_fills_the_disk_of_a_node_is_ended_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fill: str
) -> None:
    """Without any limit of its own: who has most beyond what is set aside for it is ended, with
    the reason, however much another one has that set it aside.
    """
    monkeypatch.setattr(disk, "SPACE_LOOK_S", 0.05)
    options = ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=8k", "test", str(tmp_path)]
    subprocess.run(options, check=True)
    many = GREEDY.format(step="open(str(number), 'w').close()", pause=0.0001)
    scripts = {"bytes": HOARD, "files": many}

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            write = (
                "head -c 40000000 /dev/zero > mine; echo has;"
                " until test -e go; do sleep 0.05; done;"
                " echo more >> mine && echo wrote; sleep 600"
            )
            modest = Template(command=("sh", "-c", write), resources=Resources(disk="50Mi"))
            owner = await one.launched(modest, namespace=ACME)
            assert await one.prints(owner) == ["has"]
            greedy = Template(command=("/usr/bin/python3", "-c", scripts[fill]))
            attempt = await one.launched(greedy, namespace=RIVAL)
            reason = (await one.heard(Exited, attempt)).process.reason
            assert reason.startswith("DiskPressure: the node's disk runs out of ")
            assert "state what it needs in resources.disk" in reason
            assert disk.lack(tmp_path) is disk.DiskShortage.NOTHING
            assert one.runtime.running_attempt(owner) is not None
            (one.path(owner) / "work" / "go").touch()
            assert await one.prints(owner, 2) == ["has", "wrote"]

    try:
        play(story())
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_files_of_one_tenant_without_end_delay_no_other_one_s_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look at a million files takes seconds, and so does to remove them: neither all replicas
    of a tenant together nor what is left of them keeps others from starting and ending.
    """
    monkeypatch.setattr(disk, "LOOK_S", 0.01)
    goes_on = threading.Event()
    look, give_back = disk.use, disk.give_back
    begun: list[Path] = []
    stuck: list[Path] = []

    def slow(folder: Path, *more: Any) -> disk.Use:
        begun.append(folder)
        if (folder / "work" / "rival").exists():
            stuck.append(folder)
            goes_on.wait(2 * PATIENCE_S)
        return look(folder, *more)

    def slowly(fd: int) -> None:
        goes_on.wait(2 * PATIENCE_S)
        give_back(fd)

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            sleeps = Template(
                command=("sh", "-c", "touch rival; sleep 600"), resources=Resources(disk="2Mi")
            )
            left = [one.launch(command("true"), namespace=RIVAL) for _ in range(6)]
            for attempt in left:
                await one.heard(Exited, attempt)
            monkeypatch.setattr(disk, "use", slow)
            monkeypatch.setattr(disk, "give_back", slowly)
            try:
                await asyncio.gather(*(one.launched(sleeps, namespace=RIVAL) for _ in range(6)))
                await eventually(lambda: bool(stuck))
                for attempt in left:
                    one.launch(sleeps, namespace=RIVAL, uid=attempt.uid, number=1)
                modest = Template(command=("sleep", "600"), resources=Resources(disk="2Mi"))
                mine = await one.launched(modest, namespace=ACME)
                await eventually(lambda: one.path(mine) in begun)
                one.do(halt(mine))
                await one.heard(Exited, mine)
                assert not goes_on.is_set()
            finally:
                goes_on.set()

    play(story())
