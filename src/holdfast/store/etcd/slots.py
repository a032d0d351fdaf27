"""Token slots in etcd: reading, making, withdrawing and sweeping them.

`at_most_once` decides; this module performs it in etcd. Every change compares the slot's revision,
so it does not matter how old the read was that led to it.
"""

from __future__ import annotations

import enum
import re
import time
from collections import deque
from typing import NamedTuple

import msgspec

from holdfast.model.errors import HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.model.transaction import ABSENT, Fate, Forgotten, NotApplied, TokenApplied
from holdfast.store.etcd import codec
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.cluster import Cluster
from holdfast.store.etcd.layout import Layout

# The slots of one client: which token uses which, and what is known of its outcome.
#
# Pure bookkeeping; `at_most_once` does the I/O. A token is `<client>-<slot>-<number>`. Numbers grow
# over the whole client, so within a slot a later token always has the greater number. A slot
# belongs to one token from when it is issued until its outcome is known, and then goes to the end
# of the queue: so the last token of a slot stays readable in etcd for a while, and a token whose
# outcome is unknown is never overwritten by a later one of its own client.

# How many slots are created in etcd at a time, in one transaction. It is also the number of later
# tokens during which other clients can still find an applied one.
SLOTS_AT_ONCE = 64
# More transactions than this are never in flight or in doubt at the same time.
SLOTS_MAX = 1_024
# The outcome of at least this many tokens is known without asking etcd.
FATES_MAX = 4_096

_FORM = re.compile(r"([0-9a-f]{16})-(0|[1-9][0-9]{0,3})-([1-9][0-9]{0,17})", re.ASCII)


class EtcdToken(NamedTuple):
    client: str
    slot: int
    number: int

    def __str__(self) -> str:
        return f"{self.client}-{self.slot}-{self.number}"


def parse(text: str) -> EtcdToken:
    """Parse a token that `new_token` of any client returned. Raises Invalid."""
    match = _FORM.fullmatch(text)
    if match is None or int(match[2]) >= SLOTS_MAX:
        raise Invalid(f"not a token of this store: {text!r}")
    return EtcdToken(match[1], int(match[2]), int(match[3]))


class SlotState(enum.Enum):
    """The state of a token that holds a slot."""

    HELD = enum.auto()  # issued, or refused: nothing is in flight
    SENT = enum.auto()
    DOUBT = enum.auto()  # the answer was lost


class Ring:
    """The slots of one client, as far as this process knows them."""

    def __init__(self, client: str) -> None:
        self.client = client
        self._number = 0
        # The revision at which each slot was last written, ABSENT before etcd has it.
        self._modified: list[int] = []
        self._free: deque[int] = deque()
        # Tokens by number, the oldest first.
        self._slots: dict[int, int] = {}
        self._states: dict[int, SlotState] = {}
        self._doubts: dict[int, None] = {}
        self._fates: dict[int, Fate] = {}

    def issue(self) -> EtcdToken:
        """A new token with a slot of its own."""
        slot = self._take_slot()
        self._number += 1
        self._slots[self._number] = slot
        self._states[self._number] = SlotState.HELD
        return EtcdToken(self.client, slot, self._number)

    def known_fate(self, token: EtcdToken) -> Fate | None:
        return self._fates.get(token.number)

    def holds(self, token: EtcdToken) -> bool:
        """Whether the token still has its slot, so that no other token here writes to it."""
        return self._slots.get(token.number) == token.slot

    def usable(self, token: EtcdToken, doubts_max: int) -> int:
        """The last revision of the token's slot, if the slot can be used now."""
        if len(self._doubts) > doubts_max or not self.holds(token):
            return ABSENT
        return self._modified[token.slot]

    def lacks_slot(self, token: EtcdToken) -> bool:
        """Whether the token waits for a slot that etcd does not have yet."""
        return self.holds(token) and self._modified[token.slot] == ABSENT

    def was_sent(self, token: EtcdToken) -> bool:
        """Whether a transaction with this token may be in flight or may have arrived."""
        return self._states.get(token.number, SlotState.DOUBT) is not SlotState.HELD

    def sending(self, token: EtcdToken) -> None:
        # An earlier doubt remains after a second request: its answer is not the first one's.
        if self._states.get(token.number) is SlotState.HELD:
            self._states[token.number] = SlotState.SENT

    def refused(self, token: EtcdToken, modified: int) -> None:
        """Nothing was written, and what was sent earlier cannot be: the token is unused."""
        if self.holds(token):
            self._states[token.number] = SlotState.HELD
            self._doubts.pop(token.number, None)
            self._modified[token.slot] = modified

    def lost(self, token: EtcdToken) -> None:
        """The answer did not come. The slot stays taken until the outcome is known."""
        if token.number in self._states:
            self._states[token.number] = SlotState.DOUBT
            self._doubts[token.number] = None

    def settled(self, token: EtcdToken, fate: Fate, modified: int) -> None:
        """The outcome is final, and so is the last revision of the slot."""
        self._fates[token.number] = fate
        if len(self._fates) >= 2 * FATES_MAX:
            # Half at once, so that forgetting costs a constant share of each outcome.
            self._fates = dict(list(self._fates.items())[FATES_MAX:])
        if self.holds(token):
            self._modified[token.slot] = modified
            self._release(token.number)

    def missing(self) -> list[int]:
        """Slots that etcd does not have yet."""
        return [slot for slot, modified in enumerate(self._modified) if modified == ABSENT]

    def made(self, modified: dict[int, int]) -> None:
        """Note the slots that etcd has now, with the revisions at which they were written."""
        for slot, revision in modified.items():
            self._modified[slot] = revision

    def has_token_without_slot(self) -> bool:
        """Whether a token was issued whose slot etcd does not have."""
        return any(self._modified[slot] == ABSENT for slot in self._slots.values())

    def oldest_doubt(self, more_than: int) -> EtcdToken | None:
        """The oldest token in doubt, if there are more than this many."""
        if len(self._doubts) <= more_than:
            return None
        number = next(iter(self._doubts))
        return EtcdToken(self.client, self._slots[number], number)

    def _take_slot(self) -> int:
        if not self._free and len(self._modified) < SLOTS_MAX:
            first = len(self._modified)
            self._modified += [ABSENT] * SLOTS_AT_ONCE
            self._free.extend(range(first, len(self._modified)))
        if not self._free:
            # A token that was issued long ago and is not in flight loses its slot. Using it later
            # is still safe: the slot then shows a greater number.
            idle = next((n for n, state in self._states.items() if state is SlotState.HELD), None)
            if idle is None:
                raise Unavailable(
                    f"{SLOTS_MAX} transactions are in flight or in doubt; ask for their fates"
                )
            self._release(idle)
        return self._free.popleft()

    def _release(self, number: int) -> None:
        self._free.append(self._slots.pop(number))
        self._doubts.pop(number, None)
        del self._states[number]


