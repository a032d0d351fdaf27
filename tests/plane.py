"""A plane to decide on: the real authority over the real memory store, driven by hand, in one
thread and without a clock of its own. Tests of commit/ say who asks for what and read the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.commit.authority import Authority, GroupLimits
from holdfast.commit.context import PlaneSettings
from holdfast.commit.record_encoding import decode
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import ADMINS, Identity
from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.kinds.lease import lease_name
from holdfast.model.kinds.node import Device, Node, NodeSpec
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import Resources, Template
from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import Cause, State
from holdfast.model.machine import Answer, Answered, Asked, FateOf, Txn, Wake, Woken
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_plural
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    Bind,
    Create,
    HoldCapacity,
    JudgeNode,
    Move,
    Patch,
    RegisterNode,
    Remove,
    RenewLease,
    ReportPending,
    ReportStage,
    Target,
    Term,
    Update,
)
from holdfast.model.time import Instant, timestamp
from holdfast.model.transaction import Compare, Put, Transaction
from holdfast.store.memory import Keyspace

ADMIN = Identity(name="admin", groups=(ADMINS,))
SCHEDULER = who.scheduler("one")
WORKLOADS = who.controller("workload")
NODES = who.controller("nodes")
REPAIR = who.controller("repair")
START_WALL_MS = 1_800_000_000_000
STEPS_MAX = 10_000
TERMED = (Create, Update, Patch, Remove, ReportStage, ReportPending)
NAMED = (Create, HoldCapacity)


class Plane:
    """One store, one authority, and a hand on the clock."""

    def __init__(
        self,
        *,
        settings: PlaneSettings | None = None,
        limits: GroupLimits | None = None,
        seed: int = 1,
    ) -> None:
        self.store = Keyspace()
        self.settings = settings if settings is not None else PlaneSettings()
        self.limits = limits if limits is not None else GroupLimits()
        self.seed = seed
        self.authority = self.new_authority()
        self.elapsed_ms = 0
        # By how much the calendar of the deciding server is wrong.
        self.ahead_ms = 0
        self.transactions: list[Transaction] = []
        self.spoil: Callable[[Txn | FateOf], Any] | None = None
        # Whether a test has damaged records; otherwise no decision may find any.
        self.damaged = False
        self._calls = self._operations = self._renewals = 0
        self.repeated: dict[tuple[str, str], Any] = {}
        # Whether components' requests are given what they rest on where the test leaves it out.
        self.grounds = True

    def new_authority(self) -> Authority:
        """Another authority over the same store, as after a restart or beside the first."""
        return Authority(random.Random(self.seed), self.store, self.settings, self.limits)

    @property
    def now(self) -> Instant:
        return Instant(self.elapsed_ms, START_WALL_MS + self.elapsed_ms + self.ahead_ms)

    def at(self, after_s: float = 0.0) -> datetime:
        return timestamp(self.now.wall_ms) + timedelta(seconds=after_s)

    def ask(self, identity: Identity, request: Any) -> Any:
        """One request, one answer."""
        return self.ask_all((identity, request))[0]

    def ask_all(self, *pairs: tuple[Identity, Any]) -> list[Any]:
        """Several requests that arrive together, and their answers in order."""
        grounded = [(identity, self.grounded(identity, request)) for identity, request in pairs]
        work: list[Any] = []
        for identity, request in grounded:
            self._calls += 1
            work.append(Asked(self._calls, identity, request))
        calls = [asked.call for asked in work]
        answers: dict[int, Any] = {}
        # All of them arrive before the first transaction is answered, so they share a group.
        for _ in range(STEPS_MAX):
            if not work:
                break
            self.perform(self.authority.step(work.pop(0), self.now), work, answers)
        if not self.damaged:
            wrong = [it for it in answers.values() if isinstance(it, Refusal) and _in_doubt(it)]
            assert not wrong, f"a decision broke down: {wrong[0]}"
        return [answers[call] for call in calls]

    def grounded(self, identity: Identity, request: Any) -> Any:
        """The request with what a component rests it on, where the test does not say it.

        It has just looked, and holds its lease: so its versions are those of the store.
        """
        if not self.grounds or not _is_component(identity):
            return request
        # One that is sent again is the same again, whatever has changed since.
        named = identity.name, repr(request)
        if getattr(request, "operation", "") and named in self.repeated:
            return self.repeated[named]
        grounded = self.repeated[named] = self._with_grounds(identity, request)
        return grounded

    def forget_requests(self) -> None:
        """None was sent yet, so that none is sent again: the store is another one from here on."""
        self._operations = self._renewals = 0
        self.repeated.clear()

    def _with_grounds(self, identity: Identity, request: Any) -> Any:
        more: dict[str, Any] = {}
        if isinstance(request, TERMED) and request.term is None and _is_leased(identity):
            more["term"] = self._own_term(identity)
        if isinstance(request, NAMED) and not request.operation:
            self._operations += 1
            more["operation"] = f"{identity.name}/of-the-rig/{self._operations}"
        if isinstance(request, ReportStage | ReportPending | JudgeNode) and not request.version:
            more["version"] = self._version(_key_of_subject(request))
        if isinstance(request, RenewLease) and not request.number:
            self._renewals += 1
            more["number"] = self._renewals
        if isinstance(request, Remove) and not request.uid:
            key = keys.object_key(kind_of_plural(request.plural), request.namespace, request.name)
            there = self.read(key)
            more["uid"] = there.metadata.uid if there is not None else "none"
        if isinstance(request, Update) and not request.object.metadata.resource_version:
            more["object"] = self._as_seen(request.object)
        if isinstance(request, Patch) and self._there(request) is not None:
            more["body"] = self._with_version(request)
        if isinstance(request, RegisterNode) and not request.node.metadata.resource_version:
            more["node"] = self._as_seen(request.node)
        if isinstance(request, AcquireLease) and not request.seen_epoch:
            lease = self.read(f"{keys.OBJECTS}leases/{lease_name(request.scope)}")
            if lease is not None and not lease.spec.holder:
                more |= {"seen_epoch": lease.spec.epoch, "seen_renewals": lease.spec.renewals}
        return msgspec.structs.replace(request, **more) if more else request

    def _own_term(self, identity: Identity) -> Term:
        """The lease of a component, which it takes unless it has it."""
        scope = identity.name.removeprefix("system:")
        epoch = self.read(keys.epoch(scope))
        if epoch is not None and epoch.holder == identity.name:
            return Term(scope, epoch.epoch)
        lease = self.read(f"{keys.OBJECTS}leases/{lease_name(scope)}")
        seen = (lease.spec.epoch, lease.spec.renewals) if lease is not None else (0, 0)
        taken = accepted(self.ask(identity, AcquireLease(scope, 10_000, *seen)))
        return Term(scope, taken.spec.epoch)

    def _there(self, request: Patch) -> Any:
        kind = kind_of_plural(request.plural)
        return self.store.get(keys.object_key(kind, request.namespace, request.name))

    def _with_version(self, request: Patch) -> Any:
        version = object_version(self._there(request).modified)
        if isinstance(request.body, list):
            return [
                {"op": "test", "path": "/metadata/resourceVersion", "value": version},
                *request.body,
            ]
        if not isinstance(request.body, dict):
            return request.body
        metadata = {"resourceVersion": version, **request.body.get("metadata", {})}
        return {**request.body, "metadata": metadata}

    def _version(self, key: str) -> str:
        record = self.store.get(key)
        return object_version(record.modified) if record is not None else "none"

    def _as_seen(self, obj: Any) -> Any:
        there = self.get(obj)
        if there is None:
            return obj
        version = self._version(keys.key_of(obj))
        metadata = msgspec.structs.replace(
            obj.metadata, uid=there.metadata.uid, resource_version=version
        )
        return msgspec.structs.replace(obj, metadata=metadata)

    def perform(self, effects: list[Any], work: list[Any], answers: dict[int, Any]) -> None:
        """Perform what the authority wants: answers, transactions, and wake-ups at once."""
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

    def damage(self, key: str, change: Callable[[dict[str, Any]], Any] | bytes) -> None:
        """Write over a record, past the authority: bytes, or a change of its tree."""
        self.damaged = True
        record = self.store.get(key)
        assert record is not None, key
        data = change
        if not isinstance(data, bytes):
            tree = msgspec.json.decode(record.value)
            changed = change(tree)  # type: ignore[operator]
            data = msgspec.json.encode(tree if changed is None else changed)
        self.store.txn(Transaction((Compare(key, record.modified),), (Put(key, data),)))

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
        """A registered node of 8 cores and 32 GiB, with this many GPUs."""
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
            gang=workload.name if workload.spec.gang is not None else "",
            template=workload.spec.template,
        )
        name = f"{workload.name}-{ordinal}-{incarnation}"
        meta = ObjectMeta(name=name, namespace=workload.namespace)
        return self.create(Replica(meta, spec=spec), WORKLOADS)

    def replacement(self, workload: Any, ordinal: int = 0) -> Any:
        """A pending replica at a place whose first one was released before it was bound."""
        first = self.replica(workload, ordinal)
        reason, term = Cause.SCALE_DOWN.value, self.term(WORKLOADS)
        release = Move(target(first), State.RELEASED, reason, term=term)
        accepted(self.ask(WORKLOADS, release))
        return self.replica(workload, ordinal, 1)

    def term(self, identity: Identity, scope: str = "") -> Term:
        """A lease for this identity on a scope of its own."""
        scope = scope or identity.name.removeprefix("system:")
        there = self.read(f"{keys.OBJECTS}leases/{lease_name(scope)}")
        if there is not None and there.spec.holder == identity.name:
            return Term(scope, there.spec.epoch)
        lease = accepted(self.ask(identity, AcquireLease(scope, 10_000)))
        return Term(scope, lease.spec.epoch)

    def bound(self, replica: Any, node: Any, term: Term, **more: Any) -> Any:
        """The replica after a bind that must be accepted."""
        return accepted(self.ask(SCHEDULER, bind(replica, node, term, **more)))


def _in_doubt(refusal: Refusal) -> bool:
    return "found" in refusal.details and "record" in refusal.details


def _is_component(identity: Identity) -> bool:
    return identity.name.startswith("system:")


def _is_leased(identity: Identity) -> bool:
    return identity.name.startswith(("system:controller:", "system:scheduler:"))


def _key_of_subject(request: Any) -> str:
    if isinstance(request, JudgeNode):
        return keys.object_key(kind_of_plural("nodes"), "", request.node)
    target = request.target
    return keys.object_key(kind_of_plural("replicas"), target.namespace, target.name)


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
