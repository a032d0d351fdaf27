"""A real store whose answers get lost now and then, as on a real network."""

from __future__ import annotations

import random
from typing import Any

from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.transaction import Fate, Outcome, Transaction
from holdfast.store.contract import Store


class LossyStore:
    """Loses a share of the answers to transactions, and of the answers to questions about them.

    Of the lost ones about half were committed: the caller cannot know.
    """

    def __init__(self, store: Store, share: float, seed: int) -> None:
        self._store = store
        self._share = share
        self._random = random.Random(seed)
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(
        self, transaction: Transaction, *, token: str | None = None, timeout_s: float = 5.0
    ) -> Outcome:
        if not transaction.writes or self._random.random() >= self._share:
            return await self._store.txn(transaction, token=token, timeout_s=timeout_s)
        self.lost += 1
        if self._random.random() < 0.5:
            await self._store.txn(transaction, token=token, timeout_s=timeout_s)
        raise OutcomeUnknown("the answer was lost")

    async def fate(self, token: str) -> Fate:
        if self._random.random() < self._share:
            raise Unavailable("the question was lost")
        return await self._store.fate(token)
