"""The real hub over the real memory keyspace, driven by hand, without loop or clock."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import keys
from holdfast.model.encoding.resource_versions import complete_version, parse_version
from holdfast.model.encoding.wire import encode
from holdfast.model.errors import Expired, HoldfastError
from holdfast.model.kind_declaration import Kind
from holdfast.model.machine import (
    Answer,
    Answered,
    Changed,
    End,
    Left,
    Opened,
    Push,
    Range,
    Started,
    Taken,
    Wake,
    Watch,
    Woken,
)
from holdfast.model.meta import Object
from holdfast.model.registry import kind_named
from holdfast.model.selection.field_selector import parse_field_selector
from holdfast.model.selection.selector_text import parse_label_selector
from holdfast.model.time import Instant
from holdfast.model.transaction import Delete, Put, Transaction
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_hub import WatchHub
from holdfast.observe.watchers import WatchRequest
from holdfast.store.memory import Keyspace


class Plain:
    """Objects as they are, and other forms with their name in front."""

    def __init__(self) -> None:
        self.made = 0

    def object(self, form: str, kind: Kind, data: bytes) -> bytes:
        self.made += 1
        return data if not form else b'{"%b":%b}' % (form.encode(), data)

    def bookmark(
        self, form: str, kind: Kind, revision: int, listed: int | None, within_ms: int | None
    ) -> bytes:
        body = {
            "metadata": {"resourceVersion": complete_version(revision)},
            "ends": listed is not None,
        }
        return msgspec.json.encode(body if within_ms is None else body | {"within": within_ms})


class HubRig:
    """Performs the hub's effects like a shell, one at a time."""

    def __init__(self) -> None:
        self.store = Keyspace()
        self.presentation = Plain()
        self.hub = WatchHub(self.presentation)
        self.now_ms = 0
        self.wakes: dict[str, int] = {}
        self.pushed: dict[int, list[bytes]] = {}
        self.ended: dict[int, Any] = {}
        self.answers: dict[int, Any] = {}
        self.watch: Watch | None = None
        self.delivered = 0
        self.takes = True
        self._streams = 0

    def start(self, **options: Any) -> HubRig:
        """Start or restart the hub; the store delivers what it can."""
        self.hub = WatchHub(self.presentation, **options)
        self.wakes.clear()
        self.watch = None
        self.feed(Started({}))
        while not self.hub.is_ready and self.watch is not None:
            self.deliver()
        return self

    def feed(self, stimulus: Any) -> None:
        work = [stimulus]
        while work:
            for effect in self.hub.step(work.pop(0), Instant(self.now_ms, self.now_ms)):
                work += self._perform(effect)

    def _perform(self, effect: Any) -> list[Any]:
        match effect:
            case Range():
                return [Answered(effect.call, self.answer_range(effect))]
            case Watch():
                self.watch, self.delivered = effect, effect.after
            case Push(stream=stream, body=body):
                self.pushed.setdefault(stream, []).append(body)
                return [Taken(stream)] if self.takes else []
            case End(stream=stream, body=body):
                self.ended[stream] = body
            case Wake(name=name, at_ms=at_ms):
                self.wakes[name] = at_ms
            case Answer(call=call, body=body):
                self.answers[call] = body
        return []

    def answer_range(self, effect: Range) -> Any:
        try:
            return self.store.range(effect.start, effect.end, limit=effect.limit, at=effect.at)
        except HoldfastError as error:
            return error

    # The store -----------------------------------------------------------------------------------

    def put(self, *objects: Object) -> int:
        return self.change(*objects)

    def delete(self, obj: Object) -> int:
        return self.change(gone=(obj,))

    def change(self, *objects: Object, gone: tuple[Object, ...] = ()) -> int:
        """Put some objects and delete others, all at one revision."""
        writes = [Put(keys.key_of(obj), encode(obj)) for obj in objects]
        self.store.txn(Transaction((), (*writes, *(Delete(keys.key_of(obj)) for obj in gone))))
        return self.store.revision

    def deliver(self) -> None:
        """Deliver the store's changes to the hub, or Expired if they are compacted."""
        self.deliver_only()
        self.continue_sending()

    def deliver_only(self) -> None:
        """The same, without the steps in which the hub continues sending."""
        assert self.watch is not None
        try:
            batch = self.store.changes(self.watch.prefix, after=self.delivered)
        except Expired as error:
            self.lose(error)
            return
        self.delivered = batch.revision
        self.feed(Changed(self.watch.watch, batch))

    def continue_sending(self) -> None:
        """Let the hub continue sending changes that take several steps."""
        while self.wakes.pop("send", None) is not None:
            self.feed(Woken("send"))

    def lose(self, error: HoldfastError) -> None:
        assert self.watch is not None
        self.feed(Changed(self.watch.watch, error))

    def tick(self) -> None:
        """Let the next tick come."""
        self.now_ms = max(self.now_ms, self.wakes.pop("tick"))
        self.feed(Woken("tick"))

    def bookmark(self) -> None:
        """Let the time for bookmarks come."""
        self.now_ms = max(self.now_ms, self.wakes["bookmark"])
        self.feed(Woken("bookmark"))

    # Watchers ------------------------------------------------------------------------------------

    def open(
        self,
        kind: str,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        since: int | None = None,
        **more: Any,
    ) -> int:
        found = kind_named(kind)
        selection = ObjectSelection(
            found,
            namespace,
            parse_label_selector(labels),
            parse_field_selector(fields, found.struct),
        )
        self._streams += 1
        self.feed(Opened(self._streams, "ada", WatchRequest(selection, since, **more)))
        return self._streams

    def resume(self, kind: str, version: str, **more: Any) -> int:
        """Open a watch as the HTTP server does for a client that names this version."""
        found = parse_version(version)
        return self.open(kind, since=found.revision, is_partial=not found.is_complete, **more)

    def leave(self, stream: int) -> None:
        self.feed(Left(stream))

    def events(self, stream: int) -> list[tuple[str, Any]]:
        """What a watcher received since the last call: types and objects."""
        received = b"".join(self.pushed.pop(stream, []))
        lines = [msgspec.json.decode(line) for line in received.splitlines()]
        return [(line["type"], line["object"]) for line in lines]

    def received(self, stream: int) -> list[tuple[str, str, str]]:
        """The same as types, names and versions."""
        return [
            (kind, obj["metadata"].get("name", ""), obj["metadata"]["resourceVersion"])
            for kind, obj in self.events(stream)
        ]

    def names(self, stream: int) -> list[tuple[str, str]]:
        """The same with names only."""
        return [(kind, obj["metadata"].get("name", "")) for kind, obj in self.events(stream)]
