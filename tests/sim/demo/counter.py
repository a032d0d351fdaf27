"""A counter served over a store: the smallest service in which an answer can be lost.

Users prompt a client with an intent ("add 3"); the client asks any server; the server reads, writes
under a compare, and answers. Each intent must take effect exactly once, whatever crashes. Servers
are stateless; completed operations are stored next to the total, by client and operation number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.machine import (
    Answer,
    Answered,
    Ask,
    Asked,
    Changed,
    FateOf,
    Left,
    Opened,
    Persist,
    Push,
    Range,
    Started,
    Tokens,
    Txn,
    Wake,
    Watch,
    Woken,
)
from holdfast.model.time import Instant
from holdfast.model.transaction import (
    ABSENT,
    Batch,
    Committed,
    Compare,
    CompareFailed,
    NotApplied,
    Page,
    Put,
    Record,
    TokenApplied,
    Transaction,
)
from holdfast.sim.cell import Seat
from holdfast.sim.plan import Prompted

PREFIX = "counter/"
ATTEMPTS_MAX = 4
WORK_MAX = 200
ASK_TIMEOUT_MS = 3_000
STORE_TIMEOUT_MS = 1_000
BACKOFF_MS = 500


class Add(msgspec.Struct, frozen=True):
    """A request. `operation` numbers the client's operations; `intent` is the user's intent."""

    counter: str
    operation: int
    intent: str
    amount: int


class Added(msgspec.Struct, frozen=True):
    operation: int


class ReadTotal(msgspec.Struct, frozen=True):
    counter: str


class Total(msgspec.Struct, frozen=True):
    revision: int
    total: int


class Value(msgspec.Struct, frozen=True):
    """What the store keeps for a counter: `done` has each client's last operation."""

    total: int
    done: dict[str, int]
    # The author of this version, for the checkers.
    author: str = ""
    intent: str = ""


class IntentDone(msgspec.Struct, frozen=True):
    """The client considers an intent done: an effect that this world states as a fact."""

    counter: str
    operation: int
    intent: str


def decode(record: Record | None) -> Value:
    if record is None:
        return Value(0, {})
    return msgspec.json.decode(record.value, type=Value)


class Work:
    """One request that a server has not answered yet."""

    __slots__ = ("attempts", "call", "request", "sender", "token")

    def __init__(self, call: int, sender: str, request: Any) -> None:
        self.call = call
        self.sender = sender
        self.request = request
        self.attempts = 0
        self.token = ""


