"""Sheds load: answers requests with 429 before they are parsed, while their queue is full.

To parse a request and answer it with a 429 costs a third of serving it: a client that floods a
server and ignores Retry-After would exhaust it with refusals alone. So a connection that was
refused once gets the load shedder (`admission`). While as many requests of its user wait as could
run, a whole request that arrives there is answered with the same 429, from its bytes, without
being parsed. The answer is delayed a little, since a client without an answer does not ask again.

The caller is known from the certificate of the connection; the HTTP method says whether it reads or
writes. Anything that is not one whole request goes to the parser and is handled as usual.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

from holdfast.commit.flow.fair_queues import ArrivingRequests
from holdfast.commit.flow.overload import Overloaded, RejectionReason, overload_error
from holdfast.commit.flow.request_classes import Flow, RequestPurpose
from holdfast.commit.flow.seats import FlowControllers
from holdfast.host.api import status_objects

HEAD_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"
# More digits than any body's length may have; converting a longer text takes long, or fails.
_DIGITS_MAX = 9
# The first bytes of a request, and what it does.
_WORDS = {
    b"GET ": RequestPurpose.READ,
    b"POST": RequestPurpose.WRITE,
    b"PUT ": RequestPurpose.WRITE,
    b"PATC": RequestPurpose.WRITE,
    b"DELE": RequestPurpose.WRITE,
}
_HELD_MAX = 20_000
_ANSWERS_MAX = 1_000


class DelayedConnection(Protocol):
    """A connection whose answer is delayed a little."""

    def answer(self, data: bytes) -> None:
        """Send the answer, unless the connection is gone."""
        ...


class ArrivalTicket:
    """Counts a request that was let through and is not queued yet."""

    __slots__ = ("_coming", "_flow")

    def __init__(self, coming: ArrivingRequests, flow: Flow) -> None:
        coming.more(flow.tenant, flow.user, 1)
        self._coming, self._flow = coming, flow

    def release(self) -> None:
        """Count it no longer: it is queued, or never will be."""
        self._coming.more(self._flow.tenant, self._flow.user, -1)


class LoadShedder:
    """See the module's docstring. One for all connections of a server."""

    def __init__(self, controllers: FlowControllers) -> None:
        self._controllers = controllers
        self._coming: dict[str, ArrivingRequests] = {}
        self._answers: dict[tuple[str, int], bytes] = {}
        self._held: deque[tuple[float, DelayedConnection, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def refusal(self, flow: Flow, data: bytes) -> bytes | ArrivalTicket | None:
        """The answer to a request that is shed, or its ticket if it is let through; None for
        anything that is not one whole request.
        """
        errand = _WORDS.get(data[:4])
        if errand is None or not is_whole(data):
            return None
        controller = self._controllers.of(errand)
        coming = self._coming.setdefault(controller.name, ArrivingRequests())
        if not controller.is_crowded(flow, coming):
            return ArrivalTicket(coming, flow)
        return self._refusal_bytes(
            flow, controller.refuse_early(flow, int(time.monotonic() * 1_000))
        )

    def _refusal_bytes(self, flow: Flow, retry_after_s: int) -> bytes:
        """The response, cached by tenant: composing it each time costs more than sending it."""
        key = (flow.tenant, retry_after_s)
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            found = answer(overload_error(flow, RejectionReason.QUEUE_FULL, retry_after_s))
            self._answers[key] = found
        return found

    def hold(self, connection: DelayedConnection, data: bytes) -> bool:
        """Delay the answer; False if too many are delayed already."""
        if len(self._held) >= _HELD_MAX:
            return False
        loop = asyncio.get_running_loop()
        # As long as a queued request may wait. Delayed answers are sent in order, even if that
        # time has become shorter meanwhile.
        due = loop.time() + self._controllers.patience_ms / 1_000
        self._held.append((due, connection, data))
        if self._timer is None:
            self._timer = loop.call_at(due, self._answer)
        return True

    def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._held and self._held[0][0] <= now:
            _, connection, data = self._held.popleft()
            connection.answer(data)
        self._timer = loop.call_at(self._held[0][0], self._answer) if self._held else None


def is_whole(data: bytes) -> bool:
    """Whether these bytes are one request, from its first to its last."""
    end = data.find(HEAD_END)
    if end < 0:
        return False
    head = data[:end].lower()
    # A body whose length is stated differently, or twice, is for the parser: it refuses what two
    # readers could understand in two ways.
    if b"\r\ntransfer-encoding" in head or head.count(b"\r\ncontent-length") > 1:
        return False
    at = head.find(_LENGTH)
    if at < 0:
        return len(data) == end + len(HEAD_END)
    length = head[at + len(_LENGTH) :].partition(b"\r\n")[0].strip()
    is_number = length.isdigit() and len(length) <= _DIGITS_MAX
    return is_number and len(data) == end + len(HEAD_END) + int(length)


def answer(error: Overloaded) -> bytes:
    """A refusal as the bytes of an HTTP response."""
    code, body, headers = status_objects.of(error)
    lines = [f"HTTP/1.1 {code} Too Many Requests", "Content-Type: application/json"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + HEAD_END + body
