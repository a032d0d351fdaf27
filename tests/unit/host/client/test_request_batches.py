"""Typed requests are sent together; each keeps its own verdict and its own timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.request_batches import LIMITS, RequestBatches
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, RenewLease, Term
from tests.puppet import play


def renewal(number: int, scope: str = "s") -> RenewLease:
    return RenewLease(Term(scope, number))


def yes(body: bytes) -> HttpAnswer:
    """Accepts every request, at the revision that its epoch names."""
    epochs = [one["term"]["epoch"] for one in msgspec.json.decode(body)]
    items = [{"code": 200, "revision": epoch} for epoch in epochs]
    return HttpAnswer(200, msgspec.json.encode({"items": items}))


class Server:
    """Records the sizes of the bodies, and answers as scripted."""

    def __init__(self, react: Callable[[bytes], Awaitable[HttpAnswer] | HttpAnswer] = yes) -> None:
        self.sizes: list[int] = []
        self._react = react

    async def send(self, body: bytes, timeout_s: float) -> HttpAnswer:
        self.sizes.append(len(msgspec.json.decode(body)))
        assert timeout_s > 0
        answer = self._react(body)
        return answer if isinstance(answer, HttpAnswer) else await answer


async def ask_all(together: RequestBatches, count: int, timeout_s: float = 5.0) -> list[Any]:
    asking = [together.ask(renewal(number), timeout_s) for number in range(count)]
    return await asyncio.gather(*asking, return_exceptions=True)


def test_what_is_asked_in_one_turn_travels_together_and_each_has_its_own_answer() -> None:
    async def story() -> None:
        server = Server()
        verdicts = await ask_all(RequestBatches(server.send), 600)
        assert server.sizes == [LIMITS.requests, LIMITS.requests, 600 - 2 * LIMITS.requests]
        assert verdicts == [Accepted(number) for number in range(600)]

    play(story())


def test_a_bundle_is_bounded_in_bytes() -> None:
    """A body has a size limit; one request that is larger goes alone."""

    async def story() -> None:
        server = Server()
        together = RequestBatches(server.send, msgspec.structs.replace(LIMITS, bytes=200))
        asking = [
            together.ask(renewal(n, scope="x" * (300 if n == 2 else 10)), 5.0) for n in range(5)
        ]
        assert await asyncio.gather(*asking) == [Accepted(n) for n in range(5)]
        assert server.sizes == [2, 1, 2]

    play(story())


def test_while_many_are_under_way_the_next_ones_wait_and_gather() -> None:
    """Few bodies under load, however the requests arrive."""

    async def story() -> None:
        gate = asyncio.Event()

        async def wait(body: bytes) -> HttpAnswer:
            await gate.wait()
            return yes(body)

        server = Server(wait)
        together = RequestBatches(server.send)
        asking = []
        for number in range(LIMITS.in_flight + 20):
            asking.append(asyncio.create_task(together.ask(renewal(number), 5.0)))
            # Each in a turn of its own.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert server.sizes == [1] * LIMITS.in_flight
        gate.set()
        assert await asyncio.gather(*asking) == [Accepted(n) for n in range(LIMITS.in_flight + 20)]
        assert server.sizes == [1] * LIMITS.in_flight + [20]

    play(story())


def test_one_that_was_sent_may_have_happened_and_one_in_line_did_not() -> None:
    """[N1.1]"""

    async def story() -> None:
        async def never(body: bytes) -> HttpAnswer:
            await asyncio.Event().wait()
            raise AssertionError

        together = RequestBatches(Server(never).send)
        asking = []
        for number in range(LIMITS.in_flight + 1):
            asking.append(asyncio.create_task(together.ask(renewal(number), 0.1)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        *sent, waited = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(it) for it in sent] == [OutcomeUnknown] * LIMITS.in_flight
        assert isinstance(waited, Unavailable)
        await together.close()

    play(story())


@pytest.mark.parametrize("error", [Unavailable("refused"), OutcomeUnknown("it broke")])
def test_what_the_way_says_is_said_to_each(error: HoldfastError) -> None:
    """[N1.1]"""

    async def story() -> None:
        async def broken(body: bytes) -> HttpAnswer:
            raise error

        verdicts = await ask_all(RequestBatches(Server(broken).send), 3)
        assert [type(it) for it in verdicts] == [type(error)] * 3

    play(story())


def test_a_request_that_no_server_can_read_does_not_harm_the_others() -> None:
    """One broken request must not fail 255 good ones."""

    async def story() -> None:
        def picky(body: bytes) -> HttpAnswer:
            if b'"bad"' in body:
                status = b'{"kind":"Status","message":"is no such request","code":400}'
                return HttpAnswer(400, status, "Malformed")
            return yes(body)

        server = Server(picky)
        together = RequestBatches(server.send)
        asking = [together.ask(renewal(n, "bad" if n == 1 else "good"), 5.0) for n in range(3)]
        first, second, third = await asyncio.gather(*asking)
        assert (first, third) == (Accepted(0), Accepted(2))
        assert second == Refusal(Reason.INVALID, "is no such request")
        assert server.sizes == [3, 1, 1, 1]

    play(story())


@pytest.mark.parametrize("body", [b"<html>", b'{"items":[]}', b'{"items":[{"code":200}]}'])
def test_an_answer_that_cannot_be_read_says_that_it_may_have_happened(body: bytes) -> None:
    """[N1.1]"""

    async def story() -> None:
        verdicts = await ask_all(RequestBatches(Server(lambda _: HttpAnswer(200, body)).send), 2)
        assert [type(it) for it in verdicts] == [OutcomeUnknown] * 2

    play(story())


def test_a_bug_on_the_way_is_raised_to_the_caller() -> None:
    """A caller must never wait for an answer that cannot come."""

    async def story() -> None:
        def bug(body: bytes) -> HttpAnswer:
            raise ValueError("ours")

        verdicts = await ask_all(RequestBatches(Server(bug).send), 2)
        assert [str(it) for it in verdicts] == ["ours", "ours"]

    play(story())


def test_each_of_many_has_its_refusal_as_the_authority_made_it() -> None:
    async def story() -> None:
        status = {
            "message": "node n1 is full",
            "code": 403,
            "details": {"causes": [{"reason": "NodeFull", "message": "n1", "field": "node"}]},
        }
        items = [
            {"code": 403, "reason": "NodeFull", "status": status},
            {"code": 503, "reason": "Unavailable", "status": {"message": "later", "code": 503}},
            {"code": 504, "reason": "OutcomeUnknown", "status": {"message": "lost", "code": 504}},
        ]
        answer = HttpAnswer(200, msgspec.json.encode({"items": items}))
        full, later, lost = await ask_all(RequestBatches(Server(lambda _: answer).send), 3)
        assert full == Refusal(Reason.NODE_FULL, "node n1 is full", {"node": "n1"})
        assert isinstance(later, Unavailable)
        assert isinstance(lost, OutcomeUnknown)

    play(story())
