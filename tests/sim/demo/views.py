"""Two remote views of a counter: a stream from a server, and a watch on the store.

A stream may lose items, repeat them or deliver old ones: the viewer takes only newer totals, and
resyncs from time to time. A watch has no gaps or is Expired: the follower lists, watches, and lists
again after Expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.model.machine import (
    Answered,
    Ask,
    Changed,
    Ended,
    Open,
    Pushed,
    Range,
    Started,
    Wake,
    Watch,
    Woken,
)
from holdfast.model.time import Instant
from holdfast.model.transaction import Batch, Page
from holdfast.sim.cell import Seat
from tests.sim.demo.counter import PREFIX, ReadTotal, Total

RESYNC_MS = 10_000
REOPEN_MS = 1_000


class Viewer:
    """Shows the total of one counter."""

    def __init__(self, seat: Seat) -> None:
        self.shown = Total(0, 0)
        self._calls = 0
        self._stream = 0

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        match stimulus:
            case Started():
                return (*self._open(), *self._resync(now))
            case Pushed(stream=stream, body=total) if stream == self._stream:
                self._show(total)
            case Answered(body=Total() as total):
                self._show(total)
            case Ended(stream=stream) if stream == self._stream:
                return (Wake("reopen", now.monotonic_ms + REOPEN_MS),)
            case Woken(name="reopen"):
                return self._open()
            case Woken(name="resync"):
                return self._resync(now)
        return ()

    def _show(self, total: Total) -> None:
        if total.revision > self.shown.revision:
            self.shown = total

    def _open(self) -> Sequence[Any]:
        self._stream += 1
        return (Open(self._stream, "api", ReadTotal("a")),)

    def _resync(self, now: Instant) -> Sequence[Any]:
        self._calls += 1
        ask = Ask(self._calls, "api", ReadTotal("a"), 3_000)
        return (ask, Wake("resync", now.monotonic_ms + RESYNC_MS))


class Follower:
    """Keeps a copy of all counters as of `revision`."""

    def __init__(self, seat: Seat) -> None:
        self.cache: dict[str, bytes] = {}
        # Zero before the first list.
        self.revision = 0
        self._calls = 0
        self._watch = 0

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        match stimulus:
            case Started() | Woken():
                return self._list()
            case Answered(body=Page() as page):
                self.cache = {record.key: record.value for record in page.records}
                self.revision = page.revision
                return self._follow()
            case Answered():
                return (Wake("list", now.monotonic_ms + REOPEN_MS),)
            case Changed(watch=watch, body=Batch() as batch) if watch == self._watch:
                self._apply(batch)
            case Changed(watch=watch) if watch == self._watch:
                return self._lost()
        return ()

    def _list(self) -> Sequence[Any]:
        self._calls += 1
        return (Range(self._calls, PREFIX, PREFIX + "\U0010ffff", timeout_ms=2_000),)

    def _lost(self) -> Sequence[Any]:
        return self._list()

    def _follow(self) -> Sequence[Any]:
        self._watch += 1
        return (Watch(self._watch, PREFIX, self.revision),)

    def _apply(self, batch: Batch) -> None:
        for change in batch.changes:
            if change.value is None:
                self.cache.pop(change.key, None)
            else:
                self.cache[change.key] = change.value
        self.revision = batch.revision
