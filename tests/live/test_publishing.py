"""The program that publishes ports of containers: what goes in on one side comes out on the other.

Here the container is a server of the test on another address of the loopback device.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from holdfast.host.runtime import shim_binary

NODE, CONTAINER = "127.0.0.1", "127.0.0.2"
PATIENCE_S = 60
LARGE = os.urandom(3 * 1024 * 1024)
# More than a client that reads nothing has room for, and less than the kernel keeps for it.
FIT_BYTES, PIECE_BYTES = 64 * 1024, 4096
# More than a container takes unread, and than the kernel keeps for a connection.
UNREAD_BYTES, HELD_BYTES_MAX = 300 * 1024, 1024 * 1024
LOOK_S = 0.5
LISTENS, TIME_WAIT = "0A", "06"
GROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))


@contextmanager
def published(tmp_path: Path, *ports: str, owner: int = 0, idle_ms: int = 600_000) -> Iterator[str]:
    """What it said first."""
    address = tmp_path / "address"
    address.write_text(f"{CONTAINER}\n")
    tmp_path.chmod(0o755)
    with subprocess.Popen(
        [
            *(str(shim_binary.find().path), "publish", str(owner), NODE),
            *(str(address), str(idle_ms), *ports),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().strip()
        finally:
            child.kill()


def bound(kind: int) -> tuple[socket.socket, int]:
    """A server's socket inside, whose number is free on the node as well."""
    for _ in range(64):
        inside = socket.socket(socket.AF_INET, kind)
        inside.bind((CONTAINER, 0))
        number = inside.getsockname()[1]
        with closing(socket.socket(socket.AF_INET, kind)) as probe:
            try:
                probe.bind((NODE, number))
            except OSError:
                inside.close()
                continue
        inside.settimeout(PATIENCE_S)
        return inside, number
    raise AssertionError("no number is free on both addresses")


def echo(listener: socket.socket, count: int) -> None:
    """Answer each with all that it said, once it has said all."""

    def serve(line: socket.socket) -> None:
        with line:
            pieces = []
            while piece := line.recv(65_536):
                pieces.append(piece)
            line.sendall(b"".join(pieces))

    for _ in range(count):
        line, _ = listener.accept()
        line.settimeout(PATIENCE_S)
        threading.Thread(target=serve, args=(line,), daemon=True).start()


def asked(port: int, text: bytes) -> bytes:
    """Send all of it, say that there is no more, and read all that comes back."""
    with socket.create_connection((NODE, port), PATIENCE_S) as line:
        line.sendall(text)
        line.shutdown(socket.SHUT_WR)
        pieces = []
        while piece := line.recv(65_536):
            pieces.append(piece)
        return b"".join(pieces)


def test_all_bytes_of_many_connections_arrive_in_both_directions(tmp_path: Path) -> None:
    """Also after one side has said that it sends no more."""
    inside, port = bound(socket.SOCK_STREAM)
    with inside, published(tmp_path, f"t{port}") as word:
        assert word == "ok"
        inside.listen()
        server = threading.Thread(target=echo, args=(inside, 9), daemon=True)
        server.start()
        assert asked(port, LARGE) == LARGE
        lines = [socket.create_connection((NODE, port), PATIENCE_S) for _ in range(8)]
        for number, line in enumerate(lines):
            line.sendall(f"line {number}".encode())
        for line in reversed(lines):
            line.shutdown(socket.SHUT_WR)
        assert [line.recv(100) for line in lines] == [f"line {it}".encode() for it in range(8)]
        for line in lines:
            line.close()
        server.join(PATIENCE_S)


def test_a_connection_is_refused_when_nothing_listens_inside(tmp_path: Path) -> None:
    """And the next one is served when something does."""
    inside, port = bound(socket.SOCK_STREAM)
    with inside, published(tmp_path, f"t{port}") as word:
        assert word == "ok"
        with pytest.raises(ConnectionError):
            asked(port, b"hello")
        inside.listen()
        threading.Thread(target=echo, args=(inside, 1), daemon=True).start()
        assert asked(port, b"hello") == b"hello"


def test_datagrams_reach_the_container_and_each_answer_its_sender(tmp_path: Path) -> None:
    inside, port = bound(socket.SOCK_DGRAM)
    with inside, published(tmp_path, f"u{port}") as word:
        assert word == "ok"
        peers = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
        for number, peer in enumerate(peers):
            peer.settimeout(PATIENCE_S)
            peer.sendto(f"from {number}".encode(), (NODE, port))
        for _ in peers:
            text, whence = inside.recvfrom(100)
            inside.sendto(b"to " + text, whence)
        assert [peer.recv(100) for peer in peers] == [f"to from {it}".encode() for it in range(3)]
        for peer in peers:
            peer.close()


