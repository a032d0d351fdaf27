"""Performs probes of work: a command, an HTTP GET, a TCP connection.

Called by `runtime` for each `RunProbe`. A bounded number runs at once, whatever the number of
replicas; a probe's time-out counts from when it starts. The result is always an answer: any error
of a server, a command or the machine is a failed probe with a reason.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from urllib.parse import quote

from holdfast.agent.runtime_protocol import Probed, RunProbe
from holdfast.host.runtime import beside, listeners
from holdfast.host.runtime.containers import container_network, containers
from holdfast.host.runtime.held import HeldAttempt
from holdfast.host.runtime.starting import StartContext
from holdfast.model.kinds.template import ExecAction, HttpAction

PROBES_MAX = 64
LINE_BYTES_MAX = 8_192
# How much of a body is read, and for how long; the result does not depend on it.
BODY_BYTES_MAX, BODY_TIMEOUT_S = 10_240, 0.1
_GOOD = range(200, 400)


class Probing:
    """See the module's docstring. `address` is where the work's ports are reached."""

    def __init__(self, place: StartContext, address: str) -> None:
        self._place, self._address = place, address
        self._room = asyncio.Semaphore(PROBES_MAX)

    async def ask(self, effect: RunProbe, held: HeldAttempt | None) -> Probed:
        """Perform one probe."""
        if held is None:
            return Probed(effect.attempt, effect.kind, False, "the work has ended")
        async with self._room:
            wrong = await self._perform(effect, held)
        return Probed(effect.attempt, effect.kind, not wrong, wrong)

    async def _perform(self, effect: RunProbe, held: HeldAttempt) -> str:
        action, timeout_ms = effect.action, effect.timeout_ms
        if isinstance(action, ExecAction):
            return await beside.run(self._place, held, action.command, timeout_ms)
        word = "http" if isinstance(action, HttpAction) else "tcp"
        port = int(action.port)
        try:
            taken = await asyncio.to_thread(_taken, held, self._address)
            if taken:
                return f"{word}: {taken} is used by other work of this node"
            address = await asyncio.to_thread(self._reached_at, held)
            async with asyncio.timeout(timeout_ms / 1000):
                if isinstance(action, HttpAction):
                    return await _get(address, port, action.path)
                return await _connect(address, port)
        except TimeoutError:
            return f"{word}: no answer within {timeout_ms} ms"
        except OSError as error:
            why = os.strerror(error.errno).lower() if error.errno else "the connection failed"
            return f"{word}: {why}"

    def _reached_at(self, held: HeldAttempt) -> str:
        """The address to probe: a container's own, since published ports accept before it does."""
        if not held.choices.is_boxed or held.state is None:
            return self._address
        found = container_network.address_in(held.state.work.pid, containers.BOX)
        return found or self._address


def _taken(held: HeldAttempt, address: str) -> str:
    """A port of its own that leads to another user's listener; empty if none does."""
    user = held.choices.uid
    if user is None or not held.choices.listens:
        return ""
    ports = held.choices.listens
    return listeners.look(address, ports).foreign(ports, user)


async def _connect(address: str, port: int) -> str:
    _, writer = await asyncio.open_connection(address, port)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return ""


async def _get(address: str, port: int, path: str) -> str:
    """GET without following redirects: a probe is about this server only."""
    reader, writer = await asyncio.open_connection(address, port, limit=LINE_BYTES_MAX)
    try:
        host = f"[{address}]" if ":" in address else address
        target = quote(path or "/", safe="!$%&'()*+,/:;=?@[]~")
        head = (
            f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: holdfast-probe\r\n"
            "Accept: */*\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode("ascii"))
        await writer.drain()
        try:
            line = await reader.readline()
        except ValueError:
            return "http: the status line is too long"
        code = _code(line)
        if code is None:
            return "http: the answer is not HTTP"
        # Read on, so that a simple server is not cut off in the middle of its answer.
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await reader.readexactly(BODY_BYTES_MAX)
    finally:
        writer.close()
    return "" if code in _GOOD else f"http: status {code}"


def _code(line: bytes) -> int | None:
    words = line.split(None, 2)
    is_http = len(words) >= 2 and words[0].startswith(b"HTTP/")
    return int(words[1]) if is_http and words[1].isdigit() and len(words[1]) == 3 else None
