"""Many requests in one body, handed to the authority a slice at a time.

A body may hold thousands. Decoded and passed on at once, they would delay all other requests, and a
tenant would get past the fair queues by sending much in one request. So each slice is admitted like
a request of that cost (`admission`), and the next one is decoded once the verdicts on this one are
known. A request that is refused for lack of a seat was not begun, and its error says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.commit.flow.overload import Overloaded
from holdfast.host.api.call import TIMEOUT_S, Call
from holdfast.model.errors import HoldfastError

# As many as the authority commits in one group.
SLICE = 256


async def decide_in_slices(call: Call, count: int, make: Callable[[int], Any]) -> list[Any]:
    """The verdicts on `count` requests, in order, with errors as values.

    `make` returns the request with a number once its slice is admitted, or the error in it.
    """
    authority, identity = call.services.authority, call.identity
    verdicts: list[Any] = []
    for start in range(0, count, SLICE):
        numbers = range(start, min(count, start + SLICE))
        try:
            await call.more(len(numbers))
        except Overloaded as error:
            # The rest would be refused as well, or would run without what comes before it.
            return verdicts + [error] * (count - start)
        wanted = [make(number) for number in numbers]
        asked = [it for it in wanted if not isinstance(it, HoldfastError)]
        # When the connection closes, this task is cancelled and undecided requests are withdrawn.
        with authority.submitted(identity, asked, TIMEOUT_S) as answers:
            known = iter(answers)
            verdicts += [
                it if isinstance(it, HoldfastError) else await next(known) for it in wanted
            ]
        # A slice of malformed requests never waits above, so other requests get a turn here.
        await asyncio.sleep(0)
    await call.wait_for_rights(*verdicts)
    return verdicts


async def yield_after_slice(number: int) -> None:
    """Let other requests run after each slice of a loop over many results."""
    if number % SLICE == SLICE - 1:
        await asyncio.sleep(0)
