"""The users of this plane: an operator who reads only when there is something to do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import ExecAction, Probe, Probes
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.requests import Create, Reserve
from holdfast.model.time import Instant, timestamp
from holdfast.sim.plan import Prompted
from holdfast.sim.worlds.authority.people import Operator
from holdfast.sim.worlds.authority.scripted_clients import ObjectSnapshot, operation_id_of, target
from holdfast.sim.worlds.authority.scripted_schedulers import ScriptedScheduler

_PROBE = Probe(exec=ExecAction(("alive",)), period_seconds=2, failure_threshold=1)


class RestingOperator(Operator):
    """An operator who rests between acts, so that a long calm costs nothing."""

    _is_up = False

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        effects = super().step(stimulus, now)
        if isinstance(stimulus, Prompted) and not self._is_up:
            effects = [*effects, *self._round(now)]
        return effects

    def _request(self, snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
        request = super()._request(snapshot, act)
        if isinstance(request, Create) and isinstance(request.object, Workload):
            request = Create(_with(request.object, act))
        return request

    def _round(self, now: Instant) -> list[Any]:
        self._is_up = bool(self._acts)
        return super()._round(now) if self._is_up else []


def _with(workload: Workload, act: dict[str, Any]) -> Workload:
    """The workload with a grace, perhaps a liveness probe, and its `replace_after_seconds`."""
    template = workload.spec.template
    template = msgspec.structs.replace(
        template,
        grace_seconds=act["grace"],
        probes=Probes(liveness=_PROBE) if act.get("probed") else template.probes,
        replace_after_seconds=act.get("replace_after"),
    )
    spec = msgspec.structs.replace(workload.spec, template=template)
    return msgspec.structs.replace(workload, spec=spec)


# No scheduler of the product reserves yet. `ReservingScheduler` reads the store, as the scripted
# clients of the authority world do, reserves places for pending replicas, and binds about half of
# them. The other half, and what is left when its world removes it after the faults,
# controller:repair gives back at the deadline.

HOLD_S = 15
# At most this many pending replicas get a reservation in one round.
RESERVES_PER_ROUND = 3
NAME = "system:scheduler:keeper"
SCOPE = "scheduler:keeper"


class ReservingScheduler(ScriptedScheduler):
    """A scripted scheduler that reserves places and binds only about half of them."""

    period_ms = 1_000

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        nodes = [it for it in snapshot.all(Node) if it.status.phase is NodePhase.READY]
        if not nodes:
            return
        yield from self._bind_reserved(snapshot)
        deadline = timestamp(now.wall_ms) + timedelta(seconds=HOLD_S)
        waiting = [it for it in snapshot.all(Replica) if it.status.state is State.PENDING]
        for replica in waiting[:RESERVES_PER_ROUND]:
            node = self._next_node(replica, nodes)
            operation = operation_id_of(replica, f"reserve-{node.name}", self.identity)
            place = (target(replica), node.name, node.metadata.uid, self.term)
            yield Reserve(*place, deadline, operation=operation)

    def _bind_reserved(self, snapshot: ObjectSnapshot) -> Iterator[Any]:
        """It binds one half of its reservations, and forgets the other."""
        for request in super()._bind_reserved(snapshot):
            if int(request.target.uid[0], 16) % 2:
                yield request
