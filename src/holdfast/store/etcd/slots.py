"""The slots as they lie in etcd: reading, making, withdrawing and sweeping them.

`once.py` decides; here is what it asks etcd to do. Every change compares the slot's revision, so it
does not matter how old the reading was that led to it.
"""

from __future__ import annotations

import time

import msgspec

from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.transaction import ABSENT
from holdfast.store.contract import Applied, Fate, Forgotten, NotApplied
from holdfast.store.etcd import codec
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.cluster import Cluster
from holdfast.store.etcd.layout import Layout
from holdfast.store.etcd.ring import Token

# A client shows that it lives at least this often while it is used, ...
SEEN_EVERY_S = 300.0
# ... and is swept when it has not for so long. Clocks of different machines are compared here, so
# the difference is much larger than their skew; being wrong costs one refused transaction.
DEAD_AFTER_S = 3_600.0
SWEEP_MAX = 100

_WITHDRAWN = b"!"


class Slot(msgspec.Struct, frozen=True, gc=False):
    """What etcd has in a slot: the number of the last token, and whether it was withdrawn."""

    value: bytes
    modified: int

    def fate(self, token: Token) -> Fate | None:
        """What the slot proves about a token; None when the token may still apply."""
        number = int(self.value.removesuffix(_WITHDRAWN))
        if number < token.number:
            return None
        if number > token.number:
            return Forgotten()
        return NotApplied() if self.value.endswith(_WITHDRAWN) else Applied(self.modified)


def slot_in(answer: pb.RangeResponse) -> Slot | None:
    """The slot that was read; None when etcd does not have it."""
    return Slot(answer.kvs[0].value, answer.kvs[0].mod_revision) if answer.kvs else None


class Slots:
    """Slots of any client, in etcd."""

    def __init__(self, cluster: Cluster, layout: Layout, *, timeout_s: float) -> None:
        self._cluster = cluster
        self._layout = layout
        self._timeout_s = timeout_s

    def guard(self, request: pb.TxnRequest, token: Token, modified: int) -> None:
        """Let the request take effect only while the slot is as it was, and change it then."""
        name = self._layout.slot(token.client, token.slot)
        request.compare.append(codec.modified_at(name, modified))
        request.success.append(codec.put(name, b"%d" % token.number))
        request.failure.append(codec.read(name))

    def sign_of_life(self, client: str) -> pb.RequestOp:
        return codec.put(self._layout.client(client), b"%d" % time.time())

    async def read(self, token: Token) -> Slot | None:
        """The slot as of now, read through the log: that it is absent must be no stale news."""
        name = self._layout.slot(token.client, token.slot)
        request = pb.TxnRequest(success=[codec.read(name), codec.delete(self._layout.none)])
        answer = await self._cluster.txn(request, self._timeout_s, writes=False)
        return slot_in(answer.responses[0].response_range)

    async def withdraw(self, token: Token, slot: Slot) -> Slot | None:
        """Write the token as withdrawn, unless the slot has changed; then the slot as it is."""
        return await self._replace(token, slot, b"%d" % token.number + _WITHDRAWN)

    async def shake_off(self, token: Token, slot: Slot) -> Slot | None:
        """Write the slot as it is, so that a straggler of this token finds it changed."""
        return await self._replace(token, slot, slot.value)

    async def _replace(self, token: Token, slot: Slot, value: bytes) -> Slot | None:
        name = self._layout.slot(token.client, token.slot)
        request = pb.TxnRequest(
            compare=[codec.modified_at(name, slot.modified)],
            success=[codec.put(name, value)],
            failure=[codec.read(name)],
        )
        answer = await self._cluster.txn(request, self._timeout_s)
        if answer.succeeded:
            return Slot(value, answer.header.revision)
        return slot_in(answer.responses[0].response_range)

    async def make(self, client: str, slots: list[int]) -> dict[int, int]:
        """Let etcd have these slots, which are always made together, and say when they were."""
        names = [self._layout.slot(client, slot) for slot in slots]
        request = pb.TxnRequest(
            # The first one stands for all.
            compare=[codec.modified_at(names[0], ABSENT)],
            success=[*(codec.put(name, b"0") for name in names), self.sign_of_life(client)],
            failure=[codec.read(name) for name in names],
        )
        try:
            answer = await self._cluster.txn(request, self._timeout_s)
        except OutcomeUnknown as error:
            # The caller's own transaction was not sent, so for it nothing is unknown.
            raise Unavailable(error.message) from error
        if answer.succeeded:
            return dict.fromkeys(slots, answer.header.revision)
        found = [slot_in(op.response_range) for op in answer.responses]
        return {n: slot.modified for n, slot in zip(slots, found, strict=True) if slot is not None}

    async def sweep(self) -> None:
        """Remove the slots of clients that are long gone."""
        first, end = self._layout.clients()
        request = pb.RangeRequest(key=first, range_end=end, limit=SWEEP_MAX)
        try:
            answer = await self._cluster.range(request, self._timeout_s)
            for kv in answer.kvs:
                if int(kv.value) < time.time() - DEAD_AFTER_S:
                    await self._sweep_one(self._layout.client_of(kv.key), kv)
        except HoldfastError:
            # Garbage can wait for the next client; the caller's transaction must not.
            return

    async def _sweep_one(self, client: str, seen: pb.KeyValue) -> None:
        request = pb.TxnRequest(
            compare=[codec.modified_at(seen.key, seen.mod_revision)],
            success=[codec.delete(*self._layout.slots(client)), codec.delete(seen.key)],
        )
        await self._cluster.txn(request, self._timeout_s)
