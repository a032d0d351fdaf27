"""Somebody who reserves: a hand that holds places for a time, and does not always come for them.

No scheduler of the product reserves yet. This one looks at the store, as the hands of the authority
world do, holds places for what waits, and binds about half of them. What it leaves, and what it has
left when its world takes it away with the faults, controller:repair gives back at the deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.requests import Reserve
from holdfast.model.time import Instant, timestamp
from holdfast.sim.worlds.authority.hands import meant, target
from holdfast.sim.worlds.authority.looks import Look
from holdfast.sim.worlds.authority.schedulers import SchedulerHand

HOLD_S = 15
# Of what waits, this many are reserved in one round at most.
RESERVES_PER_ROUND = 3
NAME = "system:scheduler:keeper"
SCOPE = "scheduler:keeper"


class Keeper(SchedulerHand):
    """See the module's docstring."""

    period_ms = 1_000

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        nodes = [it for it in look.all(Node) if it.status.phase is NodePhase.READY]
        if not nodes:
            return
        yield from self._reserved(look)
        deadline = timestamp(now.wall_ms) + timedelta(seconds=HOLD_S)
        waiting = [it for it in look.all(Replica) if it.status.state is State.PENDING]
        for replica in waiting[:RESERVES_PER_ROUND]:
            node = self._next(replica, nodes)
            operation = meant(replica, f"reserve-{node.name}", self.identity)
            place = (target(replica), node.name, node.metadata.uid, self.term)
            yield Reserve(*place, deadline, operation=operation)

    def _reserved(self, look: Look) -> Iterator[Any]:
        """It comes for one half, and forgets the other."""
        for request in super()._reserved(look):
            if int(request.target.uid[0], 16) % 2:
                yield request
