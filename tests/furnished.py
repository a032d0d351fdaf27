"""A furnished plane: one of everything that a replica meets in its life, and the ways through it.

Tests of commit/ drive replicas into any state by legal moves only, and count afterwards what the
objects hold, without the ledgers' own arithmetic.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.commit.ledgers.recount import recount
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.node import Node, NodeDrain
from holdfast.model.kinds.override import Override, OverrideScope, OverrideSpec, OverrideType
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.reservation import Intent, Reservation
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, PriorityClassSpec
from holdfast.model.lifecycle import CAUSE_OWNER, Actor, Cause, Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import (
    Bind,
    Create,
    Evict,
    JudgeNode,
    Move,
    NodeAction,
    RegisterNode,
    ReportStage,
    Reserve,
    StopAndReserve,
    Term,
    Update,
)
from holdfast.store.contract import KEY_END
from holdfast.store.memory import Keyspace
from tests.plane import (
    ADMIN,
    NODES,
    REPAIR,
    SCHEDULER,
    WORKLOADS,
    Plane,
    accepted,
    bind,
    target,
    template,
)

GARBAGE = who.controller("garbage")
DRAINS = who.controller("drain")
ROLLOUTS = who.controller("rollout")
QUOTAS = who.controller("quota")
ANN = Identity(name="ann", tenants=("acme",))
BOB = Identity(name="bob", tenants=("globex",))
ANONYMOUS = Identity(name="system:anonymous")
AGENT = who.agent("node-a")

# Who stops work for which cause.
STOPPERS = {
    Actor.WORKLOAD: WORKLOADS,
    Actor.ROLLOUT: ROLLOUTS,
    Actor.DRAIN: DRAINS,
    Actor.SCHEDULER: SCHEDULER,
    Actor.REPAIR: REPAIR,
    Actor.QUOTA: QUOTAS,
    Actor.USER: ANN,
}


class Furnished:
    """Region eu-west, tenants acme and globex, node-a with two GPUs, and three priority classes."""

    def __init__(self, *, settings: PlaneSettings | None = None, cpus: int = 8) -> None:
        self.plane = plane = Plane(settings=settings)
        plane.region()
        plane.tenant()
        plane.tenant("globex")
        for name, value, of in (
            ("high", 100, CapacityClass.HARD),
            ("low", -10, CapacityClass.RECLAIMABLE),
            ("spot", -20, CapacityClass.RECLAIMABLE),
        ):
            spec = PriorityClassSpec(value=value, capacity_class=of, preempts=value > 0)
            plane.create(PriorityClass(ObjectMeta(name=name), spec=spec))
        self.node = plane.node(gpus=2, capacity={"cpu": cpus, "memory": "32Gi"})
        self.web = plane.workload(replicas=8)
        self.terms: dict[str, Term] = {}
        self._ordinals = 0

    # Asking --------------------------------------------------------------------------------------

    def term(self, identity: Identity) -> Term:
        """The identity's own lease, taken once."""
        if identity.name not in self.terms:
            self.terms[identity.name] = self.plane.term(identity)
        return self.terms[identity.name]

    def ask(self, identity: Identity, request: Any) -> Any:
        """One request. Whatever the answer, the books must be right afterwards."""
        answer = self.plane.ask(identity, request)
        self.check()
        return answer

    def yes(self, identity: Identity, request: Any) -> Any:
        return accepted(self.ask(identity, request))

    def check(self) -> None:
        records = self.plane.store.range("", KEY_END).records
        assert recount(records) == []
        assert counted(self.plane) == ledgers(self.plane)

    def get(self, obj: Any) -> Any:
        return self.plane.get(obj)

    def snapshot(self) -> Keyspace:
        return self.plane.store.copy()

    def restore(self, snapshot: Keyspace) -> None:
        """Go back to how everything was; the authority restarts and knows nothing."""
        self.plane.store = snapshot.copy()
        self.plane.authority = self.plane.new_authority()

    # A replica's life ----------------------------------------------------------------------------

    def birth(self, workload: Any, ordinal: int = 0, incarnation: int = 0) -> Create:
        spec = ReplicaSpec(
            workload=workload.name,
            workload_uid=workload.metadata.uid,
            ordinal=ordinal,
            incarnation=incarnation,
            template=workload.spec.template,
        )
        name = f"{workload.name}-{ordinal}-{incarnation}"
        return Create(Replica(ObjectMeta(name=name, namespace=workload.namespace), spec=spec))

    def pending(self, workload: Any = None) -> Any:
        self._ordinals += 1
        return self.plane.replica(workload or self.web, self._ordinals)

    def reserve(self, replica: Any, node: Any = None, *, after_s: float = 60, **more: Any) -> Any:
        node = node or self.node
        return Reserve(
            target(replica),
            node.name,
            node.metadata.uid,
            self.term(SCHEDULER),
            self.plane.at(after_s),
            **more,
        )

    def bind(self, replica: Any, node: Any = None, **more: Any) -> Bind:
        return bind(replica, node or self.node, self.term(SCHEDULER), **more)

    def reserved(self, workload: Any = None, **more: Any) -> Any:
        return self.yes(SCHEDULER, self.reserve(self.pending(workload), **more))

    def bound(self, workload: Any = None, node: Any = None, **more: Any) -> Any:
        return self.yes(SCHEDULER, self.bind(self.pending(workload), node, **more))

    def moved(self, replica: Any, to: State, *, incarnation: int = 1, **more: Any) -> Any:
        """The replica after a move by its own agent."""
        move = Move(target(replica), to, incarnation=incarnation, **more)
        return self.yes(who.agent(replica.status.binding.node), move)

    def running(self, workload: Any = None, node: Any = None) -> Any:
        return self.moved(self.bound(workload, node), State.RUNNING)

    def ready(self, workload: Any = None, node: Any = None) -> Any:
        """A replica that does its work."""
        return self.at_stage(self.running(workload, node), Stage.READY)

    def at_stage(self, replica: Any, stage: Stage) -> Any:
        """The replica after its agent said how far it has come."""
        report = ReportStage(target(replica), stage, replica.status.binding.node_incarnation)
        return self.yes(who.agent(replica.status.binding.node), report)

    def draining(self, node: Any = None, **drain: Any) -> None:
        """The operator wants a node to be empty."""
        self.updated(node or self.node, drain=NodeDrain(**drain))

    def evict(self, replica: Any, cause: Cause = Cause.SCALE_DOWN, **more: Any) -> Evict:
        stopper = STOPPERS[CAUSE_OWNER[cause]]
        term = None if stopper is ANN else self.term(stopper)
        return Evict(target(replica), cause, term=term, **more)

    def stopping(self, replica: Any = None, cause: Cause = Cause.SCALE_DOWN) -> Any:
        replica = replica or self.running()
        return self.yes(STOPPERS[CAUSE_OWNER[cause]], self.evict(replica, cause))

    def judge(self, word: NodeAction, node: Any = None, mark: int = 0, **more: Any) -> JudgeNode:
        node = node or self.node
        return JudgeNode(node.name, node.metadata.uid, word, self.term(NODES), mark, **more)

    def approval(self, name: str = "burnt-down", **scope: Any) -> str:
        """The name of a new override of an hour that approves what its scope names."""
        override = Override(
            ObjectMeta(name=name, namespace=SYSTEM_NAMESPACE),
            spec=OverrideSpec(
                type=OverrideType.REPAIR_APPROVAL,
                scope=OverrideScope(**(scope or {"zones": ("eu-west-a",)})),
                reason="the building has burnt down",
                expires=self.plane.at(3_600),
            ),
        )
        self.yes(ADMIN, Create(override))
        return name

    def mark_of(self, node: Any = None) -> int:
        found = self.get(node or self.node).status.mark
        return found.number if found is not None else 0

    def marked(self, node: Any = None) -> int:
        self.yes(NODES, self.judge(NodeAction.MARK, node))
        return self.mark_of(node)

    def unknown(self, replica: Any = None) -> Any:
        """The replica after its node was marked and it was given up for the moment."""
        replica = replica or self.running()
        mark = self.mark_of() or self.marked()
        return self.yes(NODES, self.to_unknown(replica, mark))

    def to_unknown(self, replica: Any, mark: int) -> Move:
        return Move(target(replica), State.UNKNOWN, mark=mark, term=self.term(NODES))

    def cleared(self, node: Any = None) -> None:
        self.yes(NODES, self.judge(NodeAction.CLEAR, node, self.mark_of(node)))

    def fenced(self, node: Any = None) -> None:
        self.yes(NODES, self.judge(NodeAction.FENCE, node, self.mark_of(node) or self.marked(node)))

    def registered(self, node: Any = None, **changes: Any) -> Any:
        """The node after its agent presented itself once more."""
        node = self.get(node or self.node)
        spec = msgspec.structs.replace(node.spec, **changes)
        given = Node(ObjectMeta(name=node.name), spec=spec)
        return self.yes(who.agent(node.name), RegisterNode(given))

    def repaired(self, replica: Any, to: State) -> Move:
        return Move(target(replica), to, "Fenced", term=self.term(REPAIR))

    def released(self, workload: Any = None) -> Any:
        return self.moved(self.moved(self.running(workload), State.FAILED), State.RELEASED)

    # Others --------------------------------------------------------------------------------------

    def of_class(self, name: str, tenant: str = "acme", cpu: str = "1", **spec: Any) -> Any:
        """A workload of a priority class."""
        made = template(cpu=cpu, priority_class=name)
        return self.plane.workload(f"of-{name}", tenant, template=made, replicas=8, **spec)

    def preempt(self, replica: Any, *victims: Any, after_s: float = 60, **more: Any) -> Any:
        return StopAndReserve(
            target(replica),
            self.node.name,
            self.node.metadata.uid,
            tuple(target(victim) for victim in victims),
            self.term(SCHEDULER),
            self.plane.at(after_s),
            **more,
        )

    def reservation(self, name: str, tenant: str = "acme") -> Any:
        return self.plane.read(f"objects/reservations/{tenant}/{name}")

    def updated(self, obj: Any, identity: Identity = ADMIN, **spec: Any) -> Any:
        """The object after a change of its spec."""
        now = self.get(obj)
        changed = msgspec.structs.replace(now, spec=msgspec.structs.replace(now.spec, **spec))
        return self.yes(identity, Update(changed))


