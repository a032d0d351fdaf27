"""Checkers: what must hold, asked all the time.

A checker overrides the hooks that it needs and no others; the world calls only those. Safety is
checked after every event, every commit or every fact (something that a performer states as ground
truth, such as the start of a process); liveness after the faults have stopped.

A checker reads the world, never changes it, and raises `Violation` by `violated`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from holdfast.model import keys
from holdfast.model.transaction import Change, Transaction

if TYPE_CHECKING:
    from holdfast.sim.world import World

# The invariant's name when the simulated code itself broke down.
CRASHED = "CRASHED"
# … when a liveness checker was never due, because the run was too short for it
TOO_SHORT = "TOO-SHORT"
# … and when a world goes on without virtual time going on.
LIVELOCK = "LIVELOCK"


class Violation(Exception):
    """A promise was broken. `invariant` is its id, for example INV1."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.message = message


class Commit(msgspec.Struct, frozen=True):
    """One revision of a store, as checkers see it."""

    store: str
    revision: int
    author: str
    transaction: Transaction
    changes: tuple[Change, ...]


class Checker:
    """Override what is needed. A hook that is not overridden costs nothing."""

    # The ids of the invariants it can find broken, for reports.
    invariants: tuple[str, ...] = ()

    def after_event(self, world: World) -> None:
        """After every event, whatever it was. Keep it cheap."""

    def on_commit(self, world: World, commit: Commit) -> None:
        """After every revision of every store, before anybody learns of it."""

    def on_fact(self, world: World, fact: Any) -> None:
        """After every fact that a performer stated."""

    def on_calm(self, world: World) -> None:
        """Once, when all faults are healed and the time to settle begins."""

    def at_end(self, world: World) -> None:
        """Once, when the run is over: what had to come about has come about."""

    def violated(self, invariant: str, message: str) -> NoReturn:
        raise Violation(invariant, message)


def overrides(checker: Checker, hook: str) -> bool:
    """Whether the checker has a hook of its own."""
    return getattr(type(checker), hook) is not getattr(Checker, hook)


class Sound(Checker):
    """No record comes into quarantine in a world where nothing damages them: that is a bug."""

    invariants = (CRASHED,)

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            if change.key.startswith(keys.QUARANTINE) and change.value is not None:
                self.violated(CRASHED, change.value.decode())


class Settles(Checker):
    """Liveness: something comes about within a time after the faults stopped, and stays.

    `missing` says in words what is missing, or None when all is well. It is asked once per
    `every_ms` of virtual time from the deadline on, not after each event: a desired state may be
    left for a moment by the very step that maintains it only if its author says so here, by a
    longer `every_ms`.
    """

    def __init__(
        self,
        invariant: str,
        missing: Callable[[World], str | None],
        *,
        within_ms: int,
        every_ms: int = 1_000,
    ) -> None:
        self.invariants = (invariant,)
        self._missing = missing
        self._within_ms = within_ms
        self._every_ms = every_ms
        self._asked = False

    def on_calm(self, world: World) -> None:
        world.post(world.now_us + self._within_ms * 1000, self._ask, world, None)

    def _ask(self, _number: int, world: World, _: None) -> None:
        self._asked = True
        reason = self._missing(world)
        if reason is not None:
            self.violated(self.invariants[0], f"after {self._within_ms / 1000:g} s: {reason}")
        world.post(world.now_us + self._every_ms * 1000, self._ask, world, None)

    def at_end(self, world: World) -> None:
        # A check that cannot fail is a defect.
        if not self._asked:
            due = f"{self.invariants[0]} is due {self._within_ms} ms after the faults"
            self.violated(TOO_SHORT, f"{due}, and the run ended before; lengthen settle_ms")
