"""An open-loop generator of requests over TLS, in its own process, as cheap as Python allows.

    python -m bench.load_generator PLAN.json RESULT.npz

`bench/load` writes the plan, starts this and reads the result. Requests fall due by the clock, not
when earlier ones were answered, and their latency counts from that moment: the time that a request
waits here for a connection, because the server is slow with earlier ones, is part of it (no
coordinated omission).

Everything is one loop over epoll with sockets that never block: a client library, or even asyncio,
costs more for a request than a server that refuses it. Requests are prepared as bytes, into which a
number is inserted; answers are only framed. The result includes the CPU time of this process.

A stream whose `retries` is set sends each intent through the shipped operation machine
(`observe/operation`), with the budget that all intents of one client share.
"""

from __future__ import annotations

import heapq
import math
import random
import resource
import select
import socket
import ssl
import sys
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.load_intents import Course, Intents
from holdfast.model.errors import invariant

_LENGTH = b"content-length:"
_RETRY_AFTER = b"retry-after:"
# Codes of requests without an answer from the server: no answer in time, a broken connection, and
# not sent because the client was backing off.
GAVE_UP, BROKEN, HELD_BACK = 0, 1, 2
REFUSED = 429
# How often connections are checked for overdue answers.
SWEEP_S = 0.1
RECONNECT_S = 0.5
# A longer turn of the loop, apart from waiting, is recorded: requests that fell due meanwhile are
# late for a reason that is not the server's.
PAUSE_S = 0.01
_READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_CHUNK = 1 << 16


class Piece(msgspec.Struct, frozen=True):
    """One type of request.

    In its text `#` stands for a number below `numbers` that repeats, `@` for one that never
    repeats, both with eight digits, so that no length changes.
    """

    kind: str
    text: bytes
    weight: float = 1.0
    numbers: int = 1
    # How to read the outcome, if the answer is lost.
    look: bytes = b""
    is_read: bool = False

    def filled(self, count: int, *, look: bool = False) -> bytes:
        """The bytes of the request with this number, or of the read that finds its outcome."""
        text = self.look if look else self.text
        return text.replace(b"#", b"%08d" % (count % self.numbers)).replace(b"@", b"%08d" % count)


class Stream(msgspec.Struct, frozen=True):
    """One identity and its connections.

    `rates` are requests per second and the second from which they apply; without any it sends as
    soon as a connection is free. If it is polite, each connection is a separate client that sends
    nothing until the Retry-After of a refusal is over; requests that fall due while all clients
    back off or are busy are not sent at all.
    """

    name: str
    certificate: str
    connections: int
    pieces: tuple[Piece, ...]
    rates: tuple[tuple[float, float], ...] = ()
    retries: bool = False
    is_polite: bool = False


class Load(msgspec.Struct, frozen=True):
    """The plan of one run of the generator."""

    port: int
    ca: str
    seconds: float
    streams: tuple[Stream, ...]
    seed: int = 0
    # How long a client waits for an answer, and the generator at the end for those in flight.
    timeout_s: float = 10.0


