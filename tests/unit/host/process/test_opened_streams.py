"""Streams that a machine opened: one item at a time, nothing once left, one last message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from holdfast.model.access.identity import Identity
from holdfast.model.errors import Expired, HoldfastError, Unavailable
from holdfast.model.machine import Ended, Leave, Open, Pushed, Started
from holdfast.model.time import Instant
from tests.puppet import PERSON, Puppet, obey, play, shell


class Told:
    """Sends each stream its scripted items, then ends it or waits for ever."""

    def __init__(self, *pieces: Any, error: HoldfastError | None = None, ends: bool = True) -> None:
        self._pieces, self._error, self._ends = pieces, error, ends
        self.given = 0
        self.closed = 0
        self.asked: list[tuple[str, str, Any]] = []

    async def follow(self, sender: Identity, to: str, body: Any) -> AsyncGenerator[Any, None]:
        self.asked.append((sender.name, to, body))
        try:
            for piece in self._pieces:
                self.given += 1
                yield piece
            if self._error is not None:
                raise self._error
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            self.closed += 1


def test_a_stream_brings_its_pieces_in_order_and_then_its_end() -> None:
    async def story() -> None:
        told, puppet = Told((1,), (2, 3)), Puppet(obey)
        async with shell(puppet, sources=told) as one:
            await one.ask(PERSON, [Open(4, "servers", "everything")], 5.0)
            (ended,) = await puppet.told(Ended)
            assert puppet.heard(Pushed) == [Pushed(4, (1,)), Pushed(4, (2, 3))]
            assert isinstance(ended.body, Unavailable)
            assert told.asked == [("system:server:one", "servers", "everything")]

    play(story())


@pytest.mark.parametrize("error", [Expired("too old"), Unavailable("no server is there")])
def test_an_error_ends_the_stream_and_frees_its_number_when_received(
    error: HoldfastError,
) -> None:
    async def story() -> None:
        def react(stimulus: Any, now: Instant) -> Sequence[Any]:
            if isinstance(stimulus, Ended) and len(puppet.heard(Ended)) < 3:
                return [Open(1, "servers", "again")]
            return [Open(1, "servers", "first")] if isinstance(stimulus, Started) else ()

        told = Told(error=error)
        puppet = Puppet(react)
        async with shell(puppet, sources=told):
            ended = await puppet.told(Ended, 3)
        assert ended == [Ended(1, error)] * 3
        assert [body for _, _, body in told.asked] == ["first", "again", "again"]

    play(story())


def test_a_stream_waits_for_its_machine_and_nothing_arrives_after_leave() -> None:
    """A slow machine slows its server down; an item in the queue is dropped when it leaves."""

    async def story() -> None:
        def react(stimulus: Any, now: Instant) -> Sequence[Any]:
            if isinstance(stimulus, Started):
                return [Open(1, "servers", "")]
            if isinstance(stimulus, Pushed) and stimulus.body == 3:
                # The number is free at once.
                return [Leave(1), Open(1, "elsewhere", "")]
            return ()

        told, puppet = Told(*range(1, 100)), Puppet(react)
        async with shell(puppet, sources=told):
            await puppet.until(lambda: len(puppet.heard(Pushed)) > 10)
            assert told.given <= len(puppet.heard(Pushed)) + 2
        assert [pushed.body for pushed in puppet.heard(Pushed)][:6] == [1, 2, 3, 1, 2, 3]

    play(story())


def test_leaving_a_stream_that_has_ended_or_never_was_is_nothing() -> None:
    """A machine cannot know that its stream has just ended."""

    async def story() -> None:
        told, puppet = Told(1), Puppet(obey)
        async with shell(puppet, sources=told) as one:
            await one.ask(PERSON, [Leave(9), Open(1, "servers", "")], 5.0)
            await puppet.told(Ended)
            assert await one.ask(PERSON, [Leave(1)], 5.0) == "done"

    play(story())


def test_a_stop_closes_every_stream() -> None:
    """Nothing is left behind that could still hold a connection."""

    async def story() -> None:
        told, puppet = Told(1, ends=False), Puppet(obey)
        async with shell(puppet, sources=told) as one:
            await one.ask(PERSON, [Open(n, "servers", "") for n in range(5)], 5.0)
            await puppet.told(Pushed, 5)
            assert told.closed == 0
        assert told.closed == 5

    play(story())


def test_a_shell_without_sources_ends_what_is_opened() -> None:
    """Every attempt certainly fails."""

    async def story() -> None:
        puppet = Puppet(obey)
        async with shell(puppet) as one:
            await one.ask(PERSON, [Open(1, "servers", "")], 5.0)
            (ended,) = await puppet.told(Ended)
        assert isinstance(ended.body, Unavailable)

    play(story())
