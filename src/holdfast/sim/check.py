"""Checkers: invariants that are checked throughout a run.

A checker overrides the hooks that it needs, and the world calls only those. Safety is checked after
every event, every commit or every fact (ground truth that a performer states, such as the start of
a process); liveness is checked after the faults have stopped.

A checker reads the world, never changes it, and raises `Violation` through `violated`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from holdfast.model import keys
from holdfast.model.transaction import Change, Transaction

if TYPE_CHECKING:
    from holdfast.sim.world import World

# The invariant's name when the simulated code itself raised an error,
CRASHED = "CRASHED"
# … when a liveness check never ran, because the run was too short for it,
TOO_SHORT = "TOO-SHORT"
# … and when events follow each other without virtual time passing.
LIVELOCK = "LIVELOCK"


class Violation(Exception):
    """An invariant was broken. `invariant` is its id, for example INV1."""

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
    """A base class of hooks. A hook that is not overridden costs nothing."""

    # The ids of the invariants it can find broken, for reports.
    invariants: tuple[str, ...] = ()

    def after_event(self, world: World) -> None:
        """Called after every event. Keep it cheap."""

    def on_commit(self, world: World, commit: Commit) -> None:
        """Called after every revision of every store, before any machine learns of it."""

    def on_fact(self, world: World, fact: Any) -> None:
        """Called after every fact that a performer stated."""

    def on_calm(self, world: World) -> None:
        """Called once, when all faults are healed and the time to settle begins."""

    def at_end(self, world: World) -> None:
        """Called once, at the end of the run, to check what must have happened by then."""

    def violated(self, invariant: str, message: str) -> NoReturn:
        raise Violation(invariant, message)


def overrides(checker: Checker, hook: str) -> bool:
    """Whether the checker overrides this hook."""
    return getattr(type(checker), hook) is not getattr(Checker, hook)


class NothingQuarantined(Checker):
    """In a world where nothing damages records, a record in quarantine is a bug."""

    invariants = (CRASHED,)

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            if change.key.startswith(keys.QUARANTINE) and change.value is not None:
                self.violated(CRASHED, change.value.decode())


class Settles(Checker):
    """Liveness: a state is reached within a time after the faults stopped, and stays.

    `missing` describes what is missing, or returns None when the state is reached. It is called
    every `every_ms` of virtual time from the deadline on, not after each event. A longer
    `every_ms` allows a state that the step which maintains it leaves for a moment.
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
