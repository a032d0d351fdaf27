"""INV3: what was accepted is remembered for as long as it has to be, by true time."""

from __future__ import annotations

from holdfast.commit.context import Settings
from holdfast.model import keys
from holdfast.model.meta import Operation
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.books import Books

# Clocks may run so much wrong, and a decision is written a moment after it was made.
TOLERANCE = 0.98


class Remembered(Checker):
    """An operation that is forgotten too early could take effect once more."""

    invariants = ("INV3",)

    def __init__(self, books: Books, settings: Settings) -> None:
        self._books, self._settings = books, settings
        # When each operation was first seen on a record, by true time.
        self._since_ms: dict[tuple[str, str], int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        now_ms = world.now_us // 1000
        for key, old, new in self._books.changed(keys.OBJECTS):
            before = old.metadata.operations if old is not None else ()
            after = new.metadata.operations if new is not None else ()
            if before == after:
                continue
            for operation in after:
                self._since_ms.setdefault((key, operation.id), now_ms)
            is_same = old is not None and new is not None and old.metadata.uid == new.metadata.uid
            if is_same and len(after) < self._settings.operations_max:
                self._forgotten(key, before, after, now_ms)
        for key, old, new in self._books.changed(keys.OPERATIONS):
            if new is not None:
                self._since_ms.setdefault((key, new.operation.id), now_ms)
            elif old is not None:
                self._forgotten(key, (old.operation,), (), now_ms)

    def _forgotten(
        self,
        key: str,
        before: tuple[Operation, ...],
        after: tuple[Operation, ...],
        now_ms: int,
    ) -> None:
        kept = {it.id for it in after}
        for operation in before:
            if operation.id in kept:
                continue
            for_ms = now_ms - self._since_ms.get((key, operation.id), 0)
            if for_ms < self._settings.operations_kept_ms * TOLERANCE:
                self.violated("INV3", f"{operation.id} was forgotten on {key} after {for_ms} ms")
