"""Long streams: checks again and again whether callers may still have the streams they opened.

A request is authorized when it arrives; a watch, a log, a command or an agent's connection goes on
for hours after that. So `app` registers each of them here, and all are checked again every SWEEP_S
by the same two questions: who is the caller, by the certificate or token presented
(`authenticator`), and may the caller do this (`Call.demand`). A stream that fails is ended: a watch
ends as if its time were over, and its client's next request is refused; anything else is cut off.

So a revoked or expired token or certificate, a deleted node and a removed role take effect within
SWEEP_S, and within twice that for a stream that cannot end in order. A server that may have missed
such a change ends the logs and commands of people. It keeps their watches: changes that it has
missed cannot reach a watch either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

from holdfast.host.api.call import Call, Route
from holdfast.host.server.caller_rights import TRUST_S
from holdfast.model.access.identity import SYSTEM_PREFIX, Identity
from holdfast.model.errors import HoldfastError

SWEEP_S = 2.0
# After this many checks other requests get a turn: a sweep of thousands must not delay them.
AT_ONCE = 128
# The subresources that show what a tenant's work does.
_INSIDE = ("log", "exec")

Authenticate = Callable[[web.BaseRequest], Identity]


def is_person(identity: Identity) -> bool:
    """Whether this is a person, not a component of the plane."""
    return not identity.name.startswith(SYSTEM_PREFIX)


def lasts(route: Route) -> bool:
    """Whether the response may go on long after the request was authorized."""
    return route.verb == "watch" or route.lasts


class LongStream:
    """One open stream and the task that serves it."""

    __slots__ = ("call", "is_ending", "task")

    def __init__(self, call: Call) -> None:
        self.call, self.is_ending = call, False
        self.task = asyncio.current_task()

    def end(self) -> None:
        """End the stream: in order where it can, by cancelling its task the second time."""
        if self.call.end_gracefully is not None and not self.is_ending:
            self.call.end_gracefully()
        elif self.task is not None:
            self.task.cancel()
        self.is_ending = True


class LongStreams:
    """All open streams of one server."""

    def __init__(self, authenticate: Authenticate) -> None:
        self.authenticate = authenticate
        self._streams: dict[int, LongStream] = {}
        # How many streams were ended because their callers may not have them any more.
        self.ended = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Call]:
        """The requests whose streams are open."""
        return iter([stream.call for stream in self._streams.values()])

    @contextmanager
    def stay(self, call: Call) -> Iterator[None]:
        """Register a stream for as long as it is open."""
        stream = LongStream(call)
        self._streams[id(stream)] = stream
        try:
            yield
        finally:
            del self._streams[id(stream)]

    async def sweep_for_ever(self) -> None:
        """Check all streams every SWEEP_S."""
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.sweep()

    async def sweep(self) -> None:
        """Check all streams now."""
        for stream in self._streams.values():
            # A server that was paused catches up first, instead of ending streams for being behind.
            await stream.call.services.rights.is_current()
            break
        for number, stream in enumerate(list(self._streams.values())):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            # It may have ended meanwhile, and its task may serve something else by now.
            if id(stream) in self._streams and not self.may_stay(stream.call):
                self.ended += not stream.is_ending
                stream.end()

    def may_stay(self, call: Call) -> bool:
        """Whether the caller is still who it was and may still have this stream."""
        try:
            if self.authenticate(call.request) != call.identity:
                return False
            looks_inside = call.route.subresource in _INSIDE and is_person(call.identity)
            if looks_inside and call.services.rights.age_s > TRUST_S:
                return False
            if call.route.kind is not None:
                call.demand(call.route.verb)
        except HoldfastError:
            return False
        return True
