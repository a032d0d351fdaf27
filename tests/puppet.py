"""A machine that does what a test says, for tests of what stands around machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from holdfast.host.process.shell import Shell
from holdfast.model.access.identity import Identity, server
from holdfast.model.machine import Answer, Asked
from holdfast.model.time import Instant
from holdfast.model.transaction import Compare, Put, Transaction

PERSON = Identity(name="ada")
# Nothing here takes long; a test that waits for so long waits for ever.
PATIENCE_S = 60.0

React = Callable[[Any, Instant], Sequence[Any]]


class Puppet:
    """Records every stimulus and does what the test says. A test can wait for what it received."""

    def __init__(self, react: React = lambda stimulus, now: ()) -> None:
        self.stimuli: list[Any] = []
        self.instants: list[Instant] = []
        self._react = react
        self._told = asyncio.Event()

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        self.stimuli.append(stimulus)
        self.instants.append(now)
        self._told.set()
        return self._react(stimulus, now)

    def heard(self, kind: type[Any]) -> list[Any]:
        """All stimuli of a kind so far."""
        return [stimulus for stimulus in self.stimuli if isinstance(stimulus, kind)]

    async def told(self, kind: type[Any], count: int = 1) -> list[Any]:
        """The stimuli of a kind, when this many have come."""
        await self.until(lambda: len(self.heard(kind)) >= count)
        return self.heard(kind)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for stimuli until this holds."""
        while not condition():
            self._told.clear()
            await self._told.wait()


def obey(stimulus: Any, now: Instant) -> Sequence[Any]:
    """Do what is asked for: the body of a request is the list of effects, then the answer."""
    if isinstance(stimulus, Asked):
        return [*stimulus.body, Answer(stimulus.call, "done")]
    return ()


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE_S))


def shell(machine: Puppet, **more: Any) -> Shell:
    return Shell(machine, server("one"), **more)


def put(key: str, value: bytes = b"1", modified: int = 0) -> Transaction:
    return Transaction((Compare(key, modified),), (Put(key, value),))
