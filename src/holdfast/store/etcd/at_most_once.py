"""Transactions that take effect at most once, and the outcome of one whose answer was lost.

A transaction with a token also compares its slot with the known state and writes the token's number
there. So it applies only while the slot is unchanged, and once applied, it can never apply again:
not by a second request with the same token, nor by one that lay in a buffer for an hour. Asking for
a fate either finds the number in the slot, or writes it there marked as withdrawn, after which a
straggler finds the slot changed. ADR 0022 has the details.

Slots of clients that died are swept after a while by the next client that appears. Sweeping early
is safe, too: a slot that is gone refuses every transaction that counts on it.
"""

from __future__ import annotations

import asyncio
import secrets
import time

from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.transaction import (
    ABSENT,
    Committed,
    Fate,
    Forgotten,
    NotApplied,
    Outcome,
    TokenApplied,
    Transaction,
)
from holdfast.store.etcd import codec
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.cluster import Cluster
from holdfast.store.etcd.layout import Layout
from holdfast.store.etcd.slots import (
    SEEN_EVERY_S,
    SLOTS_AT_ONCE,
    SLOTS_MAX,
    EtcdToken,
    Ring,
    Slots,
    TokenSlot,
    parse,
    slot_in,
)

# When more outcomes than this are unknown and no caller asks, this module asks by itself.
DOUBTS_MAX = 128
# Each failed try means that a question about another token of the same slot changed the slot.
FATE_TRIES_MAX = 5


