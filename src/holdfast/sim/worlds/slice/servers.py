"""A server process in the simulator: authority, watch hub and renewals in one life.

In `host/plane` each of the three machines has a shell of its own; here they share a cell, so that
they live and die together as in one process. Their calls and wake-ups are kept apart by renaming.
Watch lines are turned into news by the same function that a real client uses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from holdfast.commit.context import Settings
from holdfast.commit.records import decode, versioned
from holdfast.commit.renewals import Renewals
from holdfast.commit.server import Server
from holdfast.model import keys
from holdfast.model.errors import HoldfastError, invariant
from holdfast.model.field_selector import parse_field_selector
from holdfast.model.heartbeat import HeardOf, Renew
from holdfast.model.machine import (
    Answer,
    Answered,
    Ask,
    Asked,
    Changed,
    FateOf,
    Left,
    Machine,
    Opened,
    Push,
    Range,
    Started,
    Taken,
    Txn,
    Wake,
    Woken,
)
from holdfast.model.registry import Kind, kind_of_plural
from holdfast.model.time import Instant
from holdfast.model.versions import complete_version
from holdfast.observe.entries import Entry, Reader
from holdfast.observe.hub import Hub
from holdfast.observe.news import LIST_ENDS, LISTED, Follow, Found, Get, News, read_line
from holdfast.observe.selection import Selection
from holdfast.observe.watchers import WatchRequest
from holdfast.sim.cell import Seat

# Whose number it is, by the remainder.
_PARTS = 4
_AUTHORITY, _HUB, _RENEWALS, _READS = range(_PARTS)
_CALLS = (Ask, Txn, FateOf)
_HEARTBEATS = (Renew, HeardOf)


class SharedReader(Reader):
    """All servers of a world are told of the same changes; each is read once."""

    def __init__(self) -> None:
        super().__init__()
        self._read = lru_cache(maxsize=1024)(super().read)

    def read(self, kind: Kind, value: bytes, revision: int) -> Entry:
        return self._read(kind, value, revision)


class Plain:
    """How objects look to components: as they are."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def _bookmark(kind: str, revision: int, listed: int | None) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": complete_version(revision)}
        if listed is not None:
            metadata["annotations"] = {LIST_ENDS: "true", LISTED: str(listed)}
        return msgspec.json.encode({"kind": kind, "metadata": metadata})

    def object(self, form: str, kind: Kind, data: bytes) -> bytes:
        return data

    def bookmark(self, form: str, kind: Kind, revision: int, listed: int | None) -> bytes:
        return self._bookmark(kind.name, revision, listed)


_READER = SharedReader()


@lru_cache(maxsize=4096)
def _news(plural: str, line: bytes) -> News:
    """A line is the same for all who watch, and so is what it tells."""
    news = read_line(kind_of_plural(plural).struct, line)
    invariant(not isinstance(news, bytes), "the hub ends a stream; it sends no errors in it")
    return news  # type: ignore[return-value]


@lru_cache(maxsize=1024)
def _selection(plural: str, namespace: str, fields: str) -> Selection:
    kind = kind_of_plural(plural)
    chosen = parse_field_selector(fields, kind.struct) if fields else ()
    return Selection(kind, namespace, None, chosen)


class SimServer:
    """See the module's docstring."""

    def __init__(self, seat: Seat, settings: Settings) -> None:
        self.authority = Server(seat.name, seat.rng, seat.tokens, settings)
        self.hub = Hub(Plain(), _READER)
        self.renewals = Renewals(seat.name, settings.fence)
        self._machines: tuple[Machine, ...] = (self.authority, self.hub, self.renewals)
        self._plurals: dict[int, str] = {}
        self._reads = 0
        self._reading: dict[int, tuple[int, str]] = {}

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Asked():
                return self._asked(stimulus, now)
            case Answered(call=call):
                part = call % _PARTS
                if part == _READS:
                    return self._read(stimulus)
                return self._pass(part, Answered(call // _PARTS, stimulus.body), now)
            case Changed():
                return self._pass(_HUB, stimulus, now)
            case Woken(name=name):
                whose, _, inner = name.partition("/")
                return self._pass(int(whose), Woken(inner), now)
            case Opened():
                return self._opened(stimulus, now)
            case Left(stream=stream):
                self._plurals.pop(stream, None)
                return self._pass(_HUB, stimulus, now)
            case Started():
                return [
                    effect
                    for part in range(len(self._machines))
                    for effect in self._pass(part, stimulus, now)
                ]
        return []

    def _asked(self, asked: Asked, now: Instant) -> list[Any]:
        if isinstance(asked.body, _HEARTBEATS):
            return self._pass(_RENEWALS, asked, now)
        if not isinstance(asked.body, Get):
            return self._pass(_AUTHORITY, asked, now)
        get = asked.body
        key = keys.object_key(kind_of_plural(get.plural), get.namespace, get.name)
        self._reads += 1
        self._reading[self._reads] = (asked.call, key)
        return [Range(self._reads * _PARTS + _READS, key, key + "\0", 1)]

    def _read(self, answered: Answered) -> list[Any]:
        call, key = self._reading.pop(answered.call // _PARTS)
        page = answered.body
        if isinstance(page, HoldfastError):
            return [Answer(call, page)]
        found = None
        for record in page.records:
            found = versioned(decode(key, record.value), record.modified)
        return [Answer(call, Found(found, page.revision))]

    def _opened(self, opened: Opened, now: Instant) -> list[Any]:
        follow: Follow = opened.body
        self._plurals[opened.stream] = follow.plural
        selection = _selection(follow.plural, follow.namespace, follow.fields)
        request = WatchRequest(
            selection, follow.since, bookmarks=True, marks_list_end=follow.since is None
        )
        return self._pass(_HUB, Opened(opened.stream, opened.sender, request), now)

    def _pass(self, part: int, stimulus: Any, now: Instant) -> list[Any]:
        """Let one of the machines step; what it asks for is renamed to be its own."""
        effects: list[Any] = []
        for effect in self._machines[part].step(stimulus, now):
            kind = type(effect)
            if kind is Push:
                effects += self._pushed(effect)
                # A simulated reader takes what it is sent; how slow the way is, the network says.
                effects += self._pass(_HUB, Taken(effect.stream), now)
            elif kind is Wake:
                effects.append(Wake(f"{part}/{effect.name}", effect.at_ms))
            elif kind is Range:
                call = effect.call * _PARTS + part
                effects.append(
                    Range(
                        call, effect.start, effect.end, effect.limit, effect.at, effect.timeout_ms
                    )
                )
            elif kind in _CALLS:
                call = effect.call * _PARTS + part
                effects.append(msgspec.structs.replace(effect, call=call))
            else:
                effects.append(effect)
        return effects

    def _pushed(self, push: Push) -> list[Any]:
        plural = self._plurals.get(push.stream)
        if plural is None or not push.body:
            return []
        lines = push.body.split(b"\n")
        return [Push(push.stream, tuple(_news(plural, line) for line in lines if line))]
