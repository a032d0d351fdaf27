"""Virtual time: the event heap, and those who look on after every event.

An event is (true time in µs, number, handler, a, b). Numbers are given in the order of posting and
break ties, so the order of events depends on nothing but the seed and the plan. The loop takes some
hundred thousand events a second, which is why it is written flat and why an event carries two plain
arguments instead of a closure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar

from holdfast.sim.check import LIVELOCK, Checker, Commit, Violation, overrides
from holdfast.sim.trace import Trace

# So many events in a row must take at least a millisecond of virtual time.
_CHUNK_EVENTS = 100_000
_CHUNK_LEAST_US = 1_000

Handler = Callable[[int, Any, Any], None]
C = TypeVar("C", bound=Checker)


class Engine:
    """Time, events and checkers. A `World` is an engine with machines in it."""

    def __init__(self, *, full_trace: bool = False, keep_text: bool = False) -> None:
        self.now_us = 0
        self.events = 0
        self.trace = Trace(full=full_trace, keep_text=keep_text)
        # How many disturbances really took place, by kind.
        self.injected: dict[str, int] = {}
        self.checkers: list[Checker] = []
        self._heap: list[tuple[int, int, Handler, Any, Any]] = []
        self._numbers = itertools.count(1)
        self._after_event: list[Callable[[Any], None]] = []
        self._on_commit: list[Callable[[Any, Commit], None]] = []
        self._on_fact: list[Callable[[Any, Any], None]] = []

    def post(self, at_us: int, handler: Handler, a: Any, b: Any) -> int:
        """Have `handler(number, a, b)` called at a true time; returns the event's number."""
        number = next(self._numbers)
        heappush(self._heap, (at_us, number, handler, a, b))
        return number

    def run_until(self, until_us: int) -> None:
        """Take events in order up to and including this time."""
        heap, after_event = self._heap, self._after_event
        while True:
            began_us = self.now_us
            for _ in range(_CHUNK_EVENTS):
                if not heap:
                    self.now_us = until_us
                    return
                event = heappop(heap)
                at_us, number, handler, a, b = event
                if at_us > until_us:
                    heappush(heap, event)
                    self.now_us = until_us
                    return
                self.now_us = at_us
                self.events += 1
                handler(number, a, b)
                for hook in after_event:
                    hook(self)
            self.trace.flush()
            if self.now_us - began_us < _CHUNK_LEAST_US:
                raise Violation(LIVELOCK, f"{_CHUNK_EVENTS} events within a millisecond")

    def check(self, *checkers: Checker) -> None:
        """Add checkers; each is called through the hooks that it overrides and no others."""
        for checker in checkers:
            self.checkers.append(checker)
            if overrides(checker, "after_event"):
                self._after_event.append(checker.after_event)
            if overrides(checker, "on_commit"):
                self._on_commit.append(checker.on_commit)
            if overrides(checker, "on_fact"):
                self._on_fact.append(checker.on_fact)

    def checker(self, kind: type[C]) -> C:
        """The checker of this class, for scenarios that look at what it counted."""
        return next(checker for checker in self.checkers if isinstance(checker, kind))

    def inject(self, kind: str) -> None:
        """Count a disturbance that really took place."""
        self.injected[kind] = self.injected.get(kind, 0) + 1

    def fact(self, fact: Any) -> None:
        """State something as ground truth, such as the start of a process.

        Performers call this; the fact's repr is part of the trace.
        """
        self.note(f"! {fact!r}")
        for hook in self._on_fact:
            hook(self, fact)

    def committed(self, commit: Commit) -> None:
        """A store has a new revision; nobody has learnt of it yet."""
        for hook in self._on_commit:
            hook(self, commit)

    def note(self, text: str) -> None:
        """Add a line to the trace, short or full."""
        if self.trace.full:
            self.trace.detail(self.now_us, text)
        else:
            self.trace.line(f"{self.now_us} {text}")
