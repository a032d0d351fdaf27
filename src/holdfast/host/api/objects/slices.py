"""Many requests of one body, handed to the authority a slice at a time.

A body may bring thousands. Read and sent on at once they would hold up everybody else for as long
as that takes, and a tenant would get past the fair queues by asking for much at a time. So each
slice takes its turn like a request of that cost (`turns`), and the next one is looked at when the
verdicts on this one are there. What is refused for want of a turn was not begun, and says so.
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
    """The verdict on each of so many, in order, with errors as values.

    `make` gives the request of a number when its slice has its turn, or the error that it is.
    """
    authority, identity = call.services.authority, call.identity
    verdicts: list[Any] = []
    for start in range(0, count, SLICE):
        numbers = range(start, min(count, start + SLICE))
        try:
            await call.more(len(numbers))
        except Overloaded as error:
            # The rest would be refused as well, or be done without what comes before it.
            return verdicts + [error] * (count - start)
        wanted = [make(number) for number in numbers]
        asked = [it for it in wanted if not isinstance(it, HoldfastError)]
        # When the connection closes, this is cancelled, and what is undecided is withdrawn.
        with authority.submitted(identity, asked, TIMEOUT_S) as answers:
            known = iter(answers)
            verdicts += [
                it if isinstance(it, HoldfastError) else await next(known) for it in wanted
            ]
        # A slice that cannot be read is refused without asking anybody; others have their turn.
        await asyncio.sleep(0)
    await call.wait_for_rights(*verdicts)
    return verdicts


async def yield_after_slice(number: int) -> None:
    """Let others have their turn after each slice of what is done for many in one go."""
    if number % SLICE == SLICE - 1:
        await asyncio.sleep(0)
