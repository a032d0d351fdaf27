"""Virtual time: the event heap, the trace, and the checkers that run after every event.

An event is (true time in µs, number, handler, a, b). Numbers increase in the order of posting and
break ties, so the order of events depends only on the seed and the plan. The loop handles several
hundred thousand events a second; that is why it is written flat and why an event carries two plain
arguments instead of a closure.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar

from holdfast.sim.check import LIVELOCK, Checker, Commit, Violation, overrides

# The trace of a run and its digest.
#
# Two runs are the same run when their digests are equal. Every step of a machine and every commit
# adds one canonical line: the time, the machine, the type of the stimulus, the number of effects;
# for a commit its keys and a checksum of the values. Lines are hashed in bulk, because there are
# millions of them a minute.
#
# A full trace spells out stimuli and effects as well. It is several times slower, so a run is first
# made without it, and a failing run is repeated with it: the same seed gives the same run.

# Lines that are joined and hashed at once.
_BULK_LINES = 8_192
# The last lines of a full trace that a report shows.
TAIL_LINES_MAX = 60
# A longer line in a report would hide the others.
_LINE_CHARS_MAX = 400


class Trace:
    """Collects lines; `digest` may be called at any time."""

    def __init__(self, *, full: bool = False, keep_text: bool = False) -> None:
        self.full = full
        self.lines: list[str] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._tail: deque[str] = deque(maxlen=TAIL_LINES_MAX)
        self._text: list[str] | None = [] if keep_text else None

    def line(self, text: str) -> None:
        """Add a canonical line."""
        lines = self.lines
        lines.append(text)
        if len(lines) >= _BULK_LINES:
            self.flush()

    def detail(self, true_us: int, text: str) -> None:
        """Add a line of a full trace; it is part of the full trace's digest."""
        entry = f"{true_us / 1e6:14.6f} {text}"
        self.line(entry)
        self._tail.append(entry if len(entry) <= _LINE_CHARS_MAX else entry[:_LINE_CHARS_MAX] + "…")
        if self._text is not None:
            self._text.append(entry)

    def flush(self) -> None:
        if self.lines:
            self.lines.append("")
            # A lone surrogate in a body must not stop the run that shows it.
            self._hash.update("\n".join(self.lines).encode(errors="surrogatepass"))
            self.lines.clear()

    def digest(self) -> str:
        """The digest of all lines so far. A full trace has another digest than a short one."""
        self.flush()
        return self._hash.hexdigest()

    def tail(self) -> tuple[str, ...]:
        """The last lines of a full trace."""
        return tuple(self._tail)

    def text(self) -> str:
        """The whole full trace, if it was kept."""
        return "\n".join(self._text or ())


# This number of events must take at least a millisecond of virtual time.
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
        # How many faults took place, by kind.
        self.injected: dict[str, int] = {}
        self.checkers: list[Checker] = []
        self._heap: list[tuple[int, int, Handler, Any, Any]] = []
        self._numbers = itertools.count(1)
        self._after_event: list[Callable[[Any], None]] = []
        self._on_commit: list[Callable[[Any, Commit], None]] = []
        self._on_fact: list[Callable[[Any, Any], None]] = []

    def post(self, at_us: int, handler: Handler, a: Any, b: Any) -> int:
        """Call `handler(number, a, b)` at a true time; returns the event's number."""
        number = next(self._numbers)
        heappush(self._heap, (at_us, number, handler, a, b))
        return number

    def run_until(self, until_us: int) -> None:
        """Handle events in order up to and including this time."""
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
        """Add checkers; each is called only through the hooks that it overrides."""
        for checker in checkers:
            self.checkers.append(checker)
            if overrides(checker, "after_event"):
                self._after_event.append(checker.after_event)
            if overrides(checker, "on_commit"):
                self._on_commit.append(checker.on_commit)
            if overrides(checker, "on_fact"):
                self._on_fact.append(checker.on_fact)

    def checker(self, kind: type[C]) -> C:
        """The checker of this class, for scenarios that read what it counted."""
        return next(checker for checker in self.checkers if isinstance(checker, kind))

    def inject(self, kind: str) -> None:
        """Count a fault that took place."""
        self.injected[kind] = self.injected.get(kind, 0) + 1

    def fact(self, fact: Any) -> None:
        """State something as ground truth, such as the start of a process.

        Performers call this; the fact's repr is part of the trace.
        """
        self.note(f"! {fact!r}")
        for hook in self._on_fact:
            hook(self, fact)

    def committed(self, commit: Commit) -> None:
        """Run the commit hooks: a store has a new revision that no machine has seen yet."""
        for hook in self._on_commit:
            hook(self, commit)

    def note(self, text: str) -> None:
        """Add a line to the trace, short or full."""
        if self.trace.full:
            self.trace.detail(self.now_us, text)
        else:
            self.trace.line(f"{self.now_us} {text}")
