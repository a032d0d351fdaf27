"""Typed requests and creates of one sender, sent in few HTTP requests.

A scheduler has thousands of binds a second, a controller thousands of creates; one HTTP request
each would cost more than deciding them. All requests of one turn of the event loop are sent as one
body. While several bodies are in flight, further requests are collected until one of them returns.
Each request has its own timeout and gets its own verdict.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.create_form import pack
from holdfast.host.client.typed_requests import Results
from holdfast.host.client.verdicts import refusal_of_answer, unreadable_answer, verdict_of
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.requests import Create

BUNDLE_MAX = 256
# Half of what a server accepts in one body, so that one large request does not exceed the limit.
BUNDLE_BYTES_MAX = 512 << 10
UNDER_WAY_MAX = 8
# An unreadable body may be the fault of one request in it; the others must not suffer.
_UNREADABLE = (400, 413, 422)

Send = Callable[[bytes, float], Awaitable[HttpAnswer]]

_ENCODER = msgspec.json.Encoder()
_RESULTS = msgspec.json.Decoder(Results)


class _Wish:
    """One request, first queued and then in flight."""

    __slots__ = ("body", "deadline_s", "future", "is_sent", "name", "timeout_s")

    def __init__(
        self, name: str, body: bytes, now_s: float, timeout_s: float, future: asyncio.Future[Any]
    ) -> None:
        self.name, self.body = name, body
        self.deadline_s, self.timeout_s = now_s + timeout_s, timeout_s
        self.future = future
        self.is_sent = False

    def settle(self, verdict: Any) -> None:
        if not self.future.done():
            self.future.set_result(verdict)

    def time_out(self) -> None:
        sentence = f"no answer to {self.name} within {self.timeout_s:g} s"
        if self.is_sent:
            self.settle(OutcomeUnknown(sentence))
        else:
            self.settle(Unavailable(f"{sentence}; it was not sent"))


class RequestBatches:
    """See the module's docstring. `send` tries once to send a body within some seconds."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._line: deque[_Wish] = deque()
        self._is_flushing = False
        self._under_way: set[asyncio.Task[None]] = set()
        # All requests without a verdict, and one timer for the earliest deadline: a timer for each
        # would cost more than sending it. Abandoned requests stay until their own deadline.
        self._waiting: set[_Wish] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, request: Any, timeout_s: float) -> Any:
        """Return the verdict on one request; a refusal is a value.

        Raises Unavailable when it was certainly not received, OutcomeUnknown when it may have been.
        """
        verdict = await self.submit(request, timeout_s)
        if isinstance(verdict, HoldfastError):
            # One error may answer many callers, so it must not collect their tracebacks.
            raise verdict.with_traceback(None)
        return verdict

    def submit(self, request: Any, timeout_s: float) -> asyncio.Future[Any]:
        """Ask without waiting: the future gets the verdict, with errors as values."""
        loop = asyncio.get_running_loop()
        form = pack(request) if isinstance(request, Create) else request
        name, future = type(request).__name__, loop.create_future()
        wish = _Wish(name, _ENCODER.encode(form), loop.time(), timeout_s, future)
        self._line.append(wish)
        self._waiting.add(wish)
        if self._timer is None or wish.deadline_s < self._timer.when():
            self._watch_time(wish.deadline_s)
        if not self._is_flushing:
            self._is_flushing = True
            # By then all requests of this turn of the loop are queued.
            loop.call_soon(self._flush)
        return future

    def _watch_time(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline_s, self._time_out)

    def _time_out(self) -> None:
        """Time out what is due, and wait for the next deadline."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        late = [wish for wish in self._waiting if wish.deadline_s <= now_s]
        for wish in late:
            wish.time_out()
        self._waiting.difference_update(late)
        if self._waiting:
            self._watch_time(min(wish.deadline_s for wish in self._waiting))

    async def close(self) -> None:
        """Stop waiting for requests in flight."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        for wish in self._line:
            wish.settle(Unavailable("the connection to the servers is closed"))
        self._line.clear()

    def _flush(self) -> None:
        self._is_flushing = False
        while self._line and len(self._under_way) < UNDER_WAY_MAX:
            bundle = self._next()
            if bundle:
                task = asyncio.create_task(self._carry(bundle))
                self._under_way.add(task)
                task.add_done_callback(self._carried)

    def _next(self) -> list[_Wish]:
        """Return the requests of the next body, without those that timed out."""
        bundle: list[_Wish] = []
        size = 0
        while self._line and len(bundle) < BUNDLE_MAX:
            size += len(self._line[0].body)
            if bundle and size > BUNDLE_BYTES_MAX:
                break
            wish = self._line.popleft()
            if not wish.future.done():
                bundle.append(wish)
        return bundle

    def _carried(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._flush()

    async def _carry(self, bundle: list[_Wish]) -> None:
        try:
            await self._deliver(bundle)
        except Exception as bug:  # noqa: BLE001 - the callers get it and end
            for wish in bundle:
                if not wish.future.done():
                    wish.future.set_exception(bug)
        finally:
            self._waiting.difference_update(bundle)

    async def _deliver(self, bundle: list[_Wish]) -> None:
        answer = await self._tried(bundle)
        if isinstance(answer, HttpAnswer) and answer.code in _UNREADABLE and len(bundle) > 1:
            # Nothing of it was received, so each may be sent alone.
            for wish in bundle:
                wish.is_sent = False
            for wish in bundle:
                if not wish.future.done():
                    await self._deliver([wish])
            return
        for wish, verdict in zip(bundle, _verdicts(answer, len(bundle)), strict=True):
            wish.settle(verdict)

    async def _tried(self, bundle: list[_Wish]) -> HttpAnswer | HoldfastError:
        now_s = asyncio.get_running_loop().time()
        timeout_s = max(wish.deadline_s for wish in bundle) - now_s
        for wish in bundle:
            wish.is_sent = True
        try:
            return await self._send(b"[%b]" % b",".join([w.body for w in bundle]), timeout_s)
        except HoldfastError as error:
            return error


def _verdicts(answer: HttpAnswer | HoldfastError, count: int) -> list[Any]:
    if isinstance(answer, HoldfastError):
        return [answer] * count
    if not answer.is_good:
        return [refusal_of_answer(answer, is_write=True)] * count
    try:
        results = _RESULTS.decode(answer.body).items
    except msgspec.DecodeError as error:
        return [unreadable_answer(error)] * count
    if len(results) != count:
        return [OutcomeUnknown("the answer is for other requests")] * count
    return [verdict_of(result) for result in results]