class Connection:
    """One connection, which carries one request at a time."""

    __slots__ = ("_context", "_port", "buffer", "job", "ready", "sent_at", "sock", "source")

    def __init__(self, source: Source, port: int, context: ssl.SSLContext) -> None:
        self.source, self._port, self._context = source, port, context
        self.sock: ssl.SSLSocket | None = None
        self.ready = False
        self.buffer = bytearray()
        self.job: Job | None = None
        self.sent_at = 0.0

    def begin(self) -> None:
        """Connect; the handshake continues as the other side answers."""
        plain = socket.create_connection(("127.0.0.1", self._port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setblocking(False)
        self.sock = self._context.wrap_socket(
            plain, do_handshake_on_connect=False, server_hostname="127.0.0.1"
        )
        self.ready = False
        self.buffer.clear()

    def shake(self) -> bool:
        """Continue the handshake; return whether it is complete."""
        try:
            self.sock.do_handshake()  # type: ignore[union-attr]
        except ssl.SSLWantReadError:
            return False
        self.ready = True
        return True

    def send(self, job: Job, now: float) -> None:
        self.job, self.sent_at = job, now
        self.sock.send(job.text)  # type: ignore[union-attr]

    def take(self) -> tuple[int, int, bytes] | None:
        """Code, Retry-After in milliseconds and body of the answer, once it is complete."""
        sock, buffer = self.sock, self.buffer
        while True:
            data = sock.recv(_CHUNK)  # type: ignore[union-attr]
            if not data:
                raise ConnectionError("the server closed the connection")
            buffer += data
            if not sock.pending():  # type: ignore[union-attr]
                break
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(buffer[:end]).lower()
        whole = end + 4 + _number(head, _LENGTH)
        if len(buffer) < whole:
            return None
        code = int(head[9:12])
        after_ms = 1_000 * _number(head, _RETRY_AFTER) if code >= 429 else 0
        body = bytes(buffer[end + 4 : whole])
        buffer.clear()
        return code, after_ms, body

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
        self.sock, self.ready, self.job = None, False, None


def _number(head: bytes, name: bytes) -> int:
    at = head.find(name)
    return int(head[at + len(name) :].partition(b"\r\n")[0]) if at >= 0 else 0


class Job:
    """One request that is due or in flight."""

    __slots__ = ("course", "due", "kind", "text")

    def __init__(self, due: float, kind: int, text: bytes, course: Course | None) -> None:
        self.due, self.kind, self.text, self.course = due, kind, text, course


class Source:
    """One stream while it runs."""

    def __init__(self, number: int, stream: Stream, kinds: dict[str, int], seed: int) -> None:
        self.number, self.stream = number, stream
        self.rng = random.Random(f"{seed}/{stream.name}")
        self.idle: deque[Connection] = deque()
        # How many connections are backing off.
        self.away = 0
        self.waiting: deque[Job] = deque()
        self._kinds = [kinds[it.kind] for it in stream.pieces]
        self._weights = [it.weight for it in stream.pieces]
        self._counts = [0] * len(stream.pieces)
        self.intents = Intents(self.rng) if stream.retries else None

    def job(self, due: float) -> Job:
        """The next request of this stream."""
        pieces = self.stream.pieces
        at = 0
        if len(pieces) > 1:
            (at,) = self.rng.choices(range(len(pieces)), self._weights)
        piece, count = pieces[at], self._counts[at]
        self._counts[at] += 1
        text, course = piece.filled(count), None
        if self.intents is not None:
            look = piece.filled(count, look=True)
            course = self.intents.begin(text, look, is_read=piece.is_read)
        return Job(due, self._kinds[at], text, course)

    def next_arrival(self, after_s: float) -> float | None:
        """When the next request is due, in seconds since the start; None means never."""
        rates = self.stream.rates
        for at, (from_s, rate) in enumerate(rates):
            until_s = rates[at + 1][0] if at + 1 < len(rates) else math.inf
            if after_s >= until_s or rate <= 0:
                continue
            # Arrivals have no memory, so that each rate can start at any time.
            due_s = max(after_s, from_s) + self.rng.expovariate(rate)
            if due_s < until_s:
                return due_s
        return None


class Generator:
    """Runs a plan. `records` has a row for each request that was sent or given up."""

    def __init__(self, plan: Load) -> None:
        self._plan = plan
        kinds = dict.fromkeys(it.kind for stream in plan.streams for it in stream.pieces)
        self.kinds = {kind: at for at, kind in enumerate(kinds)}
        self._sources = [
            Source(at, stream, self.kinds, plan.seed) for at, stream in enumerate(plan.streams)
        ]
        self._epoll = select.epoll()
        self._by_fd: dict[int, Connection] = {}
        self._connections: list[Connection] = []
        # What falls due: (when, number, source, job); without a job it is the next arrival.
        self._heap: list[tuple[float, int, Source, Job | None]] = []
        self._posted = 0
        self._broken: list[tuple[float, Connection]] = []
        self._away: list[tuple[float, int, Connection]] = []
        self._open = 0
        self._began = self._end = 0.0
        self.columns = {name: array("d") for name in ("due", "sent", "done")}
        # The start and end of each pause of the loop itself.
        self.pauses: list[tuple[float, float]] = []
        self.codes, self.of_kind, self.of_stream = array("i"), array("i"), array("i")

    def connect(self) -> None:
        """Open all connections, a few at a time: a handshake costs both sides."""
        contexts: dict[str, ssl.SSLContext] = {}
        for source in self._sources:
            name = source.stream.certificate
            if name not in contexts:
                contexts[name] = context = ssl.create_default_context(cafile=self._plan.ca)
                context.load_cert_chain(name)
            for _ in range(source.stream.connections):
                connection = Connection(source, self._plan.port, contexts[name])
                self._connections.append(connection)
                self._begin(connection)
                while not connection.ready:
                    self._turn(1.0)

    def _begin(self, connection: Connection) -> None:
        connection.begin()
        fd = connection.sock.fileno()  # type: ignore[union-attr]
        self._by_fd[fd] = connection
        self._epoll.register(fd, _READ)
        if connection.shake():
            self._freed(connection)

    def run(self) -> dict[str, Any]:
        """Run from the first arrival until the last answer."""
        plan = self._plan
        before = resource.getrusage(resource.RUSAGE_SELF)
        self._began = began = swept = time.monotonic()
        self._end = end = began + plan.seconds
        for source in self._sources:
            self._arrive(source, began)
        while True:
            now = time.monotonic()
            if now >= end and (not self._open or now >= end + plan.timeout_s):
                break
            self._due(now)
            if now - swept >= SWEEP_S:
                swept = now
                self._sweep(now)
            until = self._heap[0][0] if self._heap else now + SWEEP_S
            wait_s = min(max(0.0, until - time.monotonic()), SWEEP_S)
            asked = time.monotonic()
            self._turn(wait_s)
            late_s = time.monotonic() - asked - wait_s
            busy_s = asked - now
            if busy_s > PAUSE_S or late_s > PAUSE_S:
                self.pauses.append((now - began, time.monotonic() - began))
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        took_s = time.monotonic() - began
        return {"began": began, "cpu_s": cpu_s, "took_s": took_s, "pauses": self.pauses}

    # Arrivals ------------------------------------------------------------------------------------

    def _post(self, at: float, source: Source, job: Job | None) -> None:
        self._posted += 1
        heapq.heappush(self._heap, (at, self._posted, source, job))

    def _arrive(self, source: Source, after: float) -> None:
        due_s = source.next_arrival(after - self._began)
        if due_s is not None and self._began + due_s < self._end:
            self._post(self._began + due_s, source, None)

    def _due(self, now: float) -> None:
        while self._away and self._away[0][0] <= now:
            _, _, connection = heapq.heappop(self._away)
            connection.source.away -= 1
            # It may have been closed meanwhile, as a connection that is idle for long is.
            if connection.ready:
                self._freed(connection)
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, source, job = heapq.heappop(heap)
            if job is None:
                job = source.job(at)
                self._open += 1
                self._arrive(source, at)
            if job.text:
                self._offer(source, job, now)
            elif job.course is not None:
                self._follow(source, job, job.course.resume(now))
        for source in self._sources:
            if not source.stream.rates and now < self._end:
                while source.idle:
                    self._open += 1
                    self._offer(source, source.job(now), now)

    def _offer(self, source: Source, job: Job, now: float) -> None:
        if source.idle:
            source.idle.popleft().send(job, now)
        elif source.away:
            self._record(source, job, now, HELD_BACK, now)
            self._open -= 1
        else:
            source.waiting.append(job)

    # Connections ---------------------------------------------------------------------------------

    def _turn(self, wait_s: float) -> None:
        for fd, _ in self._epoll.poll(wait_s):
            connection = self._by_fd.get(fd)
            if connection is None:
                continue
            try:
                if not connection.ready:
                    if connection.shake():
                        self._freed(connection)
                    continue
                answer = connection.take()
            except ssl.SSLWantReadError:
                continue
            except OSError:
                self._lose(connection, BROKEN, time.monotonic())
                continue
            if answer is not None:
                self._answered(connection, answer)

    def _answered(self, connection: Connection, answer: tuple[int, int, bytes]) -> None:
        now, job = time.monotonic(), connection.job
        invariant(job is not None, "an answer without a request")
        self._record(connection.source, job, connection.sent_at, answer[0], now)  # type: ignore[arg-type]
        connection.job = None
        code, after_ms, _ = answer
        if connection.source.stream.is_polite and code == REFUSED and after_ms:
            connection.source.away += 1
            heapq.heappush(self._away, (now + after_ms / 1_000, id(connection), connection))
        else:
            self._freed(connection)
        self._went(connection.source, job, answer, now)  # type: ignore[arg-type]

    def _freed(self, connection: Connection) -> None:
        source = connection.source
        if source.waiting:
            connection.send(source.waiting.popleft(), time.monotonic())
        else:
            source.idle.append(connection)

    def _went(self, source: Source, job: Job, answer: tuple[int, int, bytes], now: float) -> None:
        """Continue the intent of the request, if it has one."""
        self._follow(source, job, job.course.answered(*answer, now) if job.course else None)

    def _follow(self, source: Source, job: Job, more: tuple[float, bytes] | None) -> None:
        if more is None:
            self._open -= 1
        else:
            at, text = more
            self._post(at, source, Job(at, job.kind, text, job.course))

    def _record(self, source: Source, job: Job, sent: float, code: int, now: float) -> None:
        columns = self.columns
        columns["due"].append(job.due)
        columns["sent"].append(sent)
        columns["done"].append(now)
        self.codes.append(code)
        self.of_kind.append(job.kind)
        self.of_stream.append(source.number)

    def _lose(self, connection: Connection, code: int, now: float) -> None:
        """Replace a connection that ended, or whose answer is overdue."""
        job, source = connection.job, connection.source
        if connection in source.idle:
            source.idle.remove(connection)
        if connection.sock is not None:
            self._by_fd.pop(connection.sock.fileno(), None)
        connection.close()
        self._broken.append((now + RECONNECT_S, connection))
        if job is not None:
            self._record(source, job, connection.sent_at, code, now)
            self._went(source, job, (code, 0, b""), now)

    def _sweep(self, now: float) -> None:
        for connection in self._connections:
            if connection.job is not None and now - connection.sent_at > self._plan.timeout_s:
                self._lose(connection, GAVE_UP, now)
        for source in self._sources:
            # A client that finds no free connection for this long gives up.
            while source.waiting and now - source.waiting[0].due > self._plan.timeout_s:
                job = source.waiting.popleft()
                self._record(source, job, now, GAVE_UP, now)
                self._went(source, job, (GAVE_UP, 0, b""), now)
        due = [it for it in self._broken if it[0] <= now]
        self._broken = [it for it in self._broken if it[0] > now]
        for _, connection in due:
            try:
                self._begin(connection)
            except OSError:
                self._broken.append((now + RECONNECT_S, connection))

    def save(self, path: Path, report: dict[str, Any]) -> None:
        """All records, for `bench/load_results`."""
        intents = [it.intents.counted() if it.intents else None for it in self._sources]
        np.savez(
            path,
            **{name: np.array(column) for name, column in self.columns.items()},  # type: ignore[arg-type]
            code=np.array(self.codes),
            kind=np.array(self.of_kind),
            stream=np.array(self.of_stream),
            report=msgspec.json.encode(report | {"kinds": list(self.kinds), "intents": intents}),
        )


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Load)
    generator = Generator(plan)
    generator.connect()
    print("ready", flush=True)
    report = generator.run()
    generator.save(Path(sys.argv[2]), report)


if __name__ == "__main__":
    main()
