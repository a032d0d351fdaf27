"""Requests are retried, and a caller that leaves leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.host.client.retrying import Performer, RefusedAnswer
from holdfast.model.errors import Unavailable
from holdfast.observe.operation import Nature, Send
from holdfast.observe.retry import Budget, RetryPolicy
from tests.patience import STORY_S


class _Told(Budget):
    """A clock that reports when a request waits."""

    def __init__(self) -> None:
        super().__init__(reserve=0)
        self.is_waited_for = asyncio.Event()

    def wait(self) -> bool:
        self.is_waited_for.set()
        return super().wait()


def test_a_waiter_that_is_cancelled_gives_its_place_back() -> None:
    """A client has a limited number of slots for requests that wait to be sent again."""

    async def down(_: Send) -> None:
        raise RefusedAnswer(Unavailable("too much to do"), 0)

    async def story() -> None:
        performer = Performer(RetryPolicy(tries_max=100, pause_ms=1, pause_max_ms=1))
        performer.budget = budget = _Told()
        asked = asyncio.create_task(performer.perform(Nature.READ, down))
        await budget.is_waited_for.wait()
        assert budget.waiting == 1
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert budget.waiting == 0

    asyncio.run(asyncio.wait_for(story(), STORY_S))