# A client shows that it lives at least this often while it is used, ...
SEEN_EVERY_S = 300.0
# ... and is swept when it has not for this long. Clocks of different machines are compared here, so
# the difference is much larger than their skew; an error costs one refused transaction.
DEAD_AFTER_S = 3_600.0
SWEEP_MAX = 100

_WITHDRAWN = b"!"


class TokenSlot(msgspec.Struct, frozen=True, gc=False):
    """A slot in etcd: the number of the last token, and whether it was withdrawn."""

    value: bytes
    modified: int

    def fate(self, token: EtcdToken) -> Fate | None:
        """What the slot proves about a token; None when the token may still apply."""
        number = int(self.value.removesuffix(_WITHDRAWN))
        if number < token.number:
            return None
        if number > token.number:
            return Forgotten()
        return NotApplied() if self.value.endswith(_WITHDRAWN) else TokenApplied(self.modified)


def slot_in(answer: pb.RangeResponse) -> TokenSlot | None:
    """The slot that was read; None when etcd does not have it."""
    return TokenSlot(answer.kvs[0].value, answer.kvs[0].mod_revision) if answer.kvs else None


class Slots:
    """Slots of any client, in etcd."""

    def __init__(self, cluster: Cluster, layout: Layout, *, timeout_s: float) -> None:
        self._cluster = cluster
        self._layout = layout
        self._timeout_s = timeout_s

    def guard(self, request: pb.TxnRequest, token: EtcdToken, modified: int) -> None:
        """Make the request apply only if the slot is unchanged, and write the slot with it."""
        name = self._layout.slot(token.client, token.slot)
        request.compare.append(codec.modified_at(name, modified))
        request.success.append(codec.put(name, b"%d" % token.number))
        request.failure.append(codec.read(name))

    def sign_of_life(self, client: str) -> pb.RequestOp:
        return codec.put(self._layout.client(client), b"%d" % time.time())

    async def read(self, token: EtcdToken) -> TokenSlot | None:
        """The current slot, read through the log: its absence must not be a stale answer."""
        name = self._layout.slot(token.client, token.slot)
        request = pb.TxnRequest(success=[codec.read(name), codec.delete(self._layout.none)])
        answer = await self._cluster.txn(request, self._timeout_s, writes=False)
        return slot_in(answer.responses[0].response_range)

    async def withdraw(self, token: EtcdToken, slot: TokenSlot) -> TokenSlot | None:
        """Write the token as withdrawn, unless the slot has changed; then return the slot."""
        return await self._replace(token, slot, b"%d" % token.number + _WITHDRAWN)

    async def shake_off(self, token: EtcdToken, slot: TokenSlot) -> TokenSlot | None:
        """Write the slot unchanged, so that a straggler of this token finds a new revision."""
        return await self._replace(token, slot, slot.value)

    async def _replace(self, token: EtcdToken, slot: TokenSlot, value: bytes) -> TokenSlot | None:
        name = self._layout.slot(token.client, token.slot)
        request = pb.TxnRequest(
            compare=[codec.modified_at(name, slot.modified)],
            success=[codec.put(name, value)],
            failure=[codec.read(name)],
        )
        answer = await self._cluster.txn(request, self._timeout_s)
        if answer.succeeded:
            return TokenSlot(value, answer.header.revision)
        return slot_in(answer.responses[0].response_range)

    async def make(self, client: str, slots: list[int]) -> dict[int, int]:
        """Create these slots in etcd, always together. Returns the revision."""
        names = [self._layout.slot(client, slot) for slot in slots]
        request = pb.TxnRequest(
            # The first one shows the state of all.
            compare=[codec.modified_at(names[0], ABSENT)],
            success=[*(codec.put(name, b"0") for name in names), self.sign_of_life(client)],
            failure=[codec.read(name) for name in names],
        )
        try:
            answer = await self._cluster.txn(request, self._timeout_s)
        except OutcomeUnknown as error:
            # The caller's own transaction was not sent, so its outcome is known.
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
