"""Hands that are nodes: they register, run what is bound to them, and prove that it stopped.

There are no processes here; what runs is only what an agent says. The world of real work, with a
process table as ground truth, is another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.commit.requests import Accepted, Move, RegisterNode, ReportStage
from holdfast.model.kinds.node import Device, Node, NodePhase, NodeSpec
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import Instant
from holdfast.sim.cell import Seat
from holdfast.sim.worlds.authority.hands import Hand, Look, meant, target

ENDS_ONE_IN = 40


class AgentHand(Hand):
    """One node. It speaks in the incarnation in which it last registered, right or wrong."""

    period_ms = 2_500

    def __init__(self, seat: Seat, identity: str, node: str, zone: str, gpus: int) -> None:
        super().__init__(seat, identity)
        self.node, self.zone, self.gpus = node, zone, gpus
        self.incarnation = 0

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        mine = look.get(Node, "", self.node)
        gone = mine is not None and mine.status.phase in (NodePhase.FENCED, NodePhase.LOST)
        if mine is None or gone or not self.incarnation:
            yield self._registration(mine)
            return
        for replica in look.all(Replica):
            binding = replica.status.binding
            if binding is not None and binding.node == self.node:
                yield from self._tend(replica)

    def heard(self, request: Any, answer: Any) -> None:
        if isinstance(request, RegisterNode) and isinstance(answer, Accepted):
            for node in answer.objects:
                if isinstance(node, Node):
                    self.incarnation = node.status.incarnation

    def _registration(self, mine: Node | None) -> RegisterNode:
        devices = tuple(
            Device(id=f"gpu-{i}", device_class="gpu", model="A100", memory="40Gi")
            for i in range(self.gpus)
        )
        spec = NodeSpec(
            region=self.zone.rsplit("-", 1)[0],
            zone=self.zone,
            capacity={"cpu": "4", "memory": "16Gi"},
            devices=devices,
        )
        return RegisterNode(Node(ObjectMeta(name=self.node), spec=spec))

    def _tend(self, replica: Replica) -> Iterator[Any]:
        match replica.status.state:
            case State.BOUND:
                yield self._move(replica, State.RUNNING)
            case State.RUNNING if self.chance(ENDS_ONE_IN):
                yield self._move(replica, State.FAILED if self.chance(2) else State.SUCCEEDED)
            case State.RUNNING if replica.status.stage is Stage.STARTING:
                yield ReportStage(target(replica), Stage.READY, self.incarnation)
            case State.STOPPING | State.FAILED | State.SUCCEEDED:
                yield self._move(replica, State.RELEASED)
            case State.UNKNOWN:
                yield self._move(replica, State.RUNNING)

    def _move(self, replica: Replica, to: State) -> Move:
        return Move(
            target(replica),
            to,
            incarnation=self.incarnation,
            operation=meant(replica, to.value, self.identity),
        )
