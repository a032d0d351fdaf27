"""Calls of a machine in flight: transactions, reads, requests to other machines.

They run concurrently, and each gets exactly one answer. Errors are returned as values: Unavailable
when it certainly did not happen, OutcomeUnknown when it may have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.host.process.peers import Peers
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable, invariant
from holdfast.model.machine import Answered, Ask, FateOf, Range, Txn
from holdfast.store.contract import Store

# A store and a peer enforce the timeout themselves and know whether the call may have happened.
# This is only a fallback for when they do not.
_SLACK_S = 0.5

Post = Callable[[Any], None]
Fail = Callable[[BaseException], None]
Call = Ask | Txn | Range | FateOf


class PendingCalls:
    """Performs `Ask`, `Txn`, `Range` and `FateOf` for one machine."""

    def __init__(
        self,
        identity: Identity,
        store: Store | None,
        peers: Peers,
        *,
        post: Post,
        fail: Fail,
        calls_max: int,
    ) -> None:
        self._identity, self._store, self._peers = identity, store, peers
        self._post, self._fail = post, fail
        self._calls_max = calls_max
        self._open: dict[int, asyncio.Future[Any]] = {}

    def ask(self, effect: Ask) -> None:
        sender, timeout_s = self._as(effect), effect.timeout_ms / 1000
        if not self._has_room(effect):
            return
        try:
            submitted = self._peers.submit(sender, effect.to, effect.body, timeout_s)
        except HoldfastError as error:
            self._post(Answered(effect.call, error))
            return
        if submitted is not None:
            self._open[effect.call] = submitted
            submitted.add_done_callback(lambda future: self._returned(effect.call, future))
            return
        self._begin(
            effect,
            lambda: self._peers.ask(sender, effect.to, effect.body, timeout_s),
            timeout_s + _SLACK_S,
        )

    def _as(self, effect: Ask) -> Identity:
        """Return the identity of the call: the machine's, or the one it acts for."""
        return Identity(name=effect.sender) if effect.sender else self._identity

    def txn(self, effect: Txn) -> None:
        store, timeout_s = self._stored(), effect.timeout_ms / 1000
        self._begin(
            effect,
            lambda: store.txn(effect.transaction, token=effect.token, timeout_s=timeout_s),
            timeout_s + _SLACK_S,
        )

    def range(self, effect: Range) -> None:
        store = self._stored()
        self._begin(
            effect,
            lambda: store.range(effect.start, effect.end, limit=effect.limit, at=effect.at),
            effect.timeout_ms / 1000,
        )

    def fate(self, effect: FateOf) -> None:
        store = self._stored()
        self._begin(effect, lambda: store.fate(effect.token), effect.timeout_ms / 1000)

    async def cancel(self) -> None:
        """Cancel all calls; their machine is gone and needs no answers."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _stored(self) -> Store:
        invariant(self._store is not None, f"{self._identity.name} has no store")
        return self._store  # type: ignore[return-value]

    def _has_room(self, effect: Call) -> bool:
        number = effect.call
        invariant(number not in self._open, f"{self._identity.name} reuses call {number} in flight")
        if len(self._open) < self._calls_max:
            return True
        busy = Unavailable(f"{self._calls_max} calls are in flight already")
        self._post(Answered(number, busy))
        return False

    def _begin(self, effect: Call, perform: Callable[[], Awaitable[Any]], timeout_s: float) -> None:
        if self._has_room(effect):
            task = asyncio.create_task(self._run(effect, perform, timeout_s))
            self._open[effect.call] = task
            task.add_done_callback(self._done)

    def _returned(self, call: int, future: asyncio.Future[Any]) -> None:
        """Deliver the answer to a call that had no task of its own."""
        del self._open[call]
        if future.cancelled():
            return
        bug = future.exception()
        if bug is not None:
            self._fail(bug)
        else:
            self._post(Answered(call, future.result()))

    async def _run(
        self, effect: Call, perform: Callable[[], Awaitable[Any]], timeout_s: float
    ) -> None:
        body: Any
        try:
            async with asyncio.timeout(timeout_s):
                body = await perform()
        except TimeoutError:
            body = _silence(effect)
        except HoldfastError as error:
            body = error
        # The machine may use the number again as soon as it has the answer.
        del self._open[effect.call]
        self._post(Answered(effect.call, body))

    def _done(self, task: asyncio.Future[None]) -> None:
        """Fail on any exception but our own errors: the machine would wait for ever."""
        if not task.cancelled():
            bug = task.exception()
            if bug is not None:
                self._fail(bug)


def _silence(effect: Call) -> HoldfastError:
    message = f"no answer to {type(effect).__name__} {effect.call} within {effect.timeout_ms} ms"
    # A read changes nothing, so its outcome is never unknown.
    if isinstance(effect, Ask | Txn):
        return OutcomeUnknown(message)
    return Unavailable(message)
