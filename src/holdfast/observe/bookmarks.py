"""When each stream gets its next bookmark: the sign that its server lives, and its revision.

`watch_hub` owns one. A stream may ask for bookmarks more often than usual, so that its reader
notices within seconds that a server hangs. Only a bounded number of streams gets that, so that the
cost of bookmarks is bounded whatever clients ask for. Each bookmark says within which time the next
one comes (`BookmarkInterval.within_ms`), and readers wait by that and not by what they asked for.

Streams that were opened together, as after a restart, would all be due together, and thousands of
bookmarks at once delay every other request. So each turn sends a few, and all that are due are sent
within a spread.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from holdfast.observe.watch_events import AGENT_BOOKMARK_MS, COMPONENT_BOOKMARK_MS

BOOKMARK_EVERY_MS = 15_000
BOOKMARK_SPREAD_MS = BOOKMARK_EVERY_MS // 2
BOOKMARK_PAUSE_MS = 250
BOOKMARKS_AT_ONCE_MIN = 4
# How many streams of one server get frequent bookmarks, by interval: a thousand a second in all.
# Agents have an interval of their own, so that any number of nodes leaves room for controllers.
FREQUENT_STREAMS_MAX = {COMPONENT_BOOKMARK_MS: 500, AGENT_BOOKMARK_MS: 2_250}


class BookmarkInterval(msgspec.Struct, frozen=True, gc=False):
    """The interval between two bookmarks of a stream, and the spread within which one is sent."""

    every_ms: int
    spread_ms: int

    @property
    def within_ms(self) -> int:
        return self.every_ms + self.spread_ms


USUAL = BookmarkInterval(BOOKMARK_EVERY_MS, BOOKMARK_SPREAD_MS)


class _Lane:
    """The streams of one interval, in the order in which they are due, with their last bookmark."""

    def __init__(self, granted: BookmarkInterval) -> None:
        self.granted = granted
        self._turns = max(1, granted.spread_ms // BOOKMARK_PAUSE_MS)
        self.marked_ms: OrderedDict[int, int] = OrderedDict()

    def due(self, now_ms: int) -> tuple[list[int], int]:
        """The streams that are due, and when to check again."""
        if not self.marked_ms:
            return [], now_ms + BOOKMARK_EVERY_MS
        every_ms = self.granted.every_ms
        left = max(BOOKMARKS_AT_ONCE_MIN, -(-len(self.marked_ms) // self._turns))
        found: list[int] = []
        for stream, marked_ms in self.marked_ms.items():
            due_ms = marked_ms + every_ms
            if due_ms > now_ms or len(found) == left:
                return self._marked(found, now_ms), max(due_ms, now_ms + BOOKMARK_PAUSE_MS)
            found.append(stream)
        return self._marked(found, now_ms), now_ms + every_ms

    def _marked(self, streams: list[int], now_ms: int) -> list[int]:
        for stream in streams:
            self.marked_ms[stream] = now_ms
            self.marked_ms.move_to_end(stream)
        return streams


class Bookmarks:
    """See the module's docstring."""

    def __init__(self) -> None:
        grants = [
            BookmarkInterval(every_ms, every_ms // 4) for every_ms in sorted(FREQUENT_STREAMS_MAX)
        ]
        self._lanes = [_Lane(granted) for granted in (*grants, USUAL)]
        self._lane_of: dict[int, _Lane] = {}

    def add(self, stream: int, wanted_ms: int, now_ms: int) -> BookmarkInterval:
        """Add a stream that was just opened. Returns its interval; 0 asks for the usual one."""
        lane = self._lane(wanted_ms or BOOKMARK_EVERY_MS)
        lane.marked_ms[stream] = now_ms
        self._lane_of[stream] = lane
        return lane.granted

    def remove(self, stream: int) -> None:
        lane = self._lane_of.pop(stream, None)
        if lane is not None:
            del lane.marked_ms[stream]

    def due(self, now_ms: int) -> tuple[list[int], int]:
        """The streams that get a bookmark in this turn, and when the next turn is."""
        found: list[int] = []
        next_ms = now_ms + BOOKMARK_EVERY_MS
        for lane in self._lanes:
            streams, lane_ms = lane.due(now_ms)
            found += streams
            next_ms = min(next_ms, lane_ms)
        return found, next_ms

    def _lane(self, wanted_ms: int) -> _Lane:
        """The first interval that is not shorter than the one wanted, and has room."""
        for lane in self._lanes[:-1]:
            room = FREQUENT_STREAMS_MAX[lane.granted.every_ms] - len(lane.marked_ms)
            if lane.granted.every_ms >= wanted_ms and room > 0:
                return lane
        return self._lanes[-1]
