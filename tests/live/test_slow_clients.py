"""Clients that take their time: each is borne for as long as the settings say, and no longer.

The server's times are short here, so that a test sees them pass; what is judged is that every wait
has an end, that memory is bounded meanwhile, and that others do not notice.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from tests.hostile_requests import ADMIN, ANONYMOUS, GROUP, WORKLOADS, meta, raw, sent
from tests.live.meter import Meter
from tests.live.plane_process import PlaneProcess
from tests.live.wires import Wires, ends_after_s, read
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.xdist_group("slow-clients")

TIMES = {"tls": 1.0, "header": 1.0, "body": 1.5, "idle": 2.0, "write": 1.5}
CROWD = 150
CROWD_BYTES_MAX = 32 << 20
# On a busy machine others may be served too late to see anything in some tries.
TRIES = 8


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneProcess]:
    options = [part for name, s in TIMES.items() for part in (f"--{name}-timeout", str(s))]
    process = PlaneProcess(tmp_path_factory.mktemp("slow") / "data", *options)
    try:
        asyncio.run(process.start())
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def wires(process: PlaneProcess) -> Wires:
    admin = process.access()
    nobody = msgspec.structs.replace(admin, certificate=b"", key=b"")
    return Wires(process.port, {ADMIN: admin.context(), ANONYMOUS: nobody.context()})


def others_are_served(wires: Wires) -> None:
    """A client that does nothing wrong, on a connection of its own, hears."""
    with wires.secure() as wire:
        assert wires.ask(wire, raw("GET", WORKLOADS)).code == 200


def others_are_served_beside(wires: Wires, slow: Callable[[], socket.socket]) -> None:
    """And does not wait for a slow one to be gone."""
    for _ in range(TRIES):
        with slow() as wire:
            others_are_served(wires)
            if is_borne(wire):
                return
    raise AssertionError("others were served only when the slow one was gone")


def is_borne(wire: socket.socket) -> bool:
    """Whether the server has neither ended the connection nor said anything on it.

    Bytes may have come all the same: TLS sends its session tickets after the handshake.
    """
    wire.setblocking(False)
    try:
        wire.recv(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False


def drip(wire: ssl.SSLSocket, data: bytes, every_s: float = 0.1) -> bool:
    """Send a byte at a time; whether the other side had enough before the end."""
    try:
        for byte in data:
            wire.sendall(bytes((byte,)))
            time.sleep(every_s)
    except OSError:
        return True
    return False


def test_a_handshake_that_is_never_finished_ends(wires: Wires) -> None:
    def begun() -> socket.socket:
        made = wires.plain()
        made.sendall(b"\x16\x03\x01\x02\x00\x01")
        return made

    with wires.plain() as silent, begun() as slow:
        assert ends_after_s(silent) > TIMES["tls"] / 2
        ends_after_s(slow)
    others_are_served_beside(wires, wires.plain)
    others_are_served_beside(wires, begun)


def test_a_client_that_never_says_what_it_wants_ends(wires: Wires) -> None:
    with wires.secure(ANONYMOUS) as wire:
        assert TIMES["header"] / 2 < ends_after_s(wire)


def test_a_head_that_drips_ends(wires: Wires) -> None:
    """Each byte in time is no head in time, of the first request and of a later one."""
    request = raw("GET", "/livez", "X-Slow: " + "a" * 200)
    others_are_served_beside(wires, lambda: wires.secure(ANONYMOUS))
    with wires.secure(ANONYMOUS) as wire:
        assert drip(wire, request)
    with wires.secure(ANONYMOUS) as wire:
        assert wires.ask(wire, raw("GET", "/livez")).code == 200
        assert drip(wire, request)


def test_a_monitor_sees_how_many_were_cut(wires: Wires, process: PlaneProcess) -> None:
    def cut() -> int:
        _, text = asyncio.run(process.fetch("/metrics"))
        name = 'holdfast_connections_cut_total{waited_for="header"} '
        return next(int(it[len(name) :]) for it in text.splitlines() if it.startswith(name))

    before = cut()
    with wires.secure(ANONYMOUS) as wire:
        ends_after_s(wire)
    assert cut() > before


def test_a_body_that_drips_or_never_comes_is_answered_408(wires: Wires) -> None:
    for rest in (b"", b" " * 200):
        with wires.secure() as wire:
            wire.sendall(raw("POST", WORKLOADS, "Content-Length: 1000", body=b"{"))
            drip(wire, rest[:20])
            said = read(wire, PATIENCE_S)
            assert said.code == 408, said
            assert "1.5 s" in str(said.status["message"])
            assert "connection: close" in said.head
            ends_after_s(wire)


def test_a_body_in_time_is_taken_however_it_is_cut(wires: Wires) -> None:
    body = msgspec.json.encode(meta(namespace="default", name="BAD"))
    where = f"{GROUP}/namespaces/default/workloads"
    with wires.secure() as wire:
        head = sent("POST", where, b"").replace(b"Length: 0", b"Length: %d" % len(body))
        for piece in (head[:20], head[20:], body[:1], body[1:50], body[50:]):
            wire.sendall(piece)
            time.sleep(0.05)
        assert read(wire).code == 422


def test_an_idle_connection_ends_but_not_while_it_is_used(wires: Wires) -> None:
    with wires.secure() as wire:
        for _ in range(4):
            assert wires.ask(wire, raw("GET", WORKLOADS)).code == 200
            time.sleep(TIMES["idle"] / 3)
        assert ends_after_s(wire) > TIMES["idle"] / 2


def test_a_watch_outlives_all_of_these_times(wires: Wires) -> None:
    """It is neither idle nor slow to say nothing on a stream that has nothing to say."""
    with wires.secure() as wire:
        wire.sendall(raw("GET", f"{WORKLOADS}?watch=1&timeoutSeconds=4"))
        began = time.monotonic()
        assert read(wire).code == 200
        while b"0\r\n\r\n" not in wire.recv(65_536):
            pass
        assert time.monotonic() - began > 3.5


def test_a_client_that_takes_nothing_of_its_answer_ends(
    wires: Wires, process: PlaneProcess
) -> None:
    """What it asked for is not kept for it for ever."""
    secrets = f"{GROUP}/namespaces/default/secrets"
    with wires.secure() as wire:
        for number in range(12):
            document = {
                "kind": "Secret",
                "metadata": {"name": f"big-{number}"},
                "type": "Opaque",
                "data": {"k": "QUFB" * 200_000},
            }
            made = wires.ask(wire, sent("POST", secrets, msgspec.json.encode(document)))
            assert made.code == 201, made
    meter = Meter(process.pid)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    plain.connect(("127.0.0.1", process.port))
    with wires.wrapped(plain) as wire:
        had = meter.descriptors()
        wire.sendall(raw("GET", secrets))
        until = time.monotonic() + PATIENCE_S
        while meter.descriptors() >= had:
            assert time.monotonic() < until, "it is still kept"
            time.sleep(0.05)
    others_are_served(wires)


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /livez HT", raw("POST", WORKLOADS, "Content-Length: 9", body=b"{")],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_client_that_goes_in_the_middle_leaves_nothing_behind(
    said: bytes, wires: Wires, process: PlaneProcess
) -> None:
    """Its connection is half open: it has ended its side, and waits for ours."""
    meter = Meter(process.pid)
    had = meter.descriptors()
    with wires.secure() as wire:
        wire.sendall(said)
        wire.shutdown(socket.SHUT_WR)
        until = time.monotonic() + PATIENCE_S
        while meter.descriptors() > had:
            assert time.monotonic() < until, "it is still kept"
            time.sleep(0.05)


def test_many_slow_clients_cost_bounded_memory_and_delay_no_other(
    wires: Wires, process: PlaneProcess
) -> None:
    meter = Meter(process.pid)
    others_are_served(wires)
    had, descriptors = meter.rss_bytes(), meter.descriptors()
    meter.forget_peak()
    with ExitStack() as crowd:
        for number in range(CROWD):
            match number % 3:
                case 0:
                    crowd.enter_context(wires.plain())
                case 1:
                    crowd.enter_context(wires.secure(ANONYMOUS)).sendall(
                        b"GET /livez HTTP/1.1\r\nX"
                    )
                case _:
                    post = raw("POST", WORKLOADS, "Content-Length: 900", body=b"{")
                    crowd.enter_context(wires.secure()).sendall(post)
            if number % 30 == 0:
                others_are_served(wires)
        assert meter.peak_bytes() - had < CROWD_BYTES_MAX
        until = time.monotonic() + PATIENCE_S
        while meter.descriptors() > descriptors + 2:
            assert time.monotonic() < until, "some are still borne"
            time.sleep(0.05)
    others_are_served(wires)
    assert "Traceback" not in process.log
