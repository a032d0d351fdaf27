"""The trace of a run and its digest.

Two runs are the same run when their digests are equal. Every step of a machine and every commit
adds one canonical line: when, who, what kind of stimulus, how many effects; keys and a checksum of
the values for a commit. Hashing is done in bulk, because it happens millions of times a minute.

A full trace spells out stimuli and effects as well. It is several times slower, so a run is first
made without, and a failing one is repeated with it: the same seed tells the same story.
"""

from __future__ import annotations

import hashlib
from collections import deque

# So many lines are joined and hashed at once.
_BULK_LINES = 8_192
# A story keeps so many of the last lines of a full trace.
STORY_LINES_MAX = 60
# A line of a story longer than this hides the others.
_LINE_CHARS_MAX = 400


class Trace:
    """Collects lines; `digest` may be asked for at any time."""

    def __init__(self, *, full: bool = False, keep_text: bool = False) -> None:
        self.full = full
        self.lines: list[str] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._story: deque[str] = deque(maxlen=STORY_LINES_MAX)
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
        self._story.append(
            entry if len(entry) <= _LINE_CHARS_MAX else entry[:_LINE_CHARS_MAX] + "…"
        )
        if self._text is not None:
            self._text.append(entry)

    def flush(self) -> None:
        if self.lines:
            self.lines.append("")
            # A lone surrogate in a body must not stop the run that is to show it.
            self._hash.update("\n".join(self.lines).encode(errors="surrogatepass"))
            self.lines.clear()

    def digest(self) -> str:
        """Of all lines so far. A full trace has another digest than a short one."""
        self.flush()
        return self._hash.hexdigest()

    def story(self) -> tuple[str, ...]:
        """The last lines of a full trace."""
        return tuple(self._story)

    def text(self) -> str:
        """The whole full trace, if it was kept."""
        return "\n".join(self._text or ())
