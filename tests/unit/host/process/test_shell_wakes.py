"""Wake-ups come when they are due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.model.machine import Started, Wake, Woken
from holdfast.model.time import Instant
from tests.puppet import Puppet, play, shell


def test_a_wake_up_comes_when_it_is_due_and_replaces_one_of_its_name() -> None:
    async def story() -> None:
        def react(stimulus: Any, now: Instant) -> Sequence[Any]:
            if not isinstance(stimulus, Started):
                return ()
            at = now.monotonic_ms
            return [
                Wake("replaced", at + 1),
                Wake("replaced", at + 60_000),
                Wake("late", at + 30),
                Wake("past", at - 1_000_000),
                Wake("soon", at + 60_000),
                Wake("soon", at + 10),
            ]

        puppet = Puppet(react)
        async with shell(puppet):
            woken = await puppet.told(Woken, 3)
        assert [w.name for w in woken] == ["past", "soon", "late"]
        began = puppet.instants[0].monotonic_ms
        waited = [now.monotonic_ms - began for now in puppet.instants[1:]]
        assert waited[1] >= 10
        assert waited[2] >= 30

    play(story())
