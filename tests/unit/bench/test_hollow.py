"""Hollow work keeps the contract of the real runtime, so that figures over it mean something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bench.hollow import HollowWork
from holdfast.agent.runtime_protocol import (
    DEADLINE_PASSED,
    STOPPED,
    Attempt,
    Check,
    Exited,
    Extend,
    Halt,
    Inventory,
    Launch,
    Launched,
    LookAround,
    NotLaunched,
    RunProbe,
)
from holdfast.host.process import clock
from holdfast.model.kinds.template import Port, TcpAction, Template

ATTEMPT = Attempt("u1", 0)
PATIENCE_S = 60.0


class Told:
    """What the machine would have been told."""

    def __init__(self) -> None:
        self._line: asyncio.Queue[Any] = asyncio.Queue()
        self.work = HollowWork("10.0.0.1", self._line.put_nowait)

    def perform(self, effect: Any) -> None:
        self.work.performers[type(effect)](effect)

    async def next(self) -> Any:
        return await asyncio.wait_for(self._line.get(), PATIENCE_S)


def launch(deadline_ms: int | None = None) -> Launch:
    template = Template(command=("sleep",), ports=(Port("http"),))
    return Launch(ATTEMPT, "default", "web-0-0", template, 1, deadline_ms, 0)


def play(story: Callable[[Told], Awaitable[None]]) -> None:
    async def whole() -> None:
        told = Told()
        await story(told)
        told.work.close()

    asyncio.run(whole())


def test_it_starts_is_well_and_stops_when_asked() -> None:
    """Each word has the answer that the agent waits for."""

    async def story(told: Told) -> None:
        told.perform(LookAround())
        assert await told.next() == Inventory(())
        told.perform(launch())
        begun = await told.next()
        assert isinstance(begun, Launched)
        assert begun.process.addresses["http"].startswith("10.0.0.1:")
        probe = RunProbe(ATTEMPT, Check.READINESS, TcpAction(port=80), 100)
        told.perform(probe)
        assert (await told.next()).ok
        told.perform(Halt(ATTEMPT, 0))
        ended = await told.next()
        assert isinstance(ended, Exited)
        assert (ended.process.id, ended.process.reason) == (begun.process.id, STOPPED)
        told.perform(probe)
        assert not (await told.next()).ok

    play(story)


def test_its_deadline_strikes_unless_it_is_moved() -> None:
    """As a shim does it: checked before the start, and never early."""

    async def story(told: Told) -> None:
        told.perform(launch(clock.monotonic_ms()))
        refused = await told.next()
        assert isinstance(refused, NotLaunched)
        assert refused.process.reason == DEADLINE_PASSED
        told.perform(launch(clock.monotonic_ms() + 1_000))
        assert isinstance(await told.next(), Launched)
        until_ms = clock.monotonic_ms() + 1_200
        told.perform(Extend(until_ms))
        ended = await told.next()
        assert isinstance(ended, Exited)
        assert ended.process.reason == DEADLINE_PASSED
        assert clock.monotonic_ms() >= until_ms

    play(story)