class Server:
    """Adds and reads; pushes totals to every open stream."""

    def __init__(self, seat: Seat) -> None:
        self._tokens: Tokens = seat.tokens
        self._calls = 0
        self._work: dict[int, Work] = {}
        self._streams: dict[int, str] = {}
        self._watches = 0

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        match stimulus:
            case Asked(call=call, sender=sender, body=body):
                return self._asked(Work(call, sender, body))
            case Answered(call=call, body=body):
                return self._answered(self._work.pop(call), body, now)
            case Opened(stream=stream, body=ReadTotal(counter=counter)):
                self._streams[stream] = PREFIX + counter
                return ()
            case Left(stream=stream):
                self._streams.pop(stream, None)
                return ()
            case Changed(body=body):
                return self._changed(body)
            case Started() | Woken():
                # Only new totals are pushed: a viewer requests its initial total.
                return self._read_for(Work(0, "", None))
        return ()

    def _watch(self, after: int) -> Sequence[Any]:
        self._watches += 1
        return (Watch(self._watches, PREFIX, after),)

    def _changed(self, body: Any) -> Sequence[Any]:
        if not isinstance(body, Batch):
            # Missed changes are not pushed; a viewer finds them at its next resync.
            return self._read_for(Work(0, "", None))
        return [
            Push(stream, Total(change.revision, decode_bytes(change.value).total))
            for change in body.changes
            for stream, key in self._streams.items()
            if key == change.key and change.value is not None
        ]

    def _asked(self, work: Work) -> Sequence[Any]:
        if len(self._work) >= WORK_MAX:
            return (Answer(work.call, Unavailable("too much to do")),)
        return self._read_for(work)

    def _read_for(self, work: Work) -> Sequence[Any]:
        key = PREFIX + (work.request.counter if work.request is not None else "")
        return (Range(self._track(work), key, key + "\x00", timeout_ms=STORE_TIMEOUT_MS),)

    def _answered(self, work: Work, body: Any, now: Instant) -> Sequence[Any]:
        match body:
            case Page(revision=revision) if work.request is None:
                return self._watch(revision)
            case HoldfastError() if work.request is None:
                return (Wake("watch", now.monotonic_ms + BACKOFF_MS),)
            case Page(revision=revision, records=records):
                return self._read(work, revision, records[0] if records else None)
            case Committed() | TokenApplied():
                return self._added(work)
            case CompareFailed(current=current):
                return self._decide(work, current[0])
            case OutcomeUnknown() if work.token:
                return self._unknown(work)
            case NotApplied():
                return self._read_for(work)
        return (Answer(work.call, body),)

    def _read(self, work: Work, revision: int, record: Record | None) -> Sequence[Any]:
        if isinstance(work.request, ReadTotal):
            return (Answer(work.call, Total(revision, decode(record).total)),)
        return self._decide(work, record)

    def _decide(self, work: Work, record: Record | None) -> Sequence[Any]:
        add: Add = work.request
        value = decode(record)
        if value.done.get(work.sender, 0) >= add.operation:
            return self._added(work)
        work.attempts += 1
        if work.attempts > ATTEMPTS_MAX:
            return (Answer(work.call, Unavailable("too many conflicts")),)
        done = {**value.done, work.sender: add.operation}
        after = Value(value.total + add.amount, done, work.sender, add.intent)
        key = PREFIX + add.counter
        compare = Compare(key, ABSENT if record is None else record.modified)
        transaction = Transaction((compare,), (Put(key, msgspec.json.encode(after)),))
        work.token = self._tokens.new_token()
        return (Txn(self._track(work), transaction, work.token, STORE_TIMEOUT_MS),)

    def _unknown(self, work: Work) -> Sequence[Any]:
        return (FateOf(self._track(work), work.token, STORE_TIMEOUT_MS),)

    def _added(self, work: Work) -> Sequence[Any]:
        return (Answer(work.call, Added(work.request.operation)),)

    def _track(self, work: Work) -> int:
        self._calls += 1
        self._work[self._calls] = work
        return self._calls


def decode_bytes(value: bytes | None) -> Value:
    return Value(0, {}) if value is None else msgspec.json.decode(value, type=Value)


class Memory(msgspec.Struct):
    """The durable state of a client: its operation number and the open intents of its user."""

    operation: int
    todo: list[dict[str, Any]]


class Client:
    """Carries out its user's intents one after another, each under one operation number."""

    def __init__(self, seat: Seat) -> None:
        self._rng = seat.rng
        self.memory = Memory(1, [])
        self._calls = 0
        self._waiting_for = 0

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        match stimulus:
            case Started(durable=durable):
                if "memory" in durable:
                    self.memory = msgspec.json.decode(durable["memory"], type=Memory)
                return self._next()
            case Prompted(body=body):
                self.memory.todo.append(body)
                idle = len(self.memory.todo) == 1
                return (self._persist(), *(self._next() if idle else ()))
            case Answered(call=call, body=body) if call == self._waiting_for:
                return self._answered(body, now)
            case Woken():
                return self._next()
        return ()

    def _next(self) -> Sequence[Any]:
        if not self.memory.todo:
            return ()
        intent = self.memory.todo[0]
        self._calls += 1
        self._waiting_for = self._calls
        add = Add(intent["counter"], self.memory.operation, intent["id"], intent["add"])
        return (Ask(self._calls, "api", add, ASK_TIMEOUT_MS),)

    def _answered(self, body: Any, now: Instant) -> Sequence[Any]:
        if isinstance(body, Added):
            intent = self.memory.todo.pop(0)
            done = IntentDone(intent["counter"], self.memory.operation, intent["id"])
            self.memory.operation += 1
            return (self._persist(), done, *self._next())
        return self._retry(now)

    def _retry(self, now: Instant) -> Sequence[Any]:
        wait_ms = int(BACKOFF_MS * (1 + self._rng.random()))
        return (Wake("retry", now.monotonic_ms + wait_ms),)

    def _persist(self) -> Persist:
        return Persist("memory", msgspec.json.encode(self.memory))
