"""Who uses this plane: an operator that looks only when there is something to do."""

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
    """Rests between acts, so that a long calm costs nothing."""

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
    """The workload with a grace, perhaps a liveness probe, and how long its owner waits for it."""
    template = workload.spec.template
    template = msgspec.structs.replace(
        template,
        grace_seconds=act["grace"],
        probes=Probes(liveness=_PROBE) if act.get("probed") else template.probes,
        replace_after_seconds=act.get("replace_after"),
    )
    spec = msgspec.structs.replace(workload.spec, template=template)
    return msgspec.structs.replace(workload, spec=spec)


# Somebody who reserves: a hand that holds places for a time, and does not always come for them.
#
# No scheduler of the product reserves yet. This one looks at the store, as the hands of the
# authority world do, holds places for what waits, and binds about half of them. What it leaves, and
# what it has left when its world takes it away with the faults, controller:repair gives back at the
# deadline.

HOLD_S = 15
# Of what waits, this many are reserved in one round at most.
RESERVES_PER_ROUND = 3
NAME = "system:scheduler:keeper"
SCOPE = "scheduler:keeper"


class ReservingScheduler(ScriptedScheduler):
    """See the module's docstring."""

    period_ms = 1_000

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        nodes = [it for it in snapshot.all(Node) if it.status.phase is NodePhase.READY]
        if not nodes:
            return
        yield from self._reserved(snapshot)
        deadline = timestamp(now.wall_ms) + timedelta(seconds=HOLD_S)
        waiting = [it for it in snapshot.all(Replica) if it.status.state is State.PENDING]
        for replica in waiting[:RESERVES_PER_ROUND]:
            node = self._next(replica, nodes)
            operation = operation_id_of(replica, f"reserve-{node.name}", self.identity)
            place = (target(replica), node.name, node.metadata.uid, self.term)
            yield Reserve(*place, deadline, operation=operation)

    def _reserved(self, snapshot: ObjectSnapshot) -> Iterator[Any]:
        """It comes for one half, and forgets the other."""
        for request in super()._reserved(snapshot):
            if int(request.target.uid[0], 16) % 2:
                yield request
