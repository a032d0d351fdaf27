"""Keys to reconcile: each once at a time, with a pause that grows after failures.

A reconcile sees a key, never an event: however often a key is added while it waits, it is
reconciled once; if it is added while it is being reconciled, it is reconciled again afterwards.
Keys are taken in the order in which they became due, so that none is skipped for ever. Where many
keys belong to one owner, a FairWorkQueue takes turns, so that no owner waits for all keys of
another.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from holdfast.model.errors import invariant
from holdfast.model.machine import Rng

BACKOFF_MIN_MS = 100
BACKOFF_MAX_MS = 30_000
_DOUBLINGS_MAX = 9
# How many replaced times, plus one for each key, may be in the heap before they are removed.
_STALE_MAX = 64

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(
        self,
        rng: Rng,
        *,
        backoff_min_ms: int = BACKOFF_MIN_MS,
        backoff_max_ms: int = BACKOFF_MAX_MS,
    ) -> None:
        self._rng = rng
        self._min_ms, self._max_ms = backoff_min_ms, backoff_max_ms
        # The earliest time for each waiting key, and a heap of all times ever given.
        self._due: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._number = 0
        self._taken: set[K] = set()
        self._again: dict[K, int] = {}
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: object) -> bool:
        """Whether the key waits, or is being reconciled."""
        return key in self._due or key in self._taken

    @property
    def next_ms(self) -> int | None:
        """When the next key is due, if one waits."""
        if not self._heap:
            return None
        self._prune()
        return self._heap[0][0] if self._heap else None

    def add(self, key: K, at_ms: int) -> None:
        """Schedule a key no later than at this time."""
        if key in self._taken:
            known = self._again.get(key)
            if known is None or at_ms < known:
                self._again[key] = at_ms
            return
        known = self._due.get(key)
        if known is not None and known <= at_ms:
            return
        self._due[key] = at_ms
        self._number += 1
        heapq.heappush(self._heap, (at_ms, self._number, key))
        if len(self._heap) > 2 * len(self._due) + _STALE_MAX:
            # Times that were replaced lie below the top, where pruning does not see them.
            self._heap = [it for it in self._heap if self._due.get(it[2]) == it[0]]
            heapq.heapify(self._heap)

    def take(self, now_ms: int) -> K | None:
        """The next key that is due; `done` or `failed` gives it back."""
        # Nothing is earlier than the top of the heap, whether that is current or not.
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        self._prune()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._due[key]
        self._taken.add(key)
        return key

    def done(self, key: K) -> None:
        """Give back a key after a successful reconcile."""
        self._failures.pop(key, None)
        self._give_back(key)

    def failed(self, key: K, now_ms: int) -> int:
        """Give back a key that failed: it is due after a growing pause. Returns when."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause_ms = min(self._max_ms, self._min_ms << min(failures, _DOUBLINGS_MAX))
        at_ms = now_ms + int(pause_ms * (0.5 + self._rng.random() / 2))
        # Events during the attempt do not shorten the pause, for most are caused by the attempt
        # itself. Later ones do: they may be what was missing.
        self._again.pop(key, None)
        self._give_back(key)
        self.add(key, at_ms)
        return at_ms

    def failures(self, key: K) -> int:
        """How often in a row the key failed."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Drop a key that needs no reconcile any more."""
        self._due.pop(key, None)
        self._again.pop(key, None)
        self._failures.pop(key, None)

    def _give_back(self, key: K) -> None:
        invariant(key in self._taken, f"{key} was not taken")
        self._taken.discard(key)
        again = self._again.pop(key, None)
        if again is not None:
            self.add(key, again)

    def _prune(self) -> None:
        """Drop times that were replaced by earlier ones, or whose key is gone."""
        heap = self._heap
        while heap and self._due.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)


class FairWorkQueue(WorkQueue[K]):
    """A queue that takes due keys in turns: by tenant, and within each tenant by owner.

    `flow` returns the tenant and the owner of a key.
    """

    def __init__(self, rng: Rng, flow: Callable[[K], tuple[str, str]]) -> None:
        super().__init__(rng)
        self._flow = flow
        # The due keys in the order in which they became due, with that time. Ordered dictionaries,
        # since plain ones search for their first entry after many were taken from the front.
        self._ready: OrderedDict[K, int] = OrderedDict()
        self._turns: OrderedDict[str, OrderedDict[str, deque[K]]] = OrderedDict()

    @property
    def next_ms(self) -> int | None:
        """When the next key is due, or since when the longest waiting key is."""
        if self._ready:
            return next(iter(self._ready.values()))
        return super().next_ms

    def take(self, now_ms: int) -> K | None:
        """The next key whose owner has its turn; `done` or `failed` gives it back."""
        due_ms = super().next_ms
        while due_ms is not None and (key := super().take(now_ms)) is not None:
            self._taken.discard(key)
            self._stand_in_line(key, due_ms)
            due_ms = super().next_ms
        while self._turns:
            key = self._next_in_turn()
            if self._ready.pop(key, None) is not None:
                self._taken.add(key)
                return key
        return None

    def add(self, key: K, at_ms: int) -> None:
        """Schedule a key no later than at this time."""
        if key not in self._ready:
            super().add(key, at_ms)

    def forget(self, key: K) -> None:
        """Drop a key that needs no reconcile any more."""
        self._ready.pop(key, None)
        super().forget(key)

    def __len__(self) -> int:
        return super().__len__() + len(self._ready)

    def __contains__(self, key: object) -> bool:
        return key in self._ready or super().__contains__(key)

    def _stand_in_line(self, key: K, due_ms: int) -> None:
        tenant, owner = self._flow(key)
        self._turns.setdefault(tenant, OrderedDict()).setdefault(owner, deque()).append(key)
        self._ready[key] = due_ms

    def _next_in_turn(self) -> K:
        """The first key of the first owner of the first tenant; both then move to the end."""
        tenant, owners = next(iter(self._turns.items()))
        owner, keys = next(iter(owners.items()))
        key = keys.popleft()
        owners.move_to_end(owner)
        self._turns.move_to_end(tenant)
        if not keys:
            del owners[owner]
        if not owners:
            del self._turns[tenant]
        return key
