"""A whole scheduler against a fake authority: the cost of a bind, without a network.

The authority accepts everything, and reports each bind on the scheduler's own streams, as a server
would. Only the time inside the scheduler's steps counts. `bench/decisions.py` prints it.
"""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec

from holdfast.model.kinds.lease import Lease, LeaseSpec
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Binding, Replica, ReplicaStatus
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.lifecycle import State
from holdfast.model.machine import Answered, Ask, Open, Pushed, Started, Woken
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import demand_of
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.requests import Accepted, AcquireLease, Bind, RenewLease, ReportPending
from holdfast.model.time import Instant
from holdfast.observe.watch_events import Follow, Present, Reached
from holdfast.propose.scheduler import Scheduler

# The number of events and answers that reach a component in one batch.
PIECE = 256


class Played:
    """See the module's docstring."""

    def __init__(self, nodes: list[Node], tenants: list[str]) -> None:
        self.scheduler = Scheduler("bench", random.Random(1))
        self.now_ms, self.revision = 1_000, 1
        self.streams: dict[str, int] = {}
        self.asked: list[Ask] = []
        self.spent_s = 0.0
        self.binds = 0
        self.replicas: dict[str, Replica] = {}
        self.step(Started({}))
        listed: dict[str, list[Any]] = {
            "nodes": nodes,
            "tenants": [Tenant(ObjectMeta(name=name)) for name in tenants],
        }
        for plural, stream in self.streams.items():
            events = tuple(Present(obj, 1) for obj in listed.get(plural, ()))
            self.step(Pushed(stream, (*events, Reached(1, ends_list=True))))
        self.settle()

    def step(self, stimulus: Any) -> None:
        began = time.process_time()
        effects = self.scheduler.step(stimulus, Instant(self.now_ms, 1_800_000_000_000))
        self.spent_s += time.process_time() - began
        for effect in effects:
            if isinstance(effect, Ask):
                self.asked.append(effect)
            elif isinstance(effect, Open) and isinstance(effect.body, Follow):
                self.streams[effect.body.plural] = effect.stream

    def submit(self, replicas: list[Replica]) -> None:
        """Deliver new replicas as a server does."""
        self.revision += 1
        for replica in replicas:
            self.replicas[replica.metadata.uid] = replica
        self._tell(replicas)

    def settle(self, rounds_max: int = 10_000) -> None:
        """Answer all requests until there are none."""
        for _ in range(rounds_max):
            asked, self.asked = self.asked, []
            if not asked:
                self.step(Woken("scheduler"))
                if not self.asked:
                    return
                continue
            self.now_ms += 1
            self.revision += 1
            bound: list[Replica] = []
            for ask in asked:
                answer = self._answer(ask.body, bound)
                self.step(Answered(ask.call, answer))
            self._tell(bound)

    def _tell(self, replicas: list[Replica]) -> None:
        stream = self.streams["replicas"]
        for start in range(0, len(replicas), PIECE):
            piece = replicas[start : start + PIECE]
            # Each write has its own revision.
            first = self.revision + 1
            self.revision += len(piece)
            events = tuple(Present(obj, first + n) for n, obj in enumerate(piece))
            self.step(Pushed(stream, (*events, Reached(self.revision))))

    def _answer(self, request: Any, bound: list[Replica]) -> Any:
        match request:
            case Bind():
                self.binds += 1
                after = self._bound(request)
                bound.append(after)
                return Accepted(self.revision, (after,))
            case AcquireLease(scope=scope, duration_ms=duration_ms):
                holder = self.scheduler.identity
                spec = LeaseSpec(scope=scope, holder=holder, epoch=1, duration_ms=duration_ms)
                return Accepted(self.revision, (Lease(ObjectMeta(name="it"), spec=spec),))
            case Get():
                return GetResult(None, self.revision)
            case ReportPending() | RenewLease():
                return Accepted(self.revision)
        raise AssertionError(request)

    def _bound(self, bind: Bind) -> Replica:
        replica = self.replicas[bind.target.uid]
        demand = demand_of(replica.spec.template)
        binding = Binding(node=bind.node, node_uid=bind.node_uid, charge=dict(demand.amounts))
        status = ReplicaStatus(state=State.BOUND, binding=binding, transition_number=1)
        return msgspec.structs.replace(replica, status=status)