class AtMostOnce:
    """Runs transactions with tokens for one store."""

    def __init__(self, cluster: Cluster, layout: Layout, *, timeout_s: float) -> None:
        self._cluster = cluster
        self._layout = layout
        self._timeout_s = timeout_s
        self._slots = Slots(cluster, layout, timeout_s=timeout_s)
        self._ring = Ring(secrets.token_hex(8))
        self._making = asyncio.Lock()
        self._seen_at = float("-inf")
        self._swept = False

    def new_token(self) -> str:
        return str(self._ring.issue())

    async def txn(
        self, transaction: Transaction, request: pb.TxnRequest, text: str, timeout_s: float
    ) -> Outcome:
        """Run the request of the transaction under the token."""
        deadline = time.monotonic() + timeout_s
        token = parse(text)
        ring = self._ring_of(token)
        fate = ring.known_fate(token) if ring else None
        modified = ring.usable(token, DOUBTS_MAX) if ring else ABSENT
        if fate is None and (modified == ABSENT or not self._cluster.is_connected()):
            try:
                async with asyncio.timeout(timeout_s):
                    fate, modified = await self._prepare(ring, token)
            except TimeoutError:
                raise Unavailable(
                    f"nothing was written: token {token} got no slot within {timeout_s:g} s"
                ) from None
        if fate is not None:
            return _outcome(token, fate)
        self._slots.guard(request, token, modified)
        if ring is not None and time.monotonic() - self._seen_at > SEEN_EVERY_S:
            self._seen_at = time.monotonic()
            request.success.append(self._slots.sign_of_life(token.client))
        return await self._send(transaction, request, token, modified, deadline)

    async def fate(self, text: str) -> Fate:
        """As in the contract. Raises Unavailable when it cannot be learned now; then ask again."""
        token = parse(text)
        ring = self._ring_of(token)
        known = ring.known_fate(token) if ring else None
        if known is not None:
            return known
        if ring is not None and ring.lacks_slot(token):
            await self._make_slots(ring)
        try:
            fate, modified = await self._settle(token)
        except OutcomeUnknown as error:
            raise Unavailable(
                f"the fate of token {token} is not known yet; ask again: {error.message}"
            ) from error
        if ring is not None:
            ring.settled(token, fate, modified)
            if modified == ABSENT:
                self._start_anew(ring)
        return fate

    async def close(self) -> None:
        """Leave a slot for each token that was issued and not used, so that it stays usable.

        Another store may be given the token after this one is gone.
        """
        if self._ring.has_token_without_slot():
            await self._make_slots(self._ring)

    def _ring_of(self, token: EtcdToken) -> Ring | None:
        """This client's ring; None when the token is another client's, which only etcd knows."""
        return self._ring if token.client == self._ring.client else None

    async def _prepare(self, ring: Ring | None, token: EtcdToken) -> tuple[Fate | None, int]:
        """What must be known before sending: the token's fate, or its slot's last revision."""
        if ring is None or not ring.holds(token):
            slot = await self._slots.read(token)
            return (Forgotten(), ABSENT) if slot is None else (slot.fate(token), slot.modified)
        if ring.lacks_slot(token):
            await self._make_slots(ring)
        doubt = ring.oldest_doubt(DOUBTS_MAX)
        if doubt is not None and doubt != token:
            await self.fate(str(doubt))
        # Until there is a connection nothing is sent, and the token stays unused.
        await self._cluster.ready(self._timeout_s)
        # During the wait another task may have sent the same token, and its outcome may be known.
        # The slot's present state must not be taken for that before: it would apply twice.
        fate = ring.known_fate(token)
        modified = ring.usable(token, SLOTS_MAX)
        if fate is None and modified == ABSENT:
            raise Unavailable(f"nothing was written: token {token} has no slot; try again")
        return fate, modified

    async def _send(
        self,
        transaction: Transaction,
        request: pb.TxnRequest,
        token: EtcdToken,
        modified: int,
        deadline: float,
    ) -> Outcome:
        ring = self._ring_of(token)
        was_sent = ring is None or ring.was_sent(token)
        if ring:
            ring.sending(token)
        try:
            answer = await self._cluster.txn(request, deadline - time.monotonic())
        except BaseException:
            # Also after Unavailable: nothing was written, as far as is known, but the slot is used
            # again only when etcd itself confirms it. So a wrong assumption is found in time.
            if ring:
                ring.lost(token)
            raise
        revision = answer.header.revision
        if answer.succeeded:
            if ring:
                ring.settled(token, TokenApplied(revision), revision)
            return Committed(revision)
        slot = slot_in(answer.responses[len(transaction.compares)].response_range)
        if slot is not None and slot.modified == modified and was_sent:
            # Refused now, but an earlier request with this token could still arrive when its
            # compares hold again. It must not: the caller goes on as if nothing was written.
            slot = await self._shake_off(token, slot)
            if slot is not None and slot.fate(token) is None:
                modified = slot.modified
        if slot is not None and slot.modified == modified:
            if ring:
                ring.refused(token, modified)
            return codec.outcome_of(transaction, self._layout, answer)
        return self._missed(ring, token, slot, was_sent=was_sent)

    async def _shake_off(self, token: EtcdToken, slot: TokenSlot) -> TokenSlot | None:
        try:
            return await self._slots.shake_off(token, slot)
        except HoldfastError as error:
            raise OutcomeUnknown(
                f"refused now, but an earlier request with token {token} may have been or be"
                f" applied: {error.message}"
            ) from error

    def _missed(
        self, ring: Ring | None, token: EtcdToken, slot: TokenSlot | None, *, was_sent: bool
    ) -> Outcome:
        """The slot was not as expected. Nothing was written now, but perhaps earlier."""
        if slot is None:
            if ring:
                self._start_anew(ring)
            if was_sent:
                return _outcome(token, Forgotten())
            raise Unavailable(f"nothing was written: the slot of token {token} was swept")
        fate = slot.fate(token)
        if fate is None:
            if ring:
                ring.refused(token, slot.modified)
            raise Unavailable(f"nothing was written: the slot of token {token} changed; try again")
        known = ring.known_fate(token) if ring else None
        if ring and not isinstance(fate, Forgotten):
            ring.settled(token, fate, slot.modified)
        return _outcome(token, known or fate)

    async def _settle(self, token: EtcdToken) -> tuple[Fate, int]:
        """Find the outcome, or make sure that the transaction never takes effect."""
        slot = await self._slots.read(token)
        for _ in range(FATE_TRIES_MAX):
            if slot is None:
                # Never made, or swept. Either way no transaction can rely on it any more.
                return Forgotten(), ABSENT
            fate = slot.fate(token)
            if fate is not None:
                return fate, slot.modified
            slot = await self._slots.withdraw(token, slot)
        raise Unavailable(f"the fate of token {token} is not known yet: its slot keeps changing")

    async def _make_slots(self, ring: Ring) -> None:
        """Create the issued slots in etcd.

        No transaction ever relies on a slot that does not exist: otherwise a straggler could apply
        after the slot was withdrawn and then swept.
        """
        async with self._making:
            missing = ring.missing()
            for first in range(0, len(missing), SLOTS_AT_ONCE):
                some = missing[first : first + SLOTS_AT_ONCE]
                ring.made(await self._slots.make(ring.client, some))
                self._seen_at = time.monotonic()
        if not self._swept:
            self._swept = True
            await self._slots.sweep()

    def _start_anew(self, ring: Ring) -> None:
        """Continue under a new client name: other clients took this one for dead and swept it."""
        if ring is self._ring:
            self._ring = Ring(secrets.token_hex(8))


def _outcome(token: EtcdToken, fate: Fate) -> Outcome:
    """The answer to a transaction whose token already has a fate."""
    if isinstance(fate, TokenApplied):
        return Committed(fate.revision)
    if isinstance(fate, NotApplied):
        raise Unavailable(
            f"nothing was written: token {token} was withdrawn when its fate was asked for"
        )
    raise OutcomeUnknown(
        f"token {token} is older than the store's memory: read the objects and use a new token"
    )
