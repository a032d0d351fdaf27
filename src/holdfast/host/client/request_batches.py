"""Requests that are sent together: many in one HTTP body, each with its own timeout and verdict.

A scheduler has thousands of binds a second, a controller thousands of creates, a server thousands
of requests for another one; one HTTP request each would cost more than deciding them. All requests
of one turn of the event loop are sent as one body. While several bodies are in flight, further
requests are collected until one of them returns. `RequestBatches` sends those of a component,
`host/server/other_servers` those of a server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.host.client.answers import UNREADABLE, HttpAnswer
from holdfast.host.client.create_form import pack
from holdfast.host.client.verdicts import (
    Results,
    refusal_of_answer,
    unreadable_answer,
    verdict_of,
)
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.requests import Create


class BatchLimits(msgspec.Struct, frozen=True):
    """The limits of a batcher.

    requests, bytes: of one body; a larger request goes alone.
    in_flight: bodies without an answer.
    waiting: requests that are not sent yet.
    """

    requests: int
    bytes: int
    in_flight: int
    waiting: int


class BatchedRequest:
    """One encoded request, first queued and then in flight."""

    __slots__ = ("data", "deadline_s", "future", "is_sent", "name", "timeout_s")

    def __init__(
        self, name: str, data: bytes, now_s: float, timeout_s: float, future: asyncio.Future[Any]
    ) -> None:
        self.name, self.data = name, data
        self.deadline_s, self.timeout_s = now_s + timeout_s, timeout_s
        self.future = future
        self.is_sent = False

    def settle(self, verdict: Any) -> None:
        """Set the verdict, a value or an error of ours; the first one counts."""
        if not self.future.done():
            self.future.set_result(verdict)

    def time_out(self) -> None:
        sentence = f"no answer to {self.name} within {self.timeout_s:g} s"
        if self.is_sent:
            self.settle(OutcomeUnknown(sentence))
        else:
            self.settle(Unavailable(f"{sentence}; it was not sent"))


Batch = list[BatchedRequest]
# Sends a batch and settles its requests. Calls the function when the other side has received it.
Deliver = Callable[[Batch, Callable[[], None]], Awaitable[None]]


class Batcher:
    """See the module's docstring.

    With `in_order` a body is sent only when the one before was received, so that requests are
    decided in the order in which they were made; verdicts come back meanwhile.
    """

    def __init__(self, deliver: Deliver, limits: BatchLimits, *, in_order: bool = False) -> None:
        self._deliver, self._limits, self._in_order = deliver, limits, in_order
        self._line: deque[BatchedRequest] = deque()
        self._is_flushing = self._is_sending = False
        self._in_flight: set[asyncio.Task[None]] = set()
        # All requests without a verdict, and one timer for the earliest deadline: a timer for each
        # would cost more than sending it. Abandoned requests stay until their own deadline.
        self._waiting: set[BatchedRequest] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._in_flight)

    async def ask(self, name: str, data: bytes, timeout_s: float) -> Any:
        """Return the verdict on one request; a refusal is a value.

        Raises Unavailable when it was certainly not received, OutcomeUnknown when it may have been.
        """
        return raise_if_error(await self.submit(name, data, timeout_s))

    def submit(self, name: str, data: bytes, timeout_s: float) -> asyncio.Future[Any]:
        """Ask without waiting: the future gets the verdict, with errors as values."""
        loop = asyncio.get_running_loop()
        request = BatchedRequest(name, data, loop.time(), timeout_s, loop.create_future())
        if len(self._line) >= self._limits.waiting:
            request.settle(Unavailable(f"not sent: {self._limits.waiting} requests wait already"))
            return request.future
        self._line.append(request)
        self._waiting.add(request)
        if self._timer is None or request.deadline_s < self._timer.when():
            self._watch_time(request.deadline_s)
        if not self._is_flushing:
            self._is_flushing = True
            # By then all requests of this turn of the loop are queued.
            loop.call_soon(self._flush)
        return request.future

    def _watch_time(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline_s, self._time_out)

    def _time_out(self) -> None:
        """Time out what is due, and wait for the next deadline."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        late = [request for request in self._waiting if request.deadline_s <= now_s]
        for request in late:
            request.time_out()
        self._waiting.difference_update(late)
        if self._waiting:
            self._watch_time(min(request.deadline_s for request in self._waiting))

    async def close(self) -> None:
        """Stop waiting for requests in flight: they may have happened."""
        if self._timer is not None:
            self._timer.cancel()
        for request in self._line:
            request.settle(Unavailable("the connection to the servers is closed"))
        self._line.clear()
        for task in self._in_flight:
            task.cancel()
        if self._in_flight:
            await asyncio.wait(list(self._in_flight))

    def _flush(self) -> None:
        self._is_flushing = False
        while self._line and len(self._in_flight) < self._limits.in_flight and not self._is_sending:
            batch = self._next()
            if batch:
                self._is_sending = self._in_order
                task = asyncio.create_task(self._carry(batch))
                self._in_flight.add(task)
                task.add_done_callback(self._carried)

    def _next(self) -> Batch:
        """Return the requests of the next body, without those that timed out."""
        batch: Batch = []
        size = 0
        while self._line and len(batch) < self._limits.requests:
            request = self._line[0]
            if not request.future.done():
                size += len(request.data)
                if batch and size > self._limits.bytes:
                    break
                batch.append(request)
            self._line.popleft()
        return batch

    def _carried(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._flush()

    async def _carry(self, batch: Batch) -> None:
        is_received = False

        def received() -> None:
            nonlocal is_received
            if self._in_order and not is_received:
                self._is_sending = False
                self._flush()
            is_received = True

        try:
            await self._deliver(batch, received)
        except Exception as bug:  # noqa: BLE001 - the callers get it and end
            for request in batch:
                if not request.future.done():
                    request.future.set_exception(bug)
        finally:
            for request in batch:
                if not request.future.done():
                    request.settle(OutcomeUnknown(f"no answer to {request.name} before the end"))
            self._waiting.difference_update(batch)
            received()


def raise_if_error(verdict: Any) -> Any:
    """Return a verdict. Raises one that is an error."""
    if isinstance(verdict, HoldfastError):
        # One error may answer many callers, so it must not collect their tracebacks.
        raise verdict.with_traceback(None)
    return verdict


# The bytes are half of what a server accepts in one body, so that one large request does not exceed
# the limit.
LIMITS = BatchLimits(requests=256, bytes=512 << 10, in_flight=8, waiting=100_000)
# An unreadable body may be the fault of one request in it; the others must not suffer.
UNREADABLE_CODES = (400, 413, 422)

Send = Callable[[bytes, float], Awaitable[HttpAnswer]]

_ENCODER = msgspec.json.Encoder()
_RESULTS = msgspec.json.Decoder(Results)


class RequestBatches:
    """Typed requests and creates of one sender. `send` tries once to send a body in some seconds.

    They are an array of JSON; the verdicts come in the same order.
    """

    def __init__(self, send: Send, limits: BatchLimits = LIMITS) -> None:
        self._send = send
        self._batcher = Batcher(self._deliver, limits)
        self.close = self._batcher.close

    async def ask(self, request: Any, timeout_s: float) -> Any:
        """See `Batcher`."""
        return raise_if_error(await self.submit(request, timeout_s))

    def submit(self, request: Any, timeout_s: float) -> asyncio.Future[Any]:
        """See `Batcher`."""
        form = pack(request) if isinstance(request, Create) else request
        return self._batcher.submit(type(request).__name__, _ENCODER.encode(form), timeout_s)

    async def _deliver(self, batch: Batch, received: Callable[[], None]) -> None:
        answer = await self._tried(batch)
        if isinstance(answer, HttpAnswer) and answer.code in UNREADABLE_CODES and len(batch) > 1:
            # Nothing of it was received, so each may be sent alone.
            for request in batch:
                request.is_sent = False
            for request in batch:
                if not request.future.done():
                    await self._deliver([request], received)
            return
        for request, verdict in zip(batch, _verdicts(answer, len(batch)), strict=True):
            request.settle(verdict)

    async def _tried(self, batch: Batch) -> HttpAnswer | HoldfastError:
        now_s = asyncio.get_running_loop().time()
        timeout_s = max(request.deadline_s for request in batch) - now_s
        for request in batch:
            request.is_sent = True
        try:
            return await self._send(b"[%b]" % b",".join([it.data for it in batch]), timeout_s)
        except HoldfastError as error:
            return error


def _verdicts(answer: HttpAnswer | HoldfastError, count: int) -> list[Any]:
    if isinstance(answer, HoldfastError):
        return [answer] * count
    if not answer.is_good:
        return [refusal_of_answer(answer, is_write=True)] * count
    try:
        results = _RESULTS.decode(answer.body).items
    except UNREADABLE as error:
        return [unreadable_answer(error)] * count
    if len(results) != count:
        return [OutcomeUnknown("the answer is for other requests")] * count
    return [verdict_of(result) for result in results]
