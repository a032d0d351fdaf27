"""Txn, Range and FateOf against simulated stores.

The real `Keyspace` decides; this module adds the network and faults around it: a request travels to
the store's host, is executed there at once, and its answer travels back. Both directions may lose
or delay it, so a transaction may commit though its caller gets no answer, or long after its caller
gave up or crashed. Watches are in `streams`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model.errors import HoldfastError, Unavailable, invariant, unreachable
from holdfast.model.machine import FateOf, Range, Txn
from holdfast.model.transaction import Change, Transaction
from holdfast.sim.calls import Calls
from holdfast.sim.cell import CallInFlight, Cell, Host
from holdfast.sim.check import Commit
from holdfast.sim.event_engine import Handler
from holdfast.sim.lives import Lives
from holdfast.sim.randomness import between
from holdfast.store.memory import Keyspace

# Older history is compacted, as an operator would do; otherwise long runs would only grow.
KEEP_REVISIONS = 20_000


class StoreTrouble(msgspec.Struct):
    """The sum of the active faults of one store; shares are per thousand requests."""

    # Additional time that each request takes.
    slow_ms: int = 0
    # Refused: certainly not done.
    fail_permille: int = 0
    # Done, and the answer lost.
    mute_permille: int = 0
    # Under way for longer than the caller waits, and then done.
    late_permille: int = 0
    # No request is executed before this time; then all that waited are, in order.
    stalled_until_us: int = 0


class SimStore:
    """One store of a world."""

    def __init__(self, name: str, host: Host, keyspace: Keyspace, *, raw_watches: bool) -> None:
        self.name = name
        self.host = host
        self.keyspace = keyspace
        # Whether its watches are those of a raw store, below the guard of the contract.
        self.raw_watches = raw_watches
        # How long it is busy with one request; requests queue. Zero means unlimited capacity.
        self.service_us = 0
        self.busy_until_us = 0
        # The active faults as (field of StoreTrouble, value), and their sum.
        self.troubles: list[tuple[str, int]] = []
        self.trouble: StoreTrouble | None = None
        # Watches open on it; a list, so that their order is that of opening.
        self.watches: list[Any] = []
        # Revisions whose author crashes at once, with the time it stays down.
        self.crash_author_at: dict[int, int] = {}


class Storage:
    """All stores of a world, and the performers of their requests."""

    def __init__(self, world: Lives, calls: Calls) -> None:
        self.world = world
        self.stores: dict[str, SimStore] = {}
        self._calls = calls
        self._rng = world.rng("storage")
        self._execute_handler: Handler = self._execute
        # Called with each commit and its changes, after the checkers.
        self.commit_hooks: list[Callable[[SimStore, tuple[Change, ...]], None]] = []
        world.perform(Txn, self._request)
        world.perform(Range, self._request)
        world.perform(FateOf, self._request)

    def add(
        self,
        name: str = "store",
        *,
        host: str | None = None,
        keyspace: Keyspace | None = None,
        raw_watches: bool = False,
    ) -> SimStore:
        """Add a store. Machines added with `store=name` use it."""
        invariant(name not in self.stores, f"store {name} exists already")
        home = self.world.hosts.get(host or name) or self.world.add_host(host or name)
        store = SimStore(name, home, keyspace or Keyspace(), raw_watches=raw_watches)
        self.stores[name] = store
        self.world.tokens[name] = store.keyspace
        return store

    def of(self, cell: Cell) -> SimStore:
        if cell.store is None:
            unreachable(f"{cell.name} was added without a store")
        return self.stores[cell.store]

    def _request(self, cell: Cell, effect: Any) -> None:
        call = self._calls.open(cell, effect)
        store = self.of(cell)
        world = self.world
        path = world.network.path(cell.host, store.host)
        if path.trouble is None:
            at_us = world.now_us + path.delay_us()
        else:
            # A store's protocol numbers its requests, so a duplicate is executed once.
            arrivals = world.network.arrivals(path, path.trouble, world.now_us)
            if not arrivals:
                self._calls.arm(call)
                return
            at_us = arrivals[0]
        if store.trouble is not None:
            at_us = self._delay(call, store.trouble, at_us)
        if at_us >= call.deadline_us:
            self._calls.arm(call)
        world.post(at_us, self._execute_handler, call, store)

    def _delay(self, call: CallInFlight, trouble: StoreTrouble, at_us: int) -> int:
        at_us += trouble.slow_ms * 1000
        if self._hits(trouble.late_permille):
            self.world.inject("store_late")
            timeout_us = call.effect.timeout_ms * 1000
            at_us = call.deadline_us + between(self._rng, 1, timeout_us)
        return at_us

    def _execute(self, _number: int, call: CallInFlight, store: SimStore) -> None:
        calls = self._calls
        if calls.lost_on_the_way(call.asker.host, store.host):
            calls.arm(call)
            return
        trouble = store.trouble
        if trouble is not None:
            if trouble.stalled_until_us > self.world.now_us:
                calls.arm(call)
                self.world.post(trouble.stalled_until_us, self._execute_handler, call, store)
                return
            if self._hits(trouble.fail_permille):
                self.world.inject("store_fail")
                calls.reply(call, Unavailable(f"{store.name} is failing"), store.host)
                return
        if store.service_us:
            self._queue(call, store)
        else:
            self._serve(0, call, store)

    def _queue(self, call: CallInFlight, store: SimStore) -> None:
        begins_us = max(self.world.now_us, store.busy_until_us)
        store.busy_until_us = begins_us + store.service_us
        if store.busy_until_us >= call.deadline_us:
            self._calls.arm(call)
        self.world.post(store.busy_until_us, self._serve, call, store)

    def _serve(self, _number: int, call: CallInFlight, store: SimStore) -> None:
        calls, trouble = self._calls, store.trouble
        body = self._perform(call, store)
        if trouble is not None and self._hits(trouble.mute_permille):
            self.world.inject("store_mute")
            calls.arm(call)
        else:
            calls.reply(call, body, store.host)

    def _perform(self, call: CallInFlight, store: SimStore) -> Any:
        effect, keyspace = call.effect, store.keyspace
        kind = type(effect)
        try:
            if kind is Txn:
                before = keyspace.revision
                outcome = keyspace.txn(effect.transaction, token=effect.token)
                if keyspace.revision > before:
                    self._announce(store, call.asker.name, effect.transaction)
                    self._crash_author(store, call.asker)
                return outcome
            if kind is Range:
                return keyspace.range(effect.start, effect.end, limit=effect.limit, at=effect.at)
            return keyspace.fate(effect.token)
        except HoldfastError as error:
            return error

    def write(self, store: SimStore, transaction: Transaction, author: str) -> None:
        """Write at once, without a machine of this world: a bad disk or an operator does so."""
        before = store.keyspace.revision
        store.keyspace.txn(transaction)
        if store.keyspace.revision > before:
            self._announce(store, author, transaction)

    def _announce(self, store: SimStore, author: str, transaction: Transaction) -> None:
        keyspace, world = store.keyspace, self.world
        revision = keyspace.revision
        changes = keyspace.changes("", after=revision - 1).changes
        world.note(f"{store.name}@{revision} by {author}: {_summary(changes)}")
        world.committed(Commit(store.name, revision, author, transaction, changes))
        for hook in self.commit_hooks:
            hook(store, changes)
        if revision - keyspace.compacted > 2 * KEEP_REVISIONS:
            keyspace.compact(revision - KEEP_REVISIONS)

    def _crash_author(self, store: SimStore, author: Cell) -> None:
        if store.crash_author_at:
            down_ms = store.crash_author_at.pop(store.keyspace.revision, None)
            if down_ms is not None:
                self.world.inject("crash")
                self.world.crash(author, down_ms)

    def _hits(self, permille: int) -> bool:
        return permille > 0 and self._rng.random() * 1000 < permille


def _summary(changes: tuple[Change, ...]) -> str:
    """Keys and checksums: enough to tell two histories apart, short enough for every commit."""
    return " ".join(
        f"{change.key}={'-' if change.value is None else zlib.crc32(change.value)}"
        for change in changes
    )
