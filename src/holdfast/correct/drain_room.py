"""How many replicas of a workload could be taken away now, as far as the picture tells.

`drain.py` asks before it asks the authority. The ledger that decides cannot be watched; it says the
same as the replicas themselves (`model/disruption.py`).
"""

from __future__ import annotations

from holdfast.correct.controller import BY_WORKLOAD, View
from holdfast.model.disruption import allowed_missing, desired_of, is_available, is_missing
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.observe.cache import Key


class Room:
    """What is left of each budget during one look."""

    def __init__(self, view: View) -> None:
        self._view = view
        # How many more may go, or None where nothing is stated; and a sentence about it.
        self._left: dict[Key, int | None] = {}
        self._said: dict[Key, str] = {}

    def take(self, replica: Replica) -> bool:
        """Whether one more of its workload may be taken, which this does."""
        key = replica.namespace, replica.spec.workload
        if key not in self._left:
            self._left[key] = self._look(key, replica)
        left = self._left[key]
        if left is None:
            return True
        if left <= 0:
            return False
        self._left[key] = left - 1
        return True

    def said(self, replica: Replica) -> str:
        """Why no more of its workload may be taken."""
        return self._said.get((replica.namespace, replica.spec.workload), "")

    def _look(self, key: Key, replica: Replica) -> int | None:
        workload: Workload | None = self._view.get("workloads", *key)
        if workload is None or workload.metadata.uid != replica.spec.workload_uid:
            # The authority knows more of it than we do.
            return None
        allowed = allowed_missing(workload.spec.disruption, workload.spec.replicas)
        if allowed is None:
            return None
        uid, desired = workload.metadata.uid, desired_of(workload)
        mine = [
            it
            for it in self._view.found(BY_WORKLOAD, f"{key[0]}/{key[1]}")
            if it.spec.workload_uid == uid
        ]
        if desired is not None:
            gone = max(0, desired - sum(is_available(it) for it in mine))
        else:
            gone = sum(is_missing(workload.spec.type, it) for it in mine)
        self._said[key] = f"{max(gone, allowed)} of {allowed} allowed are missing"
        return allowed - gone
