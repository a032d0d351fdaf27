"""What a node's condition Drained says: what is left, and for whom the drain waits.

Made by `drain.py`; read by people, by `holdfast drain` and by whoever waits for the condition. It
says nothing that depends on the moment, so that a drain that waits writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus
from holdfast.model.time import rfc3339, wall_ms
from holdfast.observe.cache import Key

DRAINED = "Drained"
# So many are named in a sentence; of the others it says how many they are.
NAMED_MAX = 4

_OUT_OF_CONTACT = (NodePhase.UNKNOWN, NodePhase.FENCED, NodePhase.LOST)


class Left(msgspec.Struct):
    """What is left on a node.

    `first` goes first; `last`, one per node, when nothing else is there; `reservations` are held by
    others. `waits` says for which workloads the drain waits, and why.
    """

    first: list[Replica]
    last: list[Replica]
    reservations: list[str]
    waits: dict[Key, str] = {}

    @property
    def is_empty(self) -> bool:
        return not self.first and not self.last and not self.reservations


def drained(node: Node, left: Left) -> Condition:
    """The condition for what is left."""
    status = ConditionStatus.TRUE if left.is_empty else ConditionStatus.FALSE
    generation = node.metadata.generation
    return Condition(
        DRAINED, status, generation, reason=_reason(node, left), message=_message(node, left)
    )


def _reason(node: Node, left: Left) -> str:
    if left.is_empty:
        return "Empty"
    if node.status.phase in _OUT_OF_CONTACT:
        return "NodeOutOfContact"
    there = left.first or left.last
    is_stuck = all(it.status.state is not State.STOPPING for it in there)
    if left.waits and is_stuck:
        return "WaitingForBudgets"
    return "Draining" if there else "WaitingForReservations"


def _message(node: Node, left: Left) -> str:
    if left.is_empty:
        return "no work and no reservation is left"
    there = [*left.first, *left.last]
    stopping = sum(it.status.state is State.STOPPING for it in there)
    parts = [f"{len(there)} to go, {stopping} of them stopping"]
    if left.first and left.last:
        parts.append(f"{len(left.last)} of one per node go last")
    if left.waits:
        waits = (f"{tenant}/{name} ({why})" for (tenant, name), why in sorted(left.waits.items()))
        parts.append(f"waits for {_listed(waits)}")
    if left.reservations:
        parts.append(f"reserved: {_listed(sorted(left.reservations))}")
    deadline = node.spec.drain.deadline if node.spec.drain is not None else None
    if deadline is not None:
        parts.append(f"budgets end at {rfc3339(wall_ms(deadline))}")
    return "; ".join(parts)


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - NAMED_MAX
    return ", ".join((*every[:NAMED_MAX], *((f"{more} more",) if more > 0 else ())))