def every(plane: Plane, struct: type[Any]) -> list[Any]:
    """All objects of a kind."""
    prefix = keys.OBJECTS
    found = [
        plane.read(r.key) for r in plane.store.range(prefix, keys.after_prefix(prefix)).records
    ]
    return [obj for obj in found if isinstance(obj, struct)]


def counted(plane: Plane) -> dict[str, dict[str, int]]:
    """What the objects say is held: by node, and by tenant and class."""
    sums: dict[str, dict[str, int]] = {}

    def add(whose: str, charge: dict[str, int]) -> None:
        for resource, units in charge.items():
            if not units:
                continue
            table = sums.setdefault(whose, {})
            table[resource] = table.get(resource, 0) + units

    for replica in every(plane, Replica):
        binding = replica.status.binding
        if binding is not None and replica.status.state is not State.RELEASED:
            add(f"node {binding.node}", binding.charge)
            add(f"{binding.capacity_class} {replica.namespace}", binding.charge)
    for held in every(plane, Reservation):
        if held.status.phase.value not in ("Held", "Committed"):
            continue
        for claim in held.status.claims:
            if claim.consumed:
                continue
            # The victims of a preemption still hold its place.
            if claim.node and held.spec.intent is not Intent.PREEMPTION:
                add(f"node {claim.node}", claim.charge)
            if held.spec.quota:
                add(f"{held.spec.capacity_class.value} {held.namespace}", claim.charge)
    return {whose: table for whose, table in sums.items() if any(table.values())}


def ledgers(plane: Plane) -> dict[str, dict[str, int]]:
    """The same as the ledgers have it; devices count by what their owners have of them."""
    sums: dict[str, dict[str, int]] = {}
    prefix = keys.LEDGERS
    for record in plane.store.range(prefix, keys.after_prefix(prefix)).records:
        sort, _, name = record.key.removeprefix(prefix).partition("/")
        ledger = plane.read(record.key)
        if sort == "node":
            table = dict(ledger.used)
            for slot in ledger.devices.values():
                owned = sum(slot.owners.values())
                if owned:
                    table[slot.device_class] = table.get(slot.device_class, 0) + owned
            sums[f"node {name}"] = table
        elif sort == "quota":
            for tenant, use in ledger.used.items():
                for of, table in (("hard", use.hard), ("reclaimable", use.reclaimable)):
                    whose = sums.setdefault(f"{of} {tenant}", {})
                    for resource, units in table.items():
                        whose[resource] = whose.get(resource, 0) + units
    return {whose: table for whose, table in sums.items() if any(table.values())}
