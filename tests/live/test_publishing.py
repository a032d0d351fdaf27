"""The program that publishes ports of containers: what goes in on one side comes out on the other.

Here the container is a server of the test on another address of the loopback device.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.host.runtime import shim_binary

NODE, CONTAINER = "127.0.0.1", "127.0.0.2"
PATIENCE_S = 60
LARGE = os.urandom(3 * 1024 * 1024)


@contextmanager
def published(tmp_path: Path, *ports: str, owner: int = 0) -> Iterator[str]:
    """What it said first."""
    address = tmp_path / "address"
    address.write_text(f"{CONTAINER}\n")
    tmp_path.chmod(0o755)
    with subprocess.Popen(
        [str(shim_binary.find().path), "publish", str(owner), NODE, str(address), *ports],
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
    """Also after one side has said that it sends no more. [H1]"""
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
    """And the next one is served when something does. [H1]"""
    inside, port = bound(socket.SOCK_STREAM)
    with inside, published(tmp_path, f"t{port}") as word:
        assert word == "ok"
        with pytest.raises(ConnectionError):
            asked(port, b"hello")
        inside.listen()
        threading.Thread(target=echo, args=(inside, 1), daemon=True).start()
        assert asked(port, b"hello") == b"hello"


def test_datagrams_reach_the_container_and_each_answer_its_sender(tmp_path: Path) -> None:
    """[H1]"""
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
    """[H1]"""
    with socket.socket() as taken:
        taken.bind((NODE, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with published(tmp_path, f"t{port}") as word:
            assert word == f"port {port}: Address already in use"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_publishes_has_no_rights_and_its_listeners_are_the_tenant_s(tmp_path: Path) -> None:
    """So that the node can tell whose an open port is. [H1]"""
    owner = 2_000_001_234
    inside, port = bound(socket.SOCK_STREAM)
    with inside, published(tmp_path, f"t{port}", owner=owner) as word:
        assert word == "ok"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (row,) = [it for it in rows if it[1] == f"0100007F:{port:04X}" and it[3] == "0A"]
        assert int(row[7]) == owner
        (pid,) = [it for it in Path("/proc").glob("[0-9]*") if _publishes(it, port)]
        status = dict(
            line.split(":\t", 1)
            for line in (pid / "status").read_text().splitlines()
            if ":\t" in line
        )
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(owner)}
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0


def _publishes(process: Path, port: int) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"publish" in words and f"t{port}".encode() in words
