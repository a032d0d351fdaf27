"""One kind as a cache follows it: its reflector, the stream, and the list of the resync.

`cache` opens and closes the streams; this module says when that is due.
"""

from __future__ import annotations

from holdfast.observe.reflector import Reflector
from holdfast.observe.watch_events import Follow

# A server that does not announce an interval sends a bookmark every 15 s. Longer silence than this
# means that it is gone. A stream that stays behind the list of another server for this long is
# connected to a server that is stuck.
SILENCE_MS = 45_000
# A stream that delivered events for this long was healthy.
STEADY_MS = 10_000
# How much longer than the shell a machine waits: the shell knows which server is silent, and moves
# to another one.
BEHIND_SHELL_MS = 500
# How often at most the allowed silence of a server doubles.
DOUBLINGS_MAX = 3
# A list that takes longer than this is treated as hung.
LIST_MAX_MS = 180_000


def silence_ms(within_ms: int | None) -> int:
    """How long a server may be silent that announces a bookmark within `within_ms`: twice that, so
    that a server that is slow for a moment does not lose all its readers."""
    return SILENCE_MS if within_ms is None else min(SILENCE_MS, 2 * within_ms)


class Channel:
    """One stream of a kind, or the pause until the next one."""

    __slots__ = ("failures", "informer", "opened_ms", "received_ms", "retry_at_ms", "stream")

    def __init__(self, informer: Informer) -> None:
        self.informer = informer
        self.stream = self.failures = 0
        self.opened_ms = self.received_ms = self.retry_at_ms = 0

    def gives_up_ms(self, limit_ms: int, *, is_listing: bool) -> int:
        """When an open stream is abandoned for one that may be better."""
        silent_ms = self.received_ms + limit_ms
        return min(silent_ms, self.opened_ms + LIST_MAX_MS) if is_listing else silent_ms


class Informer:
    """One kind: its reflector, the stream that delivers events, and the list of the resync."""

    def __init__(self, follow: Follow) -> None:
        self.follow = follow
        self.reflector = Reflector(follow.plural)
        self.main, self.resync = Channel(self), Channel(self)
        # When the stream last delivered something: events, or a bookmark that there are none.
        self.updated_ms = 0
        # Since when the stream delivers changes.
        self.live_ms: int | None = None
        # The deadline for the stream to deliver what the last resync showed.
        self.patience_ms = 0
        # Within which time the server sends something again, as the last bookmark said, and for how
        # long a healthy stream may therefore be silent. Both also hold for the next stream, until
        # that one announces another interval.
        self.within_ms: int | None = None
        self._limit_ms = SILENCE_MS
        self.trouble = ""

    @property
    def is_live(self) -> bool:
        """Whether the stream delivers changes, after its list if it started with one."""
        return self.live_ms is not None

    def announce(self, within_ms: int | None) -> None:
        """The server sends something again within this time."""
        self.within_ms = within_ms
        self._limit_ms = silence_ms(within_ms)
        if within_ms is not None:
            self._limit_ms += BEHIND_SHELL_MS

    @property
    def limit_ms(self) -> int:
        """How long the stream may be silent. The limit doubles with each stream that failed soon
        after it was opened: when every server is slow, moving on only adds to their work."""
        main, live_ms = self.main, self.live_ms
        if live_ms is not None and main.received_ms - live_ms >= STEADY_MS:
            return self._limit_ms
        return min(SILENCE_MS, self._limit_ms << min(main.failures, DOUBLINGS_MAX))

    @property
    def gives_up_ms(self) -> int:
        """When the stream is abandoned."""
        at_ms = self.main.gives_up_ms(self.limit_ms, is_listing=self.reflector.is_listing)
        return min(at_ms, self.patience_ms) if self.reflector.is_behind_resync else at_ms

    @property
    def due_ms(self) -> int:
        """When the next action on this kind is due."""
        main, resync = self.main, self.resync
        due_ms = self.gives_up_ms if main.stream else main.retry_at_ms
        if resync.stream:
            return min(due_ms, resync.gives_up_ms(SILENCE_MS, is_listing=True))
        if self.live_ms is not None and resync.retry_at_ms < due_ms:
            return resync.retry_at_ms
        return due_ms
