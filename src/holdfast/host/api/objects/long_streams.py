"""Streams that stay open, and whether whoever opened them may still have them.

A request is judged when it comes; a watch, a log, a command or an agent's line goes on for hours
after that. So `app` lets each of them in here, and all are judged again every SWEEP_S, by the same
two questions: who is that, by the certificate or token that was shown (`door`), and may he do this
(`Call.demand`). Whoever may not any more is shown out: a watch ends as if its time were over, which
its client follows by a request that is refused; anything else is cut off.

So a token or a certificate that was revoked or has ended, a node that was deleted and a role that
was taken away are felt within SWEEP_S, and a stream that cannot even end within twice that. A
server that cannot tell whether it knows of all that was taken away ends the logs and commands of
people; what a watch could tell has not reached it either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

from holdfast.host.api.call import Call, Route
from holdfast.host.server.rights import TRUST_S
from holdfast.model.access.identity import SYSTEM_PREFIX, Identity
from holdfast.model.errors import HoldfastError

SWEEP_S = 2.0
# Others have their turn after so many: a sweep of thousands must not hold up anybody.
AT_ONCE = 128
_LASTING_VERBS = ("watch", "attend")
_LASTING_PARTS = ("log", "exec")

Authenticate = Callable[[web.BaseRequest], Identity]


def is_person(identity: Identity) -> bool:
    """Whether this is no component of the plane."""
    return not identity.name.startswith(SYSTEM_PREFIX)


def lasts(route: Route) -> bool:
    """Whether what is asked for may go on long after it was judged."""
    return route.verb in _LASTING_VERBS or route.subresource in _LASTING_PARTS


class LongStream:
    """One open stream and the task that serves it."""

    __slots__ = ("call", "is_ending", "task")

    def __init__(self, call: Call) -> None:
        self.call, self.is_ending = call, False
        self.task = asyncio.current_task()

    def end(self) -> None:
        """Let it end; the second time whatever it is doing."""
        if self.call.end_gracefully is not None and not self.is_ending:
            self.call.end_gracefully()
        elif self.task is not None:
            self.task.cancel()
        self.is_ending = True


class LongStreams:
    """All open streams of one server."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate
        self._streams: dict[int, LongStream] = {}
        # How many streams were ended because whoever opened them may not have them any more.
        self.ended = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Call]:
        """The requests whose streams are open."""
        return iter([stream.call for stream in self._streams.values()])

    @contextmanager
    def stay(self, call: Call) -> Iterator[None]:
        """Have a stream judged again for as long as it is open."""
        stream = LongStream(call)
        self._streams[id(stream)] = stream
        try:
            yield
        finally:
            del self._streams[id(stream)]

    async def sweep_for_ever(self) -> None:
        """Judge all of them, again and again."""
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.sweep()

    async def sweep(self) -> None:
        """Judge all of them now."""
        for stream in self._streams.values():
            # A server that was paused is not behind for good: it asks before it judges.
            await stream.call.services.rights.is_current()
            break
        for number, stream in enumerate(list(self._streams.values())):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            # It may have ended meanwhile, and its task be about something else by now.
            if id(stream) in self._streams and not self.may_stay(stream.call):
                self.ended += not stream.is_ending
                stream.end()

    def may_stay(self, call: Call) -> bool:
        """Whether the caller is still who it was and may still have this stream."""
        try:
            if self._authenticate(call.request) != call.identity:
                return False
            looks_inside = call.route.subresource in _LASTING_PARTS and is_person(call.identity)
            if looks_inside and call.services.rights.age_s > TRUST_S:
                return False
            if call.route.kind is not None:
                call.demand(call.route.verb)
        except HoldfastError:
            return False
        return True