def test_a_port_that_is_taken_is_said_and_nothing_is_published(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((NODE, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with published(tmp_path, f"t{port}") as word:
            assert word == f"port {port}: Address already in use"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_publisher_has_no_rights_and_its_listeners_are_the_tenant_s(tmp_path: Path) -> None:
    """So that the node can tell whose an open port is."""
    owner = 2_000_001_234
    inside, port = bound(socket.SOCK_STREAM)
    with inside, published(tmp_path, f"t{port}", owner=owner) as word:
        assert word == "ok"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (row,) = [it for it in rows if it[1] == f"0100007F:{port:04X}" and it[3] == "0A"]
        assert int(row[7]) == owner
        status = dict(
            line.split(":\t", 1)
            for line in (publisher(port) / "status").read_text().splitlines()
            if ":\t" in line
        )
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(owner)}
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0


def half_closed(inside: socket.socket, port: int, *, is_full: bool) -> socket.socket:
    """A client that sends no more and reads nothing, whom the container has sent its end as well.

    Before that so much that the publisher has to keep some of it, if `is_full`.
    """
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((NODE, port))
    line, _ = inside.accept()
    with line:
        client.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""
        line.settimeout(PATIENCE_S)
        line.sendall(bytes(FIT_BYTES))
        while is_full and not is_kept_waiting(port):
            line.sendall(bytes(PIECE_BYTES))
    return client


def is_kept_waiting(port: int) -> bool:
    """Whether the publisher leaves something of the container's unread, and not just for now."""
    for _ in range(5):
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        queues = [it[4] for it in rows if it[2] == f"0200007F:{port:04X}"]
        if not any(int(it.rpartition(":")[2], 16) for it in queues):
            return False
        time.sleep(0.01)
    return True


def worked_ns(of: Path) -> int:
    """How long this process has been on a processor."""
    return int((of / "schedstat").read_text().split()[0])


def sockets_of(port: int) -> list[list[str]]:
    """The connections that the kernel has for the publisher of this port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    near = f"0100007F:{port:04X}"
    return [row for row in rows if row[1] == near and row[3] not in (LISTENS, TIME_WAIT)]


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.parametrize("whose", ["client", "container"])
def test_a_connection_that_waits_for_a_reader_costs_no_more_than_an_open_one(
    tmp_path: Path, whose: str
) -> None:
    """Whichever end does not read, both ends having said that they send no more."""
    inside, port = bound(socket.SOCK_STREAM)
    with inside, published(tmp_path, f"t{port}") as word, ExitStack() as held:
        assert word == "ok"
        inside.listen()
        held.enter_context(socket.create_connection((NODE, port), PATIENCE_S))
        held.enter_context(inside.accept()[0])
        of = publisher(port)

        def spent_ns() -> int:
            before = worked_ns(of)
            time.sleep(LOOK_S)
            return worked_ns(of) - before

        while_open = spent_ns()
        if whose == "client":
            held.enter_context(half_closed(inside, port, is_full=True))
        else:
            client = held.enter_context(socket.create_connection((NODE, port), PATIENCE_S))
            line = held.enter_context(inside.accept()[0])
            line.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
            client.sendall(bytes(UNREAD_BYTES))
            client.shutdown(socket.SHUT_WR)
        # What can be moved is moved by now, or soon.
        time.sleep(LOOK_S)
        assert spent_ns() <= while_open + LOOK_S * 1e9 / 20


def test_a_client_that_reads_nothing_is_held_little_for(tmp_path: Path) -> None:
    """The kernel's buffers do not grow with what is sent."""
    inside, port = bound(socket.SOCK_STREAM)
    inside.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with inside, published(tmp_path, f"t{port}") as word:
        assert word == "ok"
        inside.listen()
        with socket.create_connection((NODE, port), PATIENCE_S) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line, _ = inside.accept()
            taken, idle = 0, 0
            with line:
                line.setblocking(False)
                while idle < 50 and taken < 4 * HELD_BYTES_MAX:
                    try:
                        taken += line.send(bytes(4096))
                        idle = 0
                    except BlockingIOError:
                        idle += 1
                        time.sleep(0.01)
        assert taken < HELD_BYTES_MAX


@pytest.mark.parametrize("is_full", [True, False])
def test_a_half_closed_connection_on_which_nothing_moves_is_ended(
    tmp_path: Path, is_full: bool
) -> None:
    """Also when all of it is in the kernel's buffers, and the publisher has closed it. One that is
    open stays.
    """
    inside, port = bound(socket.SOCK_STREAM)
    with inside, published(tmp_path, f"t{port}", idle_ms=2_000) as word:
        assert word == "ok"
        inside.listen()
        with socket.create_connection((NODE, port), PATIENCE_S) as open_one:
            line, _ = inside.accept()
            with line, half_closed(inside, port, is_full=is_full):
                until(lambda: len(sockets_of(port)) == 1)
                open_one.sendall(b"still here")
                assert line.recv(100) == b"still here"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make control groups")
def test_the_publisher_is_in_the_container_s_groups_from_the_first_connection_on() -> None:
    """Not before: runc refuses a group in which there is a process."""
    hierarchy = next((it for it in GROUPS if (it / "cgroup.procs").exists()), None)
    if hierarchy is None:
        pytest.skip("this machine has no control groups for memory")
    group = hierarchy / f"holdfast-test-{os.getpid()}"
    group.mkdir()
    inside, port = bound(socket.SOCK_STREAM)
    try:
        procs = group / "cgroup.procs"
        with (
            # Its user has to reach the address, which is below directories of root's elsewhere.
            tempfile.TemporaryDirectory() as folder,
            inside,
            published(Path(folder), f"t{port}", str(procs), owner=2_000_001_234) as word,
        ):
            assert word == "ok"
            assert procs.read_text() == ""
            inside.listen()
            threading.Thread(target=echo, args=(inside, 1), daemon=True).start()
            assert asked(port, b"hello") == b"hello"
            assert procs.read_text() == f"{publisher(port).name}\n"
        until(lambda: procs.read_text() == "")
    finally:
        group.rmdir()


def publisher(port: int) -> Path:
    (found,) = [it for it in Path("/proc").glob("[0-9]*") if _publishes(it, port)]
    return found


def _publishes(process: Path, port: int) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"publish" in words and f"t{port}".encode() in words
