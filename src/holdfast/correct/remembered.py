"""What a controller remembers besides the cache, declared.

A reconcile follows from the view and from what its controller remembers: starts of waits on its own
clock, answers, and what events touched. Each memory is a `Remembered`, and a controller lists all
of its memories in `remembers`; a test refuses any other state. The runner calls `begin_term` at the
start of each term, so that a controller begins it like a new process, and `resync` at each resync,
after which nothing may depend on having received every event. Limits on how much is done in a time
outlast terms: otherwise a controller that loses its lease and gets it back would have them twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from typing import Generic, TypeVar

from holdfast.observe.indexer import Key, key_of
from holdfast.observe.snapshot import Snapshot

K = TypeVar("K")
V = TypeVar("V")


class Remembered(ABC):
    """One memory of a controller. See the module's docstring."""

    @abstractmethod
    def begin_term(self) -> None:
        """Forget what an earlier term learned."""

    @abstractmethod
    def resync(self, view: Snapshot) -> None:
        """Rebuild it from the view: forget what is gone, learn again what events brought."""


class Notes(dict[K, V], Remembered, Generic[K, V]):
    """A memory by key. At a resync it keeps the keys that `kept` returns, by default none."""

    def __init__(self, kept: Callable[[Snapshot], Container[K]] = lambda _view: ()) -> None:
        super().__init__()
        self._kept = kept

    def begin_term(self) -> None:
        self.clear()

    def resync(self, view: Snapshot) -> None:
        kept = self._kept(view)
        for key in [it for it in self if it not in kept]:
            del self[key]


def uids_of(*plurals: str) -> Callable[[Snapshot], set[str]]:
    """The uids of all objects of some kinds."""
    return lambda view: {it.metadata.uid for plural in plurals for it in view.all(plural)}


def keys_of(plural: str) -> Callable[[Snapshot], set[Key]]:
    """The keys of all objects of a kind."""
    return lambda view: {key_of(it) for it in view.all(plural)}


def names_of(plural: str) -> Callable[[Snapshot], set[str]]:
    """The names of all objects of a kind."""
    return lambda view: {it.name for it in view.all(plural)}
