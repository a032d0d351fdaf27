"""Whatever a client asks for: the server goes on, and the books are right after every answer.

Requests of every sort are drawn at random, mostly sensible and sometimes not, by the right identity
and sometimes by another, and now and then repeated. No answer may be an exception, and after each
one every ledger must say what the objects add up to. `HOLDFAST_HYPOTHESIS=long` draws more of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import msgspec

from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.node import Device, Node, NodeDrain, NodeSpec
from holdfast.model.kinds.replica import DeviceShare, Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, ReservationOwner
from holdfast.model.kinds.template import DeviceRequest, OnDisconnect, Port
from holdfast.model.kinds.tenant import Quota, QuotaSpec
from holdfast.model.kinds.workload import Disruption, Workload
from holdfast.model.lifecycle import CAUSE_OWNER, Actor, Cause, Stage, State, next_moves
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Refusal
from holdfast.model.registry import kind_of
from holdfast.model.requests import (
    Accepted,
    Bind,
    BindTogether,
    CommitGang,
    DropReservation,
    Evict,
    HoldCapacity,
    JudgeNode,
    Move,
    NodeAction,
    Propagation,
    RegisterNode,
    Remove,
    ReportStage,
    Reserve,
    StopAndReserve,
    Target,
    Term,
    Unreserve,
    Update,
)
from tests.furnished import (
    AGENT,
    ANN,
    BOB,
    DRAINS,
    GARBAGE,
    ROLLOUTS,
    STOPPERS,
    Furnished,
    every,
)
from tests.plane import ADMIN, NODES, REPAIR, SCHEDULER, WORKLOADS, target, template
from tests.scale import scaled

LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"
SEEDS = 200 if LONG else scaled(4, 8)
STEPS = 400 if LONG else 180

LEASED = (SCHEDULER, WORKLOADS, NODES, REPAIR, GARBAGE, DRAINS, ROLLOUTS)
IDENTITIES = (*LEASED, ANN, BOB, ADMIN, AGENT, who.agent("node-b"), who.controller("endpoints"))
GPUS = tuple(
    Device(id=f"gpu-{i}", device_class="gpu", model="A100", memory="40Gi") for i in range(2)
)
Asked = tuple[Identity, Any]


class Crowd:
    """A furnished plane and all identities that send requests to it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.it = it = Furnished(cpus=6)
        it.plane.node("node-b", gpus=1)
        it.plane.quota(hard={"cpu": "7"}, borrowing={"cpu": "2"}, cohort="both")
        it.plane.quota("globex", hard={"cpu": "5"}, reclaimable={"cpu": "3"}, cohort="both")
        share = self.rng.choice((None, "500m"))
        gpu = (DeviceRequest(device_class="gpu", memory="16Gi", share=share),)
        keep = {"on_disconnect": OnDisconnect.KEEP, "replace_after_seconds": 5}
        it.of_class("low", disruption=Disruption(max_unavailable=1))
        it.of_class("high", cpu="2")
        it.of_class("spot", "globex")
        port = (Port(name="p", port=80),)
        it.plane.workload("keep", template=template(ports=port, **keep), replicas=4)
        it.plane.workload("train", "globex", template=template(devices=gpu), replicas=4)
        self.terms = {identity.name: it.term(identity) for identity in LEASED}
        self.asked: list[Asked] = []
        self.heard: Counter[tuple[str, bool]] = Counter()

    # What is there -------------------------------------------------------------------------------

    def all(self, struct: type[Any]) -> list[Any]:
        return every(self.it.plane, struct)

    def pick(self, options: Any) -> Any:
        """One of them, or None when there is none."""
        options = list(options)
        return self.rng.choice(options) if options else None

    def chance(self, one_in: int) -> bool:
        return self.rng.random() * one_in < 1

    def replica(self, *states: State) -> Any:
        found = self.all(Replica)
        fitting = [replica for replica in found if replica.status.state in states]
        return self.pick(fitting or found)

    def target(self, replica: Any) -> Target:
        seen = target(replica)
        off = self.rng.choice((-1, 1)) if self.chance(20) else 0
        return Target(seen.namespace, seen.name, seen.uid, seen.number + off)

    def term(self, identity: Identity) -> Term:
        known = self.terms.get(identity.name)
        return known if known is not None and not self.chance(20) else Term("scheduler:x", 1)

    def place(self, replica: Any, node: Any) -> tuple[Any, ...]:
        uid = node.metadata.uid
        return self.target(replica), node.name, uid, self.term(SCHEDULER)

    def operation(self) -> str:
        return f"op-{self.rng.randrange(10**9)}" if self.chance(2) else ""

    # What is asked for; None where there is nothing to ask it of ---------------------------------

    def birth(self) -> Asked | None:
        workload = self.pick(self.all(Workload))
        if workload is None:
            return None
        return WORKLOADS, self.it.birth(workload, self.rng.randrange(6), self.rng.randrange(3))

    def bind(self) -> Asked | None:
        replica, node = self.replica(State.PENDING, State.RESERVED), self.pick(self.all(Node))
        if replica is None or node is None:
            return None
        held = self.pick(self.all(Reservation))
        names = ("", "", f"{replica.name}-preemption", held.name if held is not None else "")
        request = Bind(
            *self.place(replica, node),
            operation=self.operation(),
            reservation=self.rng.choice(names),
        )
        if self.chance(6):
            return SCHEDULER, BindTogether((request, request) if self.chance(4) else (request,))
        return SCHEDULER, request

    def reserve(self) -> Asked | None:
        replica, node = self.replica(State.PENDING), self.pick(self.all(Node))
        if replica is None or node is None:
            return None
        intent = self.pick(Intent)
        gangs = [r.name for r in self.all(Reservation) if r.spec.intent is Intent.GANG]
        gang = self.pick(gangs) if self.chance(3) and gangs else ""
        deadline = self.it.plane.at(self.pick((1, 5, 60)))
        return SCHEDULER, Reserve(*self.place(replica, node), deadline, intent, gang=gang)

    def hold(self) -> Asked | None:
        owner = self.pick((*self.all(Workload), *self.all(Replica)))
        if owner is None:
            return None
        claims = (
            Claim(node="node-a", charge={"cpu": self.pick((0, 500, -1)), "replicas": 1}),
            Claim(charge={"cpu": 100}),
            Claim(
                node="node-b",
                charge={"gpu": 1000},
                devices=(DeviceShare("gpu-0", "gpu", 1000),),
                ports=self.pick(((), ("TCP/80",))),
            ),
        )
        intent = self.pick(Intent)
        return SCHEDULER, HoldCapacity(
            owner.namespace,
            ReservationOwner(type(owner).__name__, owner.name, owner.metadata.uid),
            intent,
            tuple(self.rng.sample(claims, self.rng.randrange(4))),
            self.it.plane.at(self.pick((5, 60))),
            self.term(SCHEDULER),
            self.pick((1, 2)) if intent is Intent.GANG else 0,
            self.operation(),
        )

    def end_hold(self) -> Asked | None:
        held = self.pick(self.all(Reservation))
        if held is None:
            return None
        identity = self.pick((SCHEDULER, REPAIR, GARBAGE))
        place = (held.namespace, held.name, held.metadata.uid)
        return self.pick(
            (
                (SCHEDULER, CommitGang(*place, self.term(SCHEDULER))),
                (identity, DropReservation(*place, "over", self.term(identity))),
                (identity, self.removal(held)),
            )
        )

    def unreserve(self) -> Asked | None:
        replica, identity = self.replica(State.RESERVED), self.pick((SCHEDULER, REPAIR))
        if replica is None:
            return None
        return identity, Unreserve(self.target(replica), "Conflict", self.term(identity))

    def evict(self) -> Asked | None:
        replica, cause = self.replica(State.BOUND, State.RUNNING), self.pick(Cause)
        if replica is None:
            return None
        identity = STOPPERS[CAUSE_OWNER[cause]]
        return identity, Evict(self.target(replica), cause, "told so", self.term(identity))

    def preempt(self) -> Asked | None:
        victim, replica = self.replica(State.BOUND, State.RUNNING), self.replica(State.PENDING)
        binding = victim.status.binding if victim is not None else None
        node = self.it.plane.read(f"objects/nodes/{binding.node}") if binding is not None else None
        if node is None:
            return None
        victims = (self.target(victim),) * (2 if self.chance(20) else 1)
        *place, term = self.place(replica, node)
        return SCHEDULER, StopAndReserve(*place, victims, term, self.it.plane.at(60))

    def move(self) -> Asked | None:
        replica = self.replica(*State)
        row = self.pick(next_moves(replica.status.state)) if replica is not None else None
        if row is None:
            return None
        binding = replica.status.binding
        gate = self.it.plane.ledger(binding.node).gate if binding is not None else None
        agents = who.agent(binding.node) if binding is not None else AGENT
        movers = {
            Actor.WORKLOAD: WORKLOADS,
            Actor.NODES: NODES,
            Actor.REPAIR: REPAIR,
            Actor.OPERATOR: ADMIN,
            Actor.AGENT: agents,
        }
        identity = movers.get(self.pick(row.actors), ANN)
        lives = (1, gate.incarnation if gate is not None else 2)
        return identity, Move(
            self.target(replica),
            row.target if not self.chance(15) else self.pick(State),
            "Because",
            incarnation=self.pick(lives),
            mark=gate.mark if gate is not None else 0,
            word="I saw it",
            term=self.term(identity),
            operation=self.operation(),
        )

    def report(self) -> Asked | None:
        replica = self.replica(State.RUNNING)
        if replica is None:
            return None
        identity = self.pick((AGENT, SCHEDULER, who.controller("endpoints")))
        return identity, ReportStage(self.target(replica), self.pick(Stage), 1)

    def judge(self) -> Asked | None:
        node = self.pick(self.all(Node))
        if node is None:
            return None
        mark = node.status.mark.number if node.status.mark is not None else 0
        away = (NodeAction.CLEAR, NodeAction.CLEAR, NodeAction.FENCE, NodeAction.TRUST)
        word = self.pick(NodeAction if node.status.phase.value == "Ready" else away)
        return NODES, JudgeNode(node.name, node.metadata.uid, word, self.term(NODES), mark)

    def register(self) -> Asked:
        name = self.pick(("node-a", "node-b"))
        capacity = {"cpu": self.rng.randrange(3, 9), "memory": "32Gi"}
        devices = GPUS[: self.pick((0, 1, 2, 2))]
        spec = NodeSpec(region="eu-west", capacity=capacity, devices=devices)
        return who.agent(name), RegisterNode(Node(ObjectMeta(name=name), spec=spec))

    def operate(self) -> Asked | None:
        """An operator changes a node or a quota."""
        obj = self.pick((*self.all(Node), *self.all(Quota)))
        if isinstance(obj, Node):
            drain = NodeDrain() if self.chance(9) else None
            spec: Any = msgspec.structs.replace(obj.spec, cordoned=self.chance(9), drain=drain)
        elif isinstance(obj, Quota):
            hard = {"cpu": self.rng.randrange(1, 9)}
            spec = QuotaSpec(hard=hard, cohort=self.pick(("", "both", "other")))
        else:
            return None
        return ADMIN, Update(msgspec.structs.replace(obj, spec=spec))

    def removal(self, obj: Any) -> Remove:
        return Remove(
            kind_of(obj).plural,
            obj.namespace,
            obj.name,
            propagation=self.pick(Propagation),
            force=self.chance(3),
            operation=self.operation(),
        )

    def remove(self) -> Asked | None:
        kinds = (Replica, Replica, Replica, Reservation, Node)
        obj = self.pick(self.all(Workload if self.chance(25) else self.pick(kinds)))
        if obj is None:
            return None
        return self.pick((ADMIN, ANN, WORKLOADS, GARBAGE, REPAIR)), self.removal(obj)

    def let_go(self) -> Asked | None:
        obj = self.pick((*self.all(Workload), *self.all(Replica), *self.all(Reservation)))
        if obj is None:
            return None
        metadata = msgspec.structs.replace(obj.metadata, finalizers=())
        bare = msgspec.structs.replace(obj, metadata=metadata)
        return self.pick((WORKLOADS, GARBAGE, ADMIN)), Update(bare)

    def repeat(self) -> Asked | None:
        found: Asked | None = self.pick(self.asked)
        return found

    # Asking --------------------------------------------------------------------------------------

    def step(self) -> None:
        it = self.it
        often = [self.bind] * 5 + [self.move] * 9 + [self.birth] * 3 + [self.evict] * 2
        makers = [
            *often,
            *(self.reserve, self.hold, self.end_hold, self.unreserve, self.preempt),
            *(self.report, self.judge, self.register, self.operate, self.remove),
            *(self.let_go, self.repeat),
        ]
        it.plane.elapsed_ms += self.pick((0, 10, 1_000, 3_000))
        if self.chance(10):
            # Another server, with a luck of its own.
            it.plane.seed = self.rng.randrange(10**9)
            it.plane.authority = it.plane.new_authority()
        made = self.pick(makers)()
        if made is None:
            return
        identity, request = made
        if self.chance(25):
            identity = self.pick(IDENTITIES)
        answer = it.plane.ask(identity, request)
        assert isinstance(answer, Accepted | Refusal), answer
        it.check()
        self.asked.append((identity, request))
        self.heard[type(request).__name__, isinstance(answer, Accepted)] += 1


def test_whatever_a_client_asks_for_the_ledgers_are_right() -> None:
    """[C6.1, C6.5, C6.6, INV1, INV3, INV4]"""
    heard: Counter[tuple[str, bool]] = Counter()
    for seed in range(SEEDS):
        crowd = Crowd(seed)
        for number in range(STEPS):
            try:
                crowd.step()
            except Exception as error:
                error.add_note(f"seed {seed}, step {number}")
                raise
        heard += crowd.heard
    # A crowd that is always refused would prove little.
    for kind in (Bind, Reserve, Move, Evict, Remove, HoldCapacity, RegisterNode, JudgeNode):
        assert heard[kind.__name__, True], kind
        assert heard[kind.__name__, False] or kind is RegisterNode, kind
