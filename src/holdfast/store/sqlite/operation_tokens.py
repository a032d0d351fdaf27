"""Which tokens may still be used, and which are remembered.

A token may be used for USABLE_S after it was issued and, once used, is remembered for at least as
long again. So a caller has ten minutes to ask, whenever its answer was lost. Beyond TOKENS_MAX of
them the oldest are dropped earlier. Used tokens are rows in the file, written in the transaction
that they belong to; this module only decides which may be used and which are dropped.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

from holdfast.model.errors import Invalid, Unavailable
from holdfast.store import contract
from holdfast.store.contract import TransactionToken

USABLE_S = 600.0
TOKENS_MAX = 1_000_000
# The two limits move in steps, so that moving them costs little.
_STEP_S = 30.0
STEP_TOKENS = 10_000


class TokenBook:
    """The tokens of one session, and what is still known of earlier ones.

    `issue` is called by the event loop, everything else by the writer.
    """

    def __init__(
        self, session: int, forgotten: TransactionToken, clock: Callable[[], float]
    ) -> None:
        self.session = session
        # Tokens up to this one have no rows any more.
        self.forgotten = forgotten
        # Tokens up to this one are refused, so that none is used and forgotten soon after. All of
        # earlier sessions are: their senders do not wait any more.
        self._expired = TransactionToken(session, 0)
        self._withdrawn: set[TransactionToken] = set()
        # Issued and not used yet, in the order of issue: these need no lookup.
        self._fresh: dict[TransactionToken, None] = {}
        self._numbers = itertools.count(1)
        self.issued = 0
        self._clock = clock
        # At each of these times, all tokens up to this one had been issued.
        self._marks: deque[tuple[float, TransactionToken]] = deque(
            [(clock(), TransactionToken(session, 0))]
        )

    def issue(self) -> TransactionToken:
        self.issued = next(self._numbers)
        token = TransactionToken(self.session, self.issued)
        self._fresh[token] = None
        return token

    def is_first_seen(self, token: TransactionToken) -> bool:
        """Whether a token was never presented before, so that it certainly has no row."""
        return self._fresh.pop(token, token) is None

    def check_form(self, token: TransactionToken) -> None:
        if token > TransactionToken(self.session, self.issued):
            raise Invalid(f"not a token of this store: '{token}'")

    def check_usable(self, token: TransactionToken) -> None:
        """Raise unless a token that has no row may be used now."""
        if token <= self.forgotten:
            raise contract.forgotten(token)
        if token in self._withdrawn:
            raise contract.withdrawn_error(token)
        if token <= self._expired:
            raise Unavailable(
                f"nothing was written: token {token} is too old to be used; use a new one"
            )

    def withdraw(self, token: TransactionToken) -> None:
        """Make sure that a token without a row never gets one."""
        if token > self._expired:
            self._withdrawn.add(token)

    def due(self) -> TransactionToken | None:
        """The token up to which rows may be deleted now, if there are new ones."""
        self._mark()
        now = self._clock()
        line = self.forgotten
        for time_s, token in self._marks:
            if now - time_s >= 2 * USABLE_S:
                line = max(line, token)
            if now - time_s >= USABLE_S:
                self._expire(token)
        surplus = self.issued - TOKENS_MAX
        if surplus >= STEP_TOKENS:
            line = max(line, TransactionToken(self.session, surplus // STEP_TOKENS * STEP_TOKENS))
            self._expire(line)
        # Rows are deleted in pieces, so a mark is needed until all before it are gone.
        while len(self._marks) > 1 and self._marks[0][1] <= self.forgotten:
            self._marks.popleft()
        return line if line > self.forgotten else None

    def _mark(self) -> None:
        now = self._clock()
        if now - self._marks[-1][0] >= _STEP_S:
            self._marks.append((now, TransactionToken(self.session, self.issued)))

    def _expire(self, token: TransactionToken) -> None:
        if token > self._expired:
            self._expired = token
            self._withdrawn = {t for t in self._withdrawn if t > token}
            # A copy, because the event loop goes on issuing.
            for old in list(self._fresh):
                if old > token:
                    break
                self._fresh.pop(old, None)
