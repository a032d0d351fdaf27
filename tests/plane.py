"""A plane to decide on: the real authority over the real memory store, driven by hand, in one
thread and without a clock of its own. Tests of commit/ say who asks for what and read the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from holdfast.commit.authority import Authority, Limits
from holdfast.commit.context import Settings
from holdfast.commit.records import decode
from holdfast.model import identity as who
from holdfast.model import keys
from holdfast.model.identity import ADMINS, Identity
from holdfast.model.kinds.node import Device, Node, NodeSpec
from holdfast.model.kinds.quota import Quota, QuotaSpec
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import Resources, Template
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.machine import Answer, Answered, Asked, FateOf, Txn, Wake, Woken
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    Bind,
    Create,
    RegisterNode,
    Target,
    Term,
)
from holdfast.model.time import Instant, timestamp
from holdfast.model.transaction import Transaction
from holdfast.store.memory import Keyspace

ADMIN = Identity(name="admin", groups=(ADMINS,))
SCHEDULER = who.scheduler("one")
WORKLOADS = who.controller("workload")
NODES = who.controller("nodes")
REPAIR = who.controller("repair")
START_WALL_MS = 1_800_000_000_000
STEPS_MAX = 10_000


class Plane:
    """One store, one authority, and a hand on the clock."""

    def __init__(
        self, *, settings: Settings | None = None, limits: Limits | None = None, seed: int = 1
    ) -> None:
        self.store = Keyspace()
        self.settings = settings if settings is not None else Settings()
        self.limits = limits if limits is not None else Limits()
        self.seed = seed
        self.authority = self.new_authority()
        self.elapsed_ms = 0
        self.transactions: list[Transaction] = []
        self.spoil: Callable[[Txn | FateOf], Any] | None = None
        self._calls = 0

    def new_authority(self) -> Authority:
        """Another authority over the same store, as after a restart or beside the first."""
        return Authority(random.Random(self.seed), self.store, self.settings, self.limits)

    @property
    def now(self) -> Instant:
        return Instant(self.elapsed_ms, START_WALL_MS + self.elapsed_ms)

    def at(self, after_s: float = 0.0) -> datetime:
        return timestamp(self.now.wall_ms) + timedelta(seconds=after_s)

    def ask(self, identity: Identity, request: Any) -> Any:
        """One request, one answer."""
        return self.ask_all((identity, request))[0]

    def ask_all(self, *pairs: tuple[Identity, Any]) -> list[Any]:
        """Several requests that arrive together, and their answers in order."""
        work: list[Any] = []
        for identity, request in pairs:
            self._calls += 1
            work.append(Asked(self._calls, identity, request))
        calls = [asked.call for asked in work]
        answers: dict[int, Any] = {}
        # All of them arrive before the first transaction is answered, so they share a group.
        for _ in range(STEPS_MAX):
            if not work:
                break
            self._perform(self.authority.step(work.pop(0), self.now), work, answers)
        return [answers[call] for call in calls]

    def _perform(self, effects: list[Any], work: list[Any], answers: dict[int, Any]) -> None:
        for effect in effects:
            match effect:
                case Answer(call=call, body=body):
                    answers[call] = body
                case Txn() | FateOf():
                    work.append(Answered(effect.call, self._on_store(effect)))
                case Wake(name=name, at_ms=at_ms):
                    self.elapsed_ms = max(self.elapsed_ms, at_ms)
                    work.append(Woken(name))

    def _on_store(self, effect: Txn | FateOf) -> Any:
        if self.spoil is not None:
            answer = self.spoil(effect)
            if answer is not None:
                return answer
        if isinstance(effect, FateOf):
            return self.store.fate(effect.token)
        self.transactions.append(effect.transaction)
        return self.store.txn(effect.transaction, token=effect.token)

    # What is there -------------------------------------------------------------------------------

    def read(self, key: str) -> Any:
        """What the store holds under a key, decoded, or None."""
        record = self.store.get(key)
        return decode(key, record.value) if record is not None else None

    def get(self, obj: Object) -> Any:
        """The current state of an object."""
        return self.read(keys.key_of(obj))

    def ledger(self, node: str) -> Any:
        return self.read(keys.node_ledger(node))

    # Furniture -----------------------------------------------------------------------------------

    def create(self, obj: Object, identity: Identity = ADMIN) -> Any:
        """Create an object that must be accepted."""
        return accepted(self.ask(identity, Create(obj)))

    def tenant(self, name: str = "acme") -> Any:
        return self.create(Tenant(ObjectMeta(name=name)))

    def region(self, name: str = "eu-west", *jurisdictions: str) -> Any:
        spec = RegionSpec(jurisdictions=jurisdictions or ("eu",))
        return self.create(Region(ObjectMeta(name=name), spec=spec))

    def quota(self, tenant: str = "acme", **spec: Any) -> Any:
        return self.create(
            Quota(ObjectMeta(name="default", namespace=tenant), spec=QuotaSpec(**spec))
        )

    def node(self, name: str = "node-a", *, gpus: int = 0, **spec: Any) -> Any:
        """A registered node of 8 cores and 32 GiB, with so many GPUs."""
        devices = tuple(
            Device(id=f"gpu-{i}", device_class="gpu", model="A100", memory="40Gi")
            for i in range(gpus)
        )
        spec = {
            "region": "eu-west",
            "zone": "eu-west-a",
            "capacity": {"cpu": "8", "memory": "32Gi"},
            "devices": devices,
            **spec,
        }
        node = Node(ObjectMeta(name=name), spec=NodeSpec(**spec))
        return accepted(self.ask(who.agent(name), RegisterNode(node)))

    def workload(self, name: str = "web", tenant: str = "acme", **spec: Any) -> Any:
        spec = {"template": template(), **spec}
        return self.create(
            Workload(ObjectMeta(name=name, namespace=tenant), spec=WorkloadSpec(**spec))
        )

    def replica(self, workload: Any, ordinal: int = 0, incarnation: int = 0) -> Any:
        """A pending replica of a workload."""
        spec = ReplicaSpec(
            workload=workload.name,
            workload_uid=workload.metadata.uid,
            ordinal=ordinal,
            incarnation=incarnation,
            template=workload.spec.template,
        )
        name = f"{workload.name}-{ordinal}-{incarnation}"
        meta = ObjectMeta(name=name, namespace=workload.namespace)
        return self.create(Replica(meta, spec=spec), WORKLOADS)

    def term(self, identity: Identity, scope: str = "") -> Term:
        """A lease for this identity on a scope of its own."""
        scope = scope or identity.name.removeprefix("system:")
        lease = accepted(self.ask(identity, AcquireLease(scope, 10_000)))
        return Term(scope, lease.spec.epoch)

    def bound(self, replica: Any, node: Any, term: Term, **more: Any) -> Any:
        """The replica after a bind that must be accepted."""
        return accepted(self.ask(SCHEDULER, bind(replica, node, term, **more)))


def template(cpu: str = "1", memory: str = "1Gi", **more: Any) -> Template:
    """A small template that asks for this much."""
    more = {"command": ("sleep", "60"), "resources": Resources(cpu=cpu, memory=memory), **more}
    return Template(**more)


def target(replica: Any) -> Target:
    """The replica as it was seen."""
    return Target(
        replica.namespace, replica.name, replica.metadata.uid, replica.status.transition_number
    )


def bind(replica: Any, node: Any, term: Term, **more: Any) -> Bind:
    """The request to bind this replica, as it was seen, to this node."""
    return Bind(target(replica), node.name, node.metadata.uid, term, **more)


def accepted(answer: Any) -> Any:
    """The object of an answer that must be a yes."""
    assert isinstance(answer, Accepted), answer
    return answer.objects[0] if answer.objects else None


def refused(answer: Any, reason: Reason) -> Refusal:
    """The refusal of an answer that must be this no."""
    assert isinstance(answer, Refusal), answer
    assert answer.reason is reason, answer
    return answer
