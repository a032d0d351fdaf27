"""One kind as a cache follows it: its story, the stream that tells, and the list of the resync.

`cache` opens and leaves the streams; here is when that is due.
"""

from __future__ import annotations

from holdfast.observe.reflector import Reflector
from holdfast.observe.watch_events import Follow

# A server that does not say how often it gives a sign of life does so every 15 s; more silence than
# this means that nobody is there. A stream that does not catch up with a list of another server for
# so long hangs on one that is stuck.
SILENCE_MS = 45_000
# A stream that told news for so long was well.
STEADY_MS = 10_000
# How much longer than the shell a machine waits: the shell knows which server is silent, and goes
# to another one.
BEHIND_SHELL_MS = 500
# So often at most the time doubles for which a server may be silent.
DOUBLINGS_MAX = 3
# A list that takes longer than this never ends.
LIST_MAX_MS = 180_000


def silence_ms(within_ms: int | None) -> int:
    """How long a server may be silent that says within which time it gives a sign of life: twice
    that, so that one that is slow for a moment is not left by all its readers."""
    return SILENCE_MS if within_ms is None else min(SILENCE_MS, 2 * within_ms)


class Channel:
    """One stream of a kind, or the pause until the next one."""

    __slots__ = ("failures", "informer", "opened_ms", "received_ms", "retry_at_ms", "stream")

    def __init__(self, informer: Informer) -> None:
        self.informer = informer
        self.stream = self.failures = 0
        self.opened_ms = self.received_ms = self.retry_at_ms = 0

    def gives_up_ms(self, limit_ms: int, *, is_listing: bool) -> int:
        """When a stream that is open is left for one that may be better."""
        silent_ms = self.received_ms + limit_ms
        return min(silent_ms, self.opened_ms + LIST_MAX_MS) if is_listing else silent_ms


class Informer:
    """One kind: what was told of it, the stream that tells, and the list of the resync."""

    def __init__(self, follow: Follow) -> None:
        self.follow = follow
        self.reflector = Reflector(follow.plural)
        self.main, self.resync = Channel(self), Channel(self)
        # When the stream last told something, whether news or that there is none.
        self.updated_ms = 0
        # Since when the stream tells what changes.
        self.live_ms: int | None = None
        # Until when the stream may take to tell what the last audit showed.
        self.patience_ms = 0
        # When the server tells something again at the latest, as the last bookmark said. It holds
        # for the next stream as well, until that one says something else.
        self.within_ms: int | None = None
        self.trouble = ""

    @property
    def is_live(self) -> bool:
        """Whether the stream tells what changes, after its list if it began with one."""
        return self.live_ms is not None

    @property
    def limit_ms(self) -> int:
        """How long the stream may be silent. The time doubles with each stream that failed soon
        after it was opened: where every server is slow, moving on would only add to their work."""
        if self.within_ms is None:
            return SILENCE_MS
        limit_ms = silence_ms(self.within_ms) + BEHIND_SHELL_MS
        if self.live_ms is not None and self.main.received_ms - self.live_ms >= STEADY_MS:
            return limit_ms
        return min(SILENCE_MS, limit_ms << min(self.main.failures, DOUBLINGS_MAX))

    @property
    def gives_up_ms(self) -> int:
        """When the stream is left."""
        at_ms = self.main.gives_up_ms(self.limit_ms, is_listing=self.reflector.is_listing)
        return min(at_ms, self.patience_ms) if self.reflector.is_behind_resync else at_ms

    @property
    def due_ms(self) -> int:
        """When somebody has to look after it next."""
        due_ms = self.gives_up_ms if self.main.stream else self.main.retry_at_ms
        if self.resync.stream:
            return min(due_ms, self.resync.gives_up_ms(SILENCE_MS, is_listing=True))
        return min(due_ms, self.resync.retry_at_ms) if self.is_live else due_ms
