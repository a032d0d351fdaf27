"""A server process in the simulator: authority, watch hub and renewals in one life.

In `host/server/server_process` each of the three machines has a shell of its own; here they share a
cell, so that they start and end together as in one process. The number of a call shows which
machine an answer is for; the name of a wake-up shows which machine asked for it. Watch lines become
watch events by the same function that a real client uses.

A server confirms its lists, as `host/api/objects/watches.py` does: a stream from the beginning
contains everything that was acknowledged before the request. After the request has arrived, the
server reads the store's revision, once for all requests that arrived meanwhile, and the hub serves
the stream when it has reached that revision. A hub that stays behind for too long refuses, so that
the client tries another server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.commit.heartbeat_intake import Renewals
from holdfast.commit.record_encoding import decode, with_version
from holdfast.commit.server import AuthorityServer
from holdfast.model import keys
from holdfast.model.encoding.resource_versions import complete_version
from holdfast.model.errors import (
    HoldfastError,
    RecordUnreadable,
    Unavailable,
    invariant,
    unreachable,
)
from holdfast.model.kind_declaration import Kind
from holdfast.model.machine import (
    Answer,
    Answered,
    Asked,
    Changed,
    End,
    Left,
    Opened,
    PlaneMachine,
    Push,
    Range,
    Started,
    Taken,
    Wake,
    Woken,
)
from holdfast.model.meta import Object
from holdfast.model.nodes.heartbeat import HeartbeatQuery, Renew
from holdfast.model.read_requests import Get, GetResult, Reach
from holdfast.model.registry import kind_of_plural
from holdfast.model.selection.field_selector import parse_field_selector
from holdfast.model.time import Instant
from holdfast.model.transaction import Page
from holdfast.observe.entries import EntryReader, ObjectEntry
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_events import (
    Follow,
    WatchEvent,
    bookmark_annotations,
    is_bookmark,
    read_line,
)
from holdfast.observe.watch_hub import WatchHub
from holdfast.observe.watchers import WatchRequest
from holdfast.sim.cell import Seat

# The authority's own call numbers are negative, those of the renewals small. The hub's are shifted
# beyond these; the reads of single objects and the confirmations of lists come after all others.
_HUB_FROM = 1 << 40
_READS_FROM = 1 << 41
_CONFIRMS_FROM = 1 << 42
# A hub may be behind the store for this long before the server refuses a list. A real server waits
# as long (AHEAD_S in `host/api/objects/reads.py`).
BEHIND_MAX_MS = 3_000
_BEHIND = "behind/"
_CONFIRMER = "reader"
_HEARTBEATS = (Renew, HeartbeatQuery)
# How many revisions a starting hub reads again. A real one reads more: here a server starts every
# few minutes, and a minute of a world has about this many.
RECENT_REVISIONS = 128


class SharedReader(EntryReader):
    """All servers of a world receive the same changes; this reader decodes each once."""

    def __init__(self) -> None:
        super().__init__()
        self._read = lru_cache(maxsize=1024)(self._read_once)

    def read(self, kind: Kind, value: bytes, revision: int) -> ObjectEntry:
        return self._read(kind.plural, value, revision)

    def _read_once(self, plural: str, value: bytes, revision: int) -> ObjectEntry:
        return super().read(kind_of_plural(plural), value, revision)


class Plain:
    """The form in which components receive objects: unchanged."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def _bookmark(revision: int, listed: int | None, within_ms: int | None) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": complete_version(revision)}
        annotations = bookmark_annotations(listed, within_ms)
        if annotations:
            metadata["annotations"] = annotations
        # Components do not read its kind; without it one line is enough for all kinds.
        return msgspec.json.encode({"metadata": metadata})

    def object(self, form: str, kind: Kind, data: bytes) -> bytes:
        return data

    def bookmark(
        self, form: str, kind: Kind, revision: int, listed: int | None, within_ms: int | None
    ) -> bytes:
        return self._bookmark(revision, listed, within_ms)


_READER = SharedReader()


@lru_cache(maxsize=4096)
def _watch_event(struct: type[Object], line: bytes) -> WatchEvent:
    """A line is the same for all watchers, and so is its event."""
    event = read_line(struct, line)
    invariant(not isinstance(event, bytes), "the hub ends a stream; it sends no errors in it")
    return event  # type: ignore[return-value]


@lru_cache(maxsize=256)
def _watch_events(plural: str, piece: bytes) -> tuple[WatchEvent, ...]:
    """The events of all lines of a piece; pieces with only a bookmark are the same for many."""
    struct = kind_of_plural(plural).struct
    return tuple([_watch_event(struct, line) for line in piece.split(b"\n") if line])


