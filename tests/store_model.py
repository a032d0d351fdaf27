"""A store as a few dicts: what the conformance suite believes a store to be.

It keeps every state it ever had, so that any past revision can be compared with what a store says
of it. Where a store may choose (revisions that it skips), the model takes the store's word and
only checks that it is possible.
"""

from __future__ import annotations

from bisect import bisect_right

from holdfast.model.transaction import ABSENT, Change, Put, Record, Transaction


class Model:
    """The states of a store by revision."""

    def __init__(self, *, revision: int) -> None:
        self.revision = revision
        self.compacted = revision
        self.changes: list[Change] = []
        self._revisions = [revision]
        self._states: list[dict[str, Record]] = [{}]

    @property
    def current(self) -> dict[str, Record]:
        return self._states[-1]

    def at(self, revision: int) -> dict[str, Record]:
        """The state as of a revision, also of one between two writes."""
        return self._states[bisect_right(self._revisions, revision) - 1]

    def holds(self, transaction: Transaction) -> bool:
        return all(self.modified(c.key) == c.modified for c in transaction.compares)

    def modified(self, key: str) -> int:
        record = self.current.get(key)
        return ABSENT if record is None else record.modified

    def has_effect(self, transaction: Transaction) -> bool:
        return any(isinstance(w, Put) or w.key in self.current for w in transaction.writes)

    def write(self, transaction: Transaction, revision: int) -> None:
        """Take over the writes at the revision that the store gave them."""
        state = dict(self.current)
        for write in transaction.writes:
            if isinstance(write, Put):
                created = state[write.key].created if write.key in state else revision
                state[write.key] = Record(write.key, write.value, created, revision)
                self.changes.append(Change(revision, write.key, write.value, created))
            elif state.pop(write.key, None) is not None:
                self.changes.append(Change(revision, write.key, None, ABSENT))
        self._revisions.append(revision)
        self._states.append(state)
        self.revision = revision

    def between(self, prefix: str, after: int, upto: int) -> tuple[Change, ...]:
        """What a watch must deliver when it moves from one revision to another."""
        return tuple(
            c for c in self.changes if after < c.revision <= upto and c.key.startswith(prefix)
        )

    def records(self, start: str, end: str, at: int | None = None) -> tuple[Record, ...]:
        state = self.current if at is None else self.at(at)
        return tuple(state[key] for key in sorted(state) if start <= key < end)
