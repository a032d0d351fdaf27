"""Requests to a machine that are not answered yet.

Each gets exactly one answer: the machine's, or after its timeout an error that says whether the
machine had taken the request in. When the caller of a taken request leaves, the machine gets
`Withdrawn` and need not begin it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.machine import Answer, Asked, Withdrawn


class PendingRequest:
    """One request, first in the shell's queue and then with the machine."""

    __slots__ = ("body", "deadline_s", "future", "is_taken", "number", "sender", "timeout_s")

    def __init__(
        self,
        number: int,
        sender: str | Identity,
        body: Any,
        future: asyncio.Future[Any],
        timeout_s: float,
        deadline_s: float,
    ) -> None:
        self.number = number
        self.sender = sender
        self.body = body
        self.future = future
        self.timeout_s, self.deadline_s = timeout_s, deadline_s
        self.is_taken = False

    def take(self) -> Asked | None:
        """Return the request for the machine; None when its caller has given up."""
        if self.future.done():
            return None
        self.is_taken = True
        return Asked(self.number, self.sender, self.body)

    def loss_error(self, why: str) -> HoldfastError:
        """Return the error for a caller that gets no answer."""
        return OutcomeUnknown(why) if self.is_taken else Unavailable(f"{why}; it was not started")


class PendingRequests:
    """All requests to one machine. `post` adds to the shell's queue."""

    def __init__(self, *, post: Callable[[Any], None], asks_max: int) -> None:
        self._post = post
        self._asks_max = asks_max
        self._open: dict[int, PendingRequest] = {}
        self._number = 0
        self._closed = False
        self._emptied = asyncio.Event()
        # One timer for the earliest deadline. A timer for each would cost more than a decision may,
        # and most are answered long before.
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, sender: str | Identity, body: Any, timeout_s: float) -> asyncio.Future[Any]:
        """Accept a request. The future gets the answer, with errors as values."""
        return self.take_in(sender, body, timeout_s).future

    def take_in(self, sender: str | Identity, body: Any, timeout_s: float) -> PendingRequest:
        """Accept a request that the caller may withdraw."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        self._number += 1
        future = loop.create_future()
        inbound = PendingRequest(self._number, sender, body, future, timeout_s, deadline_s)
        if self._closed:
            future.set_result(Unavailable("the machine has stopped"))
        elif len(self._open) >= self._asks_max:
            future.set_result(Unavailable(f"{self._asks_max} requests wait already; try again"))
        else:
            self._open[inbound.number] = inbound
            if self._timer is None or deadline_s < self._timer.when():
                self._watch_time(deadline_s)
            self._post(inbound)
        return inbound

    def withdraw(self, *inbounds: PendingRequest) -> None:
        """Withdraw requests whose caller has left."""
        left = [it for it in inbounds if it.number in self._open]
        for inbound in left:
            self._settle(inbound, None)
        taken = tuple([it.number for it in left if it.is_taken])
        if taken:
            self._post(Withdrawn(taken))

    def take(self, inbound: PendingRequest) -> Asked | None:
        """Return a queued request for the machine, unless it has timed out.

        After a pause of the whole process that may be so before the timer fires.
        """
        if inbound.deadline_s <= asyncio.get_running_loop().time():
            self._settle(inbound, inbound.loss_error(f"no answer within {inbound.timeout_s:g} s"))
        asked = inbound.take()
        if asked is None:
            self._settle(inbound, None)
        return asked

    def answer(self, effect: Answer) -> None:
        """Perform `Answer`."""
        inbound = self._open.get(effect.call)
        # A caller that gave up is gone; its machine cannot know that.
        if inbound is not None:
            self._settle(inbound, effect.body)

    def close(self) -> None:
        """Accept no more requests."""
        self._closed = True

    async def drained(self, grace_s: float) -> None:
        """Wait until all are answered, or the grace period is over."""
        try:
            async with asyncio.timeout(grace_s):
                while self._open:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            # The remaining callers get OutcomeUnknown.
            return

    def drop(self) -> None:
        """Fail all waiting requests: the machine is gone."""
        self.close()
        if self._timer is not None:
            self._timer.cancel()
        for inbound in list(self._open.values()):
            self._settle(inbound, inbound.loss_error("the machine has stopped"))

    def _watch_time(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline_s, self._time_out)

    def _time_out(self) -> None:
        """Time out what is due, and wait for the next deadline."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        late = [it for it in self._open.values() if it.deadline_s <= now_s]
        for inbound in late:
            self._settle(inbound, inbound.loss_error(f"no answer within {inbound.timeout_s:g} s"))
        taken = tuple([it.number for it in late if it.is_taken])
        if taken:
            self._post(Withdrawn(taken))
        if self._open:
            self._watch_time(min(it.deadline_s for it in self._open.values()))

    def _settle(self, inbound: PendingRequest, body: Any) -> None:
        self._open.pop(inbound.number, None)
        if not inbound.future.done():
            inbound.future.set_result(body)
        if not self._open:
            self._emptied.set()