@lru_cache(maxsize=256)
def _only_bookmark(piece: bytes) -> tuple[WatchEvent, ...]:
    """The event of a piece that is one bookmark, which is the same for all kinds; or nothing."""
    is_alone = is_bookmark(piece) and piece.find(b"\n") == len(piece) - 1
    return (_watch_event(Object, piece[:-1]),) if is_alone else ()


@lru_cache(maxsize=1024)
def _selection(plural: str, namespace: str, fields: str) -> ObjectSelection:
    kind = kind_of_plural(plural)
    chosen = parse_field_selector(fields, kind.struct) if fields else ()
    return ObjectSelection(kind, namespace, None, chosen)


class SimServer:
    """See the module's docstring.

    Without `confirms` it serves at once what its hub has. Worlds that measure load use that: there
    each read of the store costs as much as a transaction, which a real confirmation does not.
    """

    def __init__(self, seat: Seat, settings: PlaneSettings, *, confirms: bool = True) -> None:
        life = f"{seat.name}/{seat.life}"
        self.authority = AuthorityServer(seat.name, seat.rng, seat.tokens, settings, life=life)
        self.hub = WatchHub(Plain(), _READER, recent=RECENT_REVISIONS)
        self.renewals = Renewals(
            seat.name,
            settings.fence,
            life=life,
            zone_silence_max_ms=settings.zone_silence_max_ms,
        )
        self.renewals.unready = self.authority.unready
        self._plurals: dict[int, str] = {}
        self._reads = _READS_FROM
        self._reading: dict[int, tuple[int, str]] = {}
        self._wakes: dict[str, PlaneMachine] = {}
        # Streams that wait: for the next read of the store, for the answer to the read that was
        # sent, and for the hub, by the number of their own call to it.
        self._is_confirming = confirms
        self._confirms = _CONFIRMS_FROM
        self._next: list[Opened] = []
        self._sent: tuple[int, list[Opened]] | None = None
        self._reaching: dict[int, Opened] = {}

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        # The most frequent first.
        match stimulus:
            case Answered():
                return self._answered(stimulus, now)
            case Asked():
                return self._asked(stimulus, now)
            case Changed():
                return self._of_hub(stimulus, now)
            case Woken():
                return self._woken(stimulus, now)
            case Opened(body=Follow(since=None)) if self._is_confirming:
                return self._confirm(stimulus, now)
            case Opened():
                return self._opened(stimulus, now)
            case Left(stream=stream):
                self._plurals.pop(stream, None)
                self._stop_waiting(stream)
                return self._of_hub(stimulus, now)
            case Started():
                return [
                    *self._of(self.authority, stimulus, now),
                    *self._of_hub(stimulus, now),
                    *self._of(self.renewals, stimulus, now),
                ]
        return []

    def _answered(self, answered: Answered, now: Instant) -> Sequence[Any]:
        call = answered.call
        if call < 0:
            return self._of(self.authority, answered, now)
        if call < _HUB_FROM:
            return self._of(self.renewals, answered, now)
        if call < _READS_FROM:
            return self._of_hub(Answered(call - _HUB_FROM, answered.body), now)
        if call < _CONFIRMS_FROM:
            return self._read(answered)
        return self._confirmed(answered, now)

    def _woken(self, woken: Woken, now: Instant) -> Sequence[Any]:
        if woken.name.startswith(_BEHIND):
            stream = int(woken.name.removeprefix(_BEHIND))
            behind = Unavailable("this server is behind the store")
            return [End(stream, behind)] if self._stop_waiting(stream) else []
        if self._wakes[woken.name] is self.hub:
            return self._of_hub(woken, now)
        return self._of(self._wakes[woken.name], woken, now)

    def _asked(self, asked: Asked, now: Instant) -> Sequence[Any]:
        get = asked.body
        if type(get) in _HEARTBEATS:
            return self._of(self.renewals, asked, now)
        if type(get) is not Get:
            return self._of(self.authority, asked, now)
        key = keys.object_key(kind_of_plural(get.plural), get.namespace, get.name)
        self._reads += 1
        self._reading[self._reads] = (asked.call, key)
        return [Range(self._reads, key, key + "\0", 1)]

    def _read(self, answered: Answered) -> list[Any]:
        call, key = self._reading.pop(answered.call)
        page = answered.body
        if not isinstance(page, Page):
            return [Answer(call, page)]
        found = None
        for record in page.records:
            try:
                found = with_version(decode(key, record.value), record.modified)
            except RecordUnreadable as error:
                return [Answer(call, Unavailable(error.message))]
        return [Answer(call, GetResult(found, page.revision))]

    def _confirm(self, opened: Opened, now: Instant) -> list[Any]:
        self._next.append(opened)
        wake = Wake(f"{_BEHIND}{opened.stream}", now.monotonic_ms + BEHIND_MAX_MS)
        # A read that is in flight may have been sent too early for this stream.
        return [wake, *(self._ask_store() if self._sent is None else ())]

    def _ask_store(self) -> list[Any]:
        self._confirms += 1
        self._sent, self._next = (self._confirms, self._next), []
        return [Range(self._confirms, keys.OBJECTS, keys.OBJECTS + "\0", 1)]

    def _confirmed(self, answered: Answered, now: Instant) -> list[Any]:
        if self._sent is None or answered.call != self._sent[0]:
            return []
        waiting, self._sent = self._sent[1], None
        page, effects = answered.body, self._ask_store() if self._next else []
        for opened in waiting:
            if not isinstance(page, Page):
                effects.append(End(opened.stream, page))
                continue
            self._confirms += 1
            self._reaching[self._confirms] = opened
            effects += self._of_hub(Asked(self._confirms, _CONFIRMER, Reach(page.revision)), now)
        return effects

    def _reached(self, answer: Answer, now: Instant) -> list[Any]:
        """The hub has reached the confirmed revision, or never will."""
        opened = self._reaching.pop(answer.call, None)
        if opened is None:
            return []
        if isinstance(answer.body, HoldfastError):
            return [End(opened.stream, answer.body)]
        return self._opened(opened, now)

    def _stop_waiting(self, stream: int) -> bool:
        """Forget a stream that waits for its confirmation. Return whether it did."""
        lists = [self._next] if self._sent is None else [self._next, self._sent[1]]
        for waiting in lists:
            for opened in waiting:
                if opened.stream == stream:
                    waiting.remove(opened)
                    return True
        for call, opened in self._reaching.items():
            if opened.stream == stream:
                del self._reaching[call]
                return True
        return False

    def _opened(self, opened: Opened, now: Instant) -> list[Any]:
        follow = cast("Follow", opened.body)
        self._plurals[opened.stream] = follow.plural
        selection = _selection(follow.plural, follow.namespace, follow.fields)
        request = WatchRequest(
            selection,
            follow.since,
            bookmarks=True,
            bookmark_ms=follow.bookmark_ms,
            marks_list_end=follow.since is None,
        )
        return self._of_hub(Opened(opened.stream, opened.sender, request), now)

    def _of(self, machine: PlaneMachine, stimulus: Any, now: Instant) -> Sequence[Any]:
        """The effects of the authority or the renewals; their call numbers are distinct already."""
        effects = machine.step(stimulus, now)
        for effect in effects:
            if type(effect) is Wake:
                self._owns(machine, effect.name)
        return effects

    def _of_hub(self, stimulus: Any, now: Instant) -> list[Any]:
        """The effects of the hub; its calls are shifted to numbers that no other machine uses."""
        return self._shifted(self.hub.step(stimulus, now), now)

    def _shifted(self, of_hub: Sequence[Any], now: Instant) -> list[Any]:
        effects: list[Any] = []
        for effect in of_hub:
            if type(effect) is Push:
                stream, piece = effect.stream, cast("bytes", effect.body)
                plural = self._plurals.get(stream)
                if piece and plural is not None:
                    effects.append(Push(stream, self._read_piece(plural, piece)))
                # A simulated reader takes what it is sent; the network decides how long that takes.
                more = self.hub.step(Taken(stream), now)
                if more:
                    effects += self._shifted(more, now)
                continue
            if type(effect) is Answer and effect.call >= _CONFIRMS_FROM:
                effects += self._reached(effect, now)
                continue
            if type(effect) is Range:
                effect = msgspec.structs.replace(effect, call=effect.call + _HUB_FROM)
            elif type(effect) is Wake:
                self._owns(self.hub, effect.name)
            effects.append(effect)
        return effects

    def _owns(self, machine: PlaneMachine, wake: str) -> None:
        owner = self._wakes.setdefault(wake, machine)
        if owner is not machine:
            unreachable(f"two parts of a server have a wake-up named {wake}")

    def _read_piece(self, plural: str, piece: bytes) -> tuple[Any, ...]:
        """What a reader of a stream gets in place of these lines."""
        return _only_bookmark(piece) or _watch_events(plural, piece)
