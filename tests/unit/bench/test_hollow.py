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


class HollowRuntime:
    """Collects the stimuli for the machine."""

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


def play(story: Callable[[HollowRuntime], Awaitable[None]]) -> None:
    async def whole() -> None:
        runtime = HollowRuntime()
        await story(runtime)
        runtime.work.close()

    asyncio.run(whole())


def test_it_starts_is_well_and_stops_when_asked() -> None:
    """Each word has the answer that the agent waits for."""

    async def story(runtime: HollowRuntime) -> None:
        runtime.perform(LookAround())
        assert await runtime.next() == Inventory(())
        runtime.perform(launch())
        begun = await runtime.next()
        assert isinstance(begun, Launched)
        assert begun.process.addresses["http"].startswith("10.0.0.1:")
        probe = RunProbe(ATTEMPT, Check.READINESS, TcpAction(port=80), 100)
        runtime.perform(probe)
        assert (await runtime.next()).ok
        runtime.perform(Halt(ATTEMPT, 0))
        ended = await runtime.next()
        assert isinstance(ended, Exited)
        assert (ended.process.id, ended.process.reason) == (begun.process.id, STOPPED)
        runtime.perform(probe)
        assert not (await runtime.next()).ok

    play(story)


def test_its_deadline_strikes_unless_it_is_moved() -> None:
    """As a shim does it: checked before the start, and never early."""

    async def story(runtime: HollowRuntime) -> None:
        runtime.perform(launch(clock.monotonic_ms()))
        refused = await runtime.next()
        assert isinstance(refused, NotLaunched)
        assert refused.process.reason == DEADLINE_PASSED
        runtime.perform(launch(clock.monotonic_ms() + 1_000))
        assert isinstance(await runtime.next(), Launched)
        until_ms = clock.monotonic_ms() + 1_200
        runtime.perform(Extend(until_ms))
        ended = await runtime.next()
        assert isinstance(ended, Exited)
        assert ended.process.reason == DEADLINE_PASSED
        assert clock.monotonic_ms() >= until_ms

    play(story)
