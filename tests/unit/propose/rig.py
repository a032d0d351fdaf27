"""Servers for one scheduler, played by hand: watch events, leases, and an authority that does
what the test says. Time is the test's own, and wake-ups come when it passes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.lease import Lease, LeaseSpec
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.tenant import PriorityClass, PriorityClassSpec, Tenant
from holdfast.model.lifecycle import State
from holdfast.model.machine import Answered, Ask, Leave, Open, Pushed, Started, Wake, Woken
from holdfast.model.meta import Object, ObjectMeta, Operation
from holdfast.model.placement.fit import demand_of
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of
from holdfast.model.requests import Accepted, AcquireLease, Bind, RenewLease, ReportPending
from holdfast.model.time import Instant, timestamp
from holdfast.observe.cache import Key
from holdfast.observe.watch_events import Departed, Present, Reached
from holdfast.propose.scheduler import Scheduler
from tests.plane import START_WALL_MS, template

STEPS_MAX = 20_000
# The interval of a server's bookmarks.
BOOKMARK_MS = 15_000


class Silence:
    """The authority does not answer this request; the test does, later or never."""


class Lost:
    """The answer is lost, after the bind was committed or before; its event may be lost, too."""

    def __init__(self, *, committed: bool, delivered: bool = True) -> None:
        self.committed, self.delivered = committed, delivered


class Rig:
    """See the module's docstring. `verdicts` are the authority's next answers to binds,
    `report_verdicts` to reports; then it accepts.
    """

    def __init__(self, seed: int = 1, **more: Any) -> None:
        self.seed, self.more = seed, more
        self.now_ms, self.revision = 1_000, 10
        self.objects: dict[str, dict[Key, Any]] = {}
        self.verdicts: list[Any] = []
        self.report_verdicts: list[Any] = []
        self.lease: LeaseSpec | None = None
        # Whether the servers can be reached at all, and whether their events arrive.
        self.is_cut_off = self.is_deaf = False
        self.said: list[Any] = []
        self.waiting: list[Ask] = []
        self._stimuli: list[Any] = []
        self.slow_kind = ""
        self._stalled: list[Open] = []
        self.answer_get: Callable[[Get], Any] = self._get
        self.put(Tenant(ObjectMeta(name="acme")))
        self.scheduler = self._born()

    def _born(self) -> Scheduler:
        self.streams: dict[int, str] = {}
        self.wakes: dict[str, int] = {"bookmark": self.now_ms + BOOKMARK_MS}
        return Scheduler("one", random.Random(self.seed), **self.more)

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, START_WALL_MS + self.now_ms)

    def start(self) -> None:
        self.step(Started({}))

    def restart(self) -> None:
        """Restart the scheduler; everything in flight is lost."""
        self.waiting.clear()
        self.scheduler = self._born()
        self.start()

    # Time and effects ----------------------------------------------------------------------------

    def pass_time(self, ms: int) -> None:
        """Let time pass, with all wake-ups in it."""
        end_ms = self.now_ms + ms
        for _ in range(STEPS_MAX):
            name = min(self.wakes, key=lambda wake: self.wakes[wake])
            if self.wakes[name] > end_ms:
                break
            self.now_ms = max(self.now_ms, self.wakes.pop(name))
            if name == "bookmark":
                self._bookmark()
            else:
                self.step(Woken(name))
        else:
            raise AssertionError("the scheduler wakes itself without end")
        self.now_ms = end_ms

    def _bookmark(self) -> None:
        self.wakes["bookmark"] = self.now_ms + BOOKMARK_MS
        for stream in list(self.streams):
            if not self.is_cut_off and not self.is_deaf:
                self.step(Pushed(stream, (Reached(self.revision),)))

    def step(self, stimulus: Any) -> None:
        """Hand over a stimulus. Like a shell, perform all effects before the next one."""
        self._stimuli.append(stimulus)
        if len(self._stimuli) > 1:
            return
        while self._stimuli:
            self._perform(self.scheduler.step(self._stimuli[0], self.now))
            self._stimuli.pop(0)

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Wake(name=name, at_ms=at_ms):
                    assert at_ms > self.now_ms
                    self.wakes[name] = at_ms
                case Open():
                    self._open(effect)
                case Leave(stream=stream):
                    del self.streams[stream]
                case Ask(call=call, body=body):
                    self.said.append(body)
                    answer = self.answer_request(body)
                    if isinstance(answer, Silence):
                        self.waiting.append(effect)
                    else:
                        self.step(Answered(call, answer))

    def answer(self, answer: Any) -> None:
        """Answer the first request that waits for an answer."""
        self.step(Answered(self.waiting.pop(0).call, answer))

    def _open(self, effect: Open) -> None:
        follow: Any = effect.body
        self.streams[effect.stream] = follow.plural
        if follow.plural == self.slow_kind:
            self._stalled.append(effect)
        elif not self.is_cut_off:
            self._list(effect)

    def catch_up(self) -> None:
        """Send the list of the kind that was held back."""
        self.slow_kind = ""
        for effect in self._stalled:
            self._list(effect)

    def _list(self, effect: Open) -> None:
        follow: Any = effect.body
        found = self.objects.get(follow.plural, {}).values()
        delivered: list[Any] = []
        if follow.since is None:
            delivered = [Present(obj, self._written(obj)) for obj in found]
        ends = Reached(self.revision, ends_list=follow.since is None)
        self.step(Pushed(effect.stream, (*delivered, ends)))

    # What is there -------------------------------------------------------------------------------

    @staticmethod
    def _written(obj: Object) -> int:
        return int(obj.metadata.resource_version) // 2

    def put(self, obj: Any) -> Any:
        """Store an object and send an event to every stream of its kind."""
        self.revision += 1
        metadata = msgspec.structs.replace(
            obj.metadata,
            uid=obj.metadata.uid or f"uid-{self.revision}",
            resource_version=object_version(self.revision),
        )
        obj = msgspec.structs.replace(obj, metadata=metadata)
        plural = kind_of(obj).plural
        self.objects.setdefault(plural, {})[obj.namespace, obj.name] = obj
        self._send_events(plural, Present(obj, self.revision))
        return obj

    def remove(self, obj: Any) -> None:
        self.revision += 1
        plural = kind_of(obj).plural
        gone = self.objects[plural].pop((obj.namespace, obj.name))
        self._send_events(plural, Departed(gone, self.revision))

    def _send_events(self, plural: str, *events: Any) -> None:
        if self.is_deaf or self.is_cut_off or not hasattr(self, "streams"):
            return
        for stream, followed in list(self.streams.items()):
            if followed == plural and stream in self.streams:
                self.step(Pushed(stream, (*events, Reached(self.revision))))

    def node(self, name: str = "node-a", cpu: str = "8", **spec: Any) -> Any:
        capacity: dict[str, Any] = {"cpu": cpu, "memory": "1Ti"}
        if "replicas" in spec:
            capacity["replicas"] = spec.pop("replicas")
        labels = spec.pop("labels", {})
        meta = ObjectMeta(name=name, labels=labels)
        return self.put(Node(meta, spec=NodeSpec(capacity=capacity, **spec)))

    def replica(
        self, name: str = "web-0-0", tenant: str = "acme", priority: int = 0, **more: Any
    ) -> Any:
        """A pending replica that asks for one core, unless said otherwise."""
        asked = more.pop("template", None)
        wanted: Template = asked if asked is not None else template(cpu=more.pop("cpu", "1"))
        spec = ReplicaSpec(
            workload="web", workload_uid="w", template=wanted, priority=priority, **more
        )
        return self.put(Replica(ObjectMeta(name=name, namespace=tenant), spec=spec))

    def urgent(self, name: str) -> None:
        self.put(PriorityClass(ObjectMeta(name=name), spec=PriorityClassSpec(urgent=True)))

    def get(self, name: str, tenant: str = "acme") -> Any:
        return self.objects["replicas"].get((tenant, name))

    def status(self, replica: Any, **changes: Any) -> Any:
        """Change a replica's status, as its owner would."""
        now = self.objects["replicas"][replica.namespace, replica.name]
        status = msgspec.structs.replace(now.status, **changes)
        if "state" in changes:
            number = now.status.transition_number + 1
            status = msgspec.structs.replace(status, transition_number=number)
        return self.put(msgspec.structs.replace(now, status=status))

    # The authority -------------------------------------------------------------------------------

    def answer_request(self, request: Any) -> Any:
        if self.is_cut_off:
            return Unavailable("no server is reachable")
        match request:
            case AcquireLease(scope=scope, duration_ms=duration_ms, instance=instance):
                epoch = (self.lease.epoch if self.lease is not None else 0) + 1
                self.lease = LeaseSpec(
                    scope=scope,
                    holder=self.scheduler.identity,
                    epoch=epoch,
                    duration_ms=duration_ms,
                    instance=instance,
                )
                return self._leased()
            case RenewLease(term=term):
                if self.lease is None or term.epoch != self.lease.epoch:
                    return Refusal(Reason.STALE_EPOCH, "another process holds the lease")
                return self._leased()
            case Get():
                return self.answer_get(request)
            case Bind():
                return self._bind(request)
            case ReportPending(target=target, pending=pending):
                if self.report_verdicts:
                    return self.report_verdicts.pop(0)
                found = self.get(target.name, target.namespace)
                if found is None or found.status.transition_number != target.number:
                    return Refusal(Reason.STALE_REPLICA, "it moved on")
                self.status(found, pending=pending)
                return Accepted(self.revision)
        raise AssertionError(request)

    def _leased(self) -> Accepted:
        assert self.lease is not None
        return Accepted(self.revision, (Lease(ObjectMeta(name="it"), spec=self.lease),))

    def _get(self, request: Get) -> Any:
        if request.plural == "leases":
            held = self.lease
            lease = Lease(ObjectMeta(name="it"), spec=held) if held is not None else None
            return GetResult(lease, self.revision)
        return GetResult(self.get(request.name, request.namespace), self.revision)

    def _bind(self, request: Bind) -> Any:
        verdict = self.verdicts.pop(0) if self.verdicts else None
        if isinstance(verdict, Lost):
            if verdict.committed:
                was_deaf, self.is_deaf = self.is_deaf, self.is_deaf or not verdict.delivered
                self.commit(request)
                self.is_deaf = was_deaf
            return OutcomeUnknown("the answer was lost")
        return verdict if verdict is not None else self.commit(request)

    def commit(self, request: Bind) -> Accepted | Refusal:
        """Commit a bind, once."""
        target = request.target
        found = self.get(target.name, target.namespace)
        if any(past.id == request.operation for past in found.metadata.operations):
            return Accepted(self.revision, (found,), replayed=True)
        if found.status.transition_number != target.number:
            return Refusal(Reason.STALE_REPLICA, "it moved on")
        done = Operation(id=request.operation, digest="", at=timestamp(self.now.wall_ms))
        metadata = msgspec.structs.replace(
            found.metadata, operations=(*found.metadata.operations, done)
        )
        binding = Binding(
            node=request.node,
            node_uid=request.node_uid,
            charge=demand_of(found.spec.template).amounts,
            devices=request.devices or (),
            ports=demand_of(found.spec.template).ports,
            priority_class=found.spec.template.priority_class or "default",
        )
        status = ReplicaStatus(
            state=State.BOUND, binding=binding, transition_number=target.number + 1
        )
        found = self.put(msgspec.structs.replace(found, metadata=metadata, status=status))
        return Accepted(self.revision, (found,))

    # What was said -------------------------------------------------------------------------------

    def sent(self, kind: type[Any]) -> list[Any]:
        return [request for request in self.said if isinstance(request, kind)]

    @property
    def binds(self) -> list[Bind]:
        return self.sent(Bind)

    @property
    def reports(self) -> list[ReportPending]:
        return self.sent(ReportPending)

    @property
    def looks(self) -> list[Get]:
        return [get for get in self.sent(Get) if get.plural == "replicas"]

    def where(self, name: str, tenant: str = "acme") -> str:
        """The node that a replica is bound to, or an empty string."""
        binding = self.get(name, tenant).status.binding
        return binding.node if binding is not None else ""


def refusal(reason: Reason, message: str = "no") -> Refusal:
    return Refusal(reason, message)


def small(slots: int = 1, **more: Any) -> Rig:
    """One node with room for `slots` replicas."""
    rig = Rig(**more)
    rig.node("node-0", cpu=str(slots))
    rig.start()
    return rig
