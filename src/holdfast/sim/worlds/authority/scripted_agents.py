"""Scripted clients that are nodes: they register, run what is bound to them, and report its stop.

There are no processes here: what runs is only what an agent reports. The end-to-end world has a
process table as ground truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.kinds.node import Device, Node, NodePhase, NodeSpec, NodeStatus
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Accepted, Move, RegisterNode, ReportStage
from holdfast.model.time import Instant
from holdfast.sim.cell import Seat
from holdfast.sim.planes.shared_names import LIFE
from holdfast.sim.worlds.authority.scripted_clients import (
    ObjectSnapshot,
    ScriptedClient,
    operation_id_of,
    target,
)

ENDS_ONE_IN = 40
# One registration in this many comes from a machine that has lost its devices for now.
BROKEN_ONE_IN = 8
# Starts and stops take several rounds, so that a node may fall silent during one.
STARTS_ONE_IN, STOPS_ONE_IN = 2, 5


class ScriptedAgent(ScriptedClient):
    """One node. It reports in the incarnation in which it last registered, right or wrong."""

    period_ms = 2_500

    def __init__(self, seat: Seat, identity: str, node: str, zone: str, gpus: int) -> None:
        super().__init__(seat, identity)
        self.node, self.zone, self.gpus = node, zone, gpus
        self.incarnation = 0
        # Each registration states the agent's life and its own number in that life.
        self._life, self._registrations = seat.life, 0

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        mine = snapshot.get(Node, "", self.node)
        if mine is None or self._must_register(mine):
            yield self._registration(mine)
        if mine is None or not self.incarnation:
            return
        for replica in snapshot.all(Replica):
            binding = replica.status.binding
            if binding is not None and binding.node == self.node:
                yield from self._replica_requests(replica)

    def _must_register(self, mine: Node) -> bool:
        """Whether to register: after a fence, at a start, and some time after a lost answer."""
        gone = mine.status.phase in (NodePhase.FENCED, NodePhase.LOST)
        behind = mine.status.incarnation != self.incarnation and self.chance(3)
        lacks = len(mine.spec.devices) != self.gpus and self.chance(6)
        return gone or behind or lacks or not self.incarnation or self.whim(30)

    def on_answer(self, request: Any, answer: Any) -> None:
        if isinstance(request, RegisterNode) and isinstance(answer, Accepted):
            for node in answer.objects:
                if isinstance(node, Node):
                    self.incarnation = node.status.incarnation

    def _registration(self, mine: Node | None) -> RegisterNode:
        working = 0 if self.whim(BROKEN_ONE_IN) else self.gpus
        devices = tuple(
            Device(id=f"gpu-{i}", device_class="gpu", model="A100", memory="40Gi")
            for i in range(working)
        )
        # The spec also claims to be open for work, which the agent may not decide.
        spec = NodeSpec(
            region=self.zone.rsplit("-", 1)[0],
            zone=self.zone,
            capacity={"cpu": "4", "memory": "16Gi"},
            devices=devices,
        )
        metadata = ObjectMeta(name=self.node)
        if mine is not None:
            seen = mine.metadata
            metadata = ObjectMeta(
                name=self.node, uid=seen.uid, resource_version=seen.resource_version
            )
        self._registrations += 1
        count = f"{self._life}.{self._registrations}"
        return RegisterNode(Node(metadata, spec=spec, status=NodeStatus(agent_version=count)))

    def _replica_requests(self, replica: Replica) -> Iterator[Any]:
        match replica.status.state:
            case State.BOUND if self.whim(20):
                yield self._move(replica, State.FAILED if self.chance(2) else State.SUCCEEDED)
            case State.BOUND if self.resting or self.chance(STARTS_ONE_IN):
                yield self._move(replica, State.RUNNING)
            case State.RUNNING if self.whim(ENDS_ONE_IN):
                ends = (State.FAILED, State.SUCCEEDED, State.RUNNING)
                yield self._move(replica, self.pick(list(ends)))
            case State.RUNNING if replica.status.stage is Stage.STARTING:
                version = replica.metadata.resource_version
                yield ReportStage(target(replica), Stage.READY, self.incarnation, version=version)
            case State.STOPPING if not (self.resting or self.chance(STOPS_ONE_IN)):
                return
            case State.STOPPING | State.FAILED | State.SUCCEEDED:
                yield self._move(replica, State.RELEASED)
            case State.UNKNOWN:
                was_stopped = replica.status.cause is not None and not self.whim(5)
                back = State.STOPPING if was_stopped else State.RUNNING
                yield self._move(
                    replica, self.pick([back, back, back, State.SUCCEEDED, State.FAILED])
                )

    def _move(self, replica: Replica, to: State) -> Move:
        # Occasionally it names a wrong incarnation.
        life = self.incarnation + (self.pick([-1, 1]) if self.whim(20) else 0)
        return Move(
            target(replica),
            to,
            evidence=f"{LIFE}{life}",
            incarnation=life,
            operation=operation_id_of(replica, to.value, self.identity),
        )
