"""A server process in the simulator: authority, watch hub and renewals in one life.

In `host/plane` each of the three machines has a shell of its own; here they share a cell, so that
they live and die together as in one process. Whose call it is that was answered, its number says;
whose wake-up it is, its name.
Watch lines are turned into news by the same function that a real client uses.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    Asked,
    Changed,
    Left,
    Machine,
    Opened,
    Push,
    Range,
    Started,
    Taken,
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

# The authority's own numbers are negative, those of the renewals small. The hub's are moved beyond
# these, and the reads of single objects have numbers beyond all others.
_HUB_FROM = 1 << 40
_READS_FROM = 1 << 41
_HEARTBEATS = (Renew, HeardOf)


class SharedReader(Reader):
    """All servers of a world are told of the same changes; each is read once."""

    def __init__(self) -> None:
        super().__init__()
        self._read = lru_cache(maxsize=1024)(self._read_once)

    def read(self, kind: Kind, value: bytes, revision: int) -> Entry:
        return self._read(kind.plural, value, revision)

    def _read_once(self, plural: str, value: bytes, revision: int) -> Entry:
        return super().read(kind_of_plural(plural), value, revision)


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


@lru_cache(maxsize=256)
def _piece(plural: str, piece: bytes) -> tuple[News, ...]:
    """All lines of a piece; those who are told nothing but a revision are told the same."""
    return tuple([_news(plural, line) for line in piece.split(b"\n") if line])


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
        self._plurals: dict[int, str] = {}
        self._reads = _READS_FROM
        self._reading: dict[int, tuple[int, str]] = {}
        self._wakes: dict[str, Machine] = {}

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        # In the order of how often they come.
        match stimulus:
            case Answered(call=call):
                if call < 0:
                    return self._of(self.authority, stimulus, now)
                if call < _HUB_FROM:
                    return self.renewals.step(stimulus, now)
                if call < _READS_FROM:
                    return self._of_hub(Answered(call - _HUB_FROM, stimulus.body), now)
                return self._read(stimulus)
            case Asked():
                return self._asked(stimulus, now)
            case Changed():
                return self._of_hub(stimulus, now)
            case Woken(name=name):
                if self._wakes[name] is self.hub:
                    return self._of_hub(stimulus, now)
                return self._of(self._wakes[name], stimulus, now)
            case Opened():
                return self._opened(stimulus, now)
            case Left(stream=stream):
                self._plurals.pop(stream, None)
                return self._of_hub(stimulus, now)
            case Started():
                return [
                    *self._of(self.authority, stimulus, now),
                    *self._of_hub(stimulus, now),
                    *self.renewals.step(stimulus, now),
                ]
        return []

    def _asked(self, asked: Asked, now: Instant) -> Sequence[Any]:
        kind = type(asked.body)
        if kind in _HEARTBEATS:
            return self.renewals.step(asked, now)
        if kind is not Get:
            return self._of(self.authority, asked, now)
        get = asked.body
        key = keys.object_key(kind_of_plural(get.plural), get.namespace, get.name)
        self._reads += 1
        self._reading[self._reads] = (asked.call, key)
        return [Range(self._reads, key, key + "\0", 1)]

    def _read(self, answered: Answered) -> list[Any]:
        call, key = self._reading.pop(answered.call)
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
        return self._of_hub(Opened(opened.stream, opened.sender, request), now)

    def _of(self, machine: Machine, stimulus: Any, now: Instant) -> Sequence[Any]:
        """What the authority or the renewals ask for, which is theirs by its numbers already."""
        effects = machine.step(stimulus, now)
        for effect in effects:
            if type(effect) is Wake:
                self._owns(machine, effect.name)
        return effects

    def _of_hub(self, stimulus: Any, now: Instant) -> list[Any]:
        """What the hub asks for; its calls are moved to numbers that nobody else has."""
        effects: list[Any] = []
        for effect in self.hub.step(stimulus, now):
            kind = type(effect)
            if kind is Push:
                effects += self._pushed(effect)
                # A simulated reader takes what it is sent; how slow the way is, the network says.
                effects += self._of_hub(Taken(effect.stream), now)
                continue
            if kind is Range:
                effect = msgspec.structs.replace(effect, call=effect.call + _HUB_FROM)
            elif kind is Wake:
                self._owns(self.hub, effect.name)
            effects.append(effect)
        return effects

    def _owns(self, machine: Machine, wake: str) -> None:
        owner = self._wakes.setdefault(wake, machine)
        invariant(owner is machine, f"two parts of a server have a wake-up named {wake}")

    def _pushed(self, push: Push) -> list[Any]:
        plural = self._plurals.get(push.stream)
        if plural is None or not push.body:
            return []
        return [Push(push.stream, _piece(plural, push.body))]
