"""The slots of one client: which token uses which, and what is known of its outcome.

Pure bookkeeping; `once.py` does the talking. A token is `<client>-<slot>-<number>`. Numbers grow
over the whole client, so within a slot a later token always has the greater number. A slot belongs
to one token from when it is issued until its outcome is known, and then goes to the end of the
queue: so the last token of a slot stays readable in etcd for a while, and a token whose outcome is
unknown is never overwritten by a later one of its own client.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from typing import NamedTuple

from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.transaction import ABSENT
from holdfast.store.contract import Fate

# Slots are made known to etcd so many at a time, in one transaction. It is also how many later
# tokens an applied one is sure to be remembered for by other clients.
SLOTS_AT_ONCE = 64
# More transactions than this are never in flight or in doubt at the same time.
SLOTS_MAX = 1_024
# Of at least so many tokens we know the outcome without asking etcd.
FATES_MAX = 4_096

_FORM = re.compile(r"([0-9a-f]{16})-(0|[1-9][0-9]{0,3})-([1-9][0-9]{0,17})", re.ASCII)


class Token(NamedTuple):
    client: str
    slot: int
    number: int

    def __str__(self) -> str:
        return f"{self.client}-{self.slot}-{self.number}"


def parse(text: str) -> Token:
    """Read a token that some client's `new_token` wrote."""
    match = _FORM.fullmatch(text)
    if match is None or int(match[2]) >= SLOTS_MAX:
        raise Invalid(f"not a token of this store: {text!r}")
    return Token(match[1], int(match[2]), int(match[3]))


class State(enum.Enum):
    """Of a token that holds a slot."""

    HELD = enum.auto()  # handed out, or refused: nothing is under way
    SENT = enum.auto()
    DOUBT = enum.auto()  # the answer was lost


class Ring:
    """The slots of one client, as far as this process knows them."""

    def __init__(self, client: str) -> None:
        self.client = client
        self._number = 0
        # When each slot was last written, ABSENT before etcd has it.
        self._modified: list[int] = []
        self._free: deque[int] = deque()
        # Tokens by number, the oldest first.
        self._slots: dict[int, int] = {}
        self._states: dict[int, State] = {}
        self._doubts: dict[int, None] = {}
        self._fates: dict[int, Fate] = {}

    def issue(self) -> Token:
        """A new token with a slot of its own."""
        slot = self._take_slot()
        self._number += 1
        self._slots[self._number] = slot
        self._states[self._number] = State.HELD
        return Token(self.client, slot, self._number)

    def known_fate(self, token: Token) -> Fate | None:
        return self._fates.get(token.number)

    def holds(self, token: Token) -> bool:
        """Whether the token still has its slot, so that nobody here writes to it but the token."""
        return self._slots.get(token.number) == token.slot

    def usable(self, token: Token, doubts_max: int) -> int:
        """When the token's slot was last written, if nothing needs to be done before using it."""
        if len(self._doubts) > doubts_max or not self.holds(token):
            return ABSENT
        return self._modified[token.slot]

    def lacks_slot(self, token: Token) -> bool:
        """Whether the token waits for a slot that etcd does not have yet."""
        return self.holds(token) and self._modified[token.slot] == ABSENT

    def was_sent(self, token: Token) -> bool:
        """Whether a transaction with this token may be under way or may have arrived."""
        return self._states.get(token.number, State.DOUBT) is not State.HELD

    def sending(self, token: Token) -> None:
        # A doubt from before outlives a second sending: the answer to that is not the first one's.
        if self._states.get(token.number) is State.HELD:
            self._states[token.number] = State.SENT

    def refused(self, token: Token, modified: int) -> None:
        """Nothing was written, and what was sent earlier cannot be: the token is unused."""
        if self.holds(token):
            self._states[token.number] = State.HELD
            self._doubts.pop(token.number, None)
            self._modified[token.slot] = modified

    def lost(self, token: Token) -> None:
        """The answer did not come. The slot stays taken until somebody learns the outcome."""
        if token.number in self._states:
            self._states[token.number] = State.DOUBT
            self._doubts[token.number] = None

    def settled(self, token: Token, fate: Fate, modified: int) -> None:
        """The outcome is known for good, and when the slot was last written."""
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
        """Etcd has these slots now, written when."""
        for slot, revision in modified.items():
            self._modified[slot] = revision

    def has_token_without_slot(self) -> bool:
        """Whether a token was handed out whose slot etcd does not have."""
        return any(self._modified[slot] == ABSENT for slot in self._slots.values())

    def oldest_doubt(self, more_than: int) -> Token | None:
        """The oldest token in doubt, if there are more than so many."""
        if len(self._doubts) <= more_than:
            return None
        number = next(iter(self._doubts))
        return Token(self.client, self._slots[number], number)

    def _take_slot(self) -> int:
        if not self._free and len(self._modified) < SLOTS_MAX:
            first = len(self._modified)
            self._modified += [ABSENT] * SLOTS_AT_ONCE
            self._free.extend(range(first, len(self._modified)))
        if not self._free:
            # A token that was handed out long ago and is not under way loses its slot. Using it
            # later is still safe: the slot then shows a greater number.
            idle = next((n for n, state in self._states.items() if state is State.HELD), None)
            if idle is None:
                raise Unavailable(
                    f"{SLOTS_MAX} transactions are under way or in doubt; ask for their fates"
                )
            self._release(idle)
        return self._free.popleft()

    def _release(self, number: int) -> None:
        self._free.append(self._slots.pop(number))
        self._doubts.pop(number, None)
        del self._states[number]
