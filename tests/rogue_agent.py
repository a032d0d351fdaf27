"""An agent that was taken over: everything that it could ask for, drawn at random.

It knows all names, uids, versions and transition numbers there are, which is more than a real one
could. It asks for its own things as well, rightly and wrongly, so that a plane that refuses
everything would be noticed. `tests/property/test_node_reach.py` says what must become of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.commit.record_encoding import decode
from holdfast.model import keys
from holdfast.model import requests as ask
from holdfast.model.access import identity as who
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Process, Replica
from holdfast.model.kinds.reservation import Intent, ReservationOwner
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.registry import kind_of
from holdfast.model.requests import PatchType, Propagation, Target, Term
from tests.plane import Plane
from tests.rogue_parts import PARTS, merged

_AFTER_OBJECTS = keys.after_prefix(keys.OBJECTS)


class RogueAgent:
    """Draws requests against what is in the plane right now."""

    def __init__(self, plane: Plane, node: str, rng: random.Random) -> None:
        self._plane, self._node, self._rng = plane, node, rng
        self._decoded: dict[str, tuple[int, Object]] = {}
        self._sorts: tuple[Callable[[], Any], ...] = (
            *(self._patch,) * 6,
            *(self._update,) * 3,
            *(self._create,) * 2,
            *(self._remove,) * 2,
            *(self._move,) * 4,
            *(self._report,) * 2,
            *(self._register,) * 2,
            self._as_another,
        )

    def request(self) -> Any:
        """The next thing that it tries, most of the time with what it has to rest on."""
        made = self._rng.choice(self._sorts)()
        return self._plane.grounded(who.agent(self._node), made) if self._chance(0.9) else made

    # What there is -------------------------------------------------------------------------------

    def _all(self) -> list[Object]:
        found = []
        for record in self._plane.store.range(keys.OBJECTS, _AFTER_OBJECTS).records:
            modified, obj = self._decoded.get(record.key, (0, None))
            if obj is None or modified != record.modified:
                obj = decode(record.key, record.value)
                self._decoded[record.key] = (record.modified, obj)
            found.append(obj)
        return found

    def _object(self) -> Object:
        """Any object, most of the time one that could be its own."""
        found = self._all()
        if self._chance(0.6):
            found = [it for it in found if isinstance(it, Replica | Node)]
        return self._rng.choice(found)

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share

    def _name(self, obj: Object) -> str:
        return obj.name if self._chance(0.9) else f"{obj.name}-none"

    def _operation(self, obj: Object) -> str:
        """None, one of its own, or one that another caller has used on the object."""
        used = [it.id for it in obj.metadata.operations]
        return self._rng.choice(("", "", f"op-{self._rng.randrange(50)}", *used))

    def _target(self) -> Target:
        of = self._rng.choice([it for it in self._all() if isinstance(it, Replica)])
        uid = of.metadata.uid if self._chance(0.9) else "00000000-0000-4000-8000-000000000000"
        number = of.status.transition_number + (0 if self._chance(0.85) else 1)
        return Target(of.namespace, self._name(of), uid, number)

    # The ordinary verbs --------------------------------------------------------------------------

    def _patch(self) -> Any:
        obj = self._object()
        kind, type_ = kind_of(obj), self._rng.choice(tuple(PatchType))
        body: Any = {}
        for part in self._rng.choices(PARTS, k=self._rng.choice((1, 1, 1, 2, 3))):
            body = merged(body, part)
        if type_ is PatchType.JSON:
            body = self._operations(body)
        elif type_ is PatchType.APPLY:
            named = {"name": obj.name, "namespace": obj.namespace} if obj.namespace else {}
            head = {"apiVersion": "holdfast.dev/v1", "kind": kind.name}
            body = merged({**head, "metadata": named or {"name": obj.name}}, body)
        return ask.Patch(
            kind.plural,
            obj.namespace,
            self._name(obj),
            type_,
            body,
            self._rng.choice(("", "status", "status", "status", "scale", "log")),
            self._rng.choice(("agent", "kubectl")),
            type_ is PatchType.APPLY and self._chance(0.5),
            self._chance(0.5),
            self._chance(0.2),
            self._operation(obj),
        )

    def _operations(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The same as a JSON patch; a `test` asks what is there without changing anything."""
        found = []
        for top, below in body.items():
            for field, value in (below if isinstance(below, dict) else {"": below}).items():
                path = f"/{top}/{field}" if field else f"/{top}"
                verb = self._rng.choice(("add", "replace", "test", "remove"))
                found.append({"op": verb, "path": path, "value": value})
        return found

    def _update(self) -> Any:
        obj = self._object()
        alike = [it for it in self._all() if type(it) is type(obj)]
        other: Any = self._rng.choice(alike)
        fields = [it for it in ("spec", "status", "data", "rules") if hasattr(obj, it)]
        changed: Any = obj
        if fields and self._chance(0.7):
            field = self._rng.choice(fields)
            changed = msgspec.structs.replace(obj, **{field: getattr(other, field)})
        labels = obj.metadata.labels if self._chance(0.7) else {"pool": "gold"}
        metadata = msgspec.structs.replace(
            obj.metadata,
            labels=labels,
            finalizers=obj.metadata.finalizers if self._chance(0.7) else (),
            owner_references=obj.metadata.owner_references if self._chance(0.8) else (),
            name=self._name(obj),
        )
        changed = msgspec.structs.replace(changed, metadata=metadata)
        subresource = self._rng.choice(("", "status", "status"))
        return ask.Update(changed, subresource, "agent", self._chance(0.2), self._operation(obj))

    def _create(self) -> Any:
        obj = self._object()
        name, generated = obj.name, ""
        if self._chance(0.5):
            name, generated = "", f"{obj.name[:20]}-"
        elif self._chance(0.5):
            name = "made"
        metadata = ObjectMeta(
            name=name,
            generate_name=generated,
            namespace=obj.namespace,
            owner_references=obj.metadata.owner_references,
            finalizers=obj.metadata.finalizers if self._chance(0.3) else (),
        )
        made = msgspec.structs.replace(obj, metadata=metadata)
        return ask.Create(made, "agent", self._chance(0.2), self._operation(obj))

    def _remove(self) -> Any:
        obj = self._object()
        return ask.Remove(
            kind_of(obj).plural,
            obj.namespace,
            self._name(obj),
            obj.metadata.uid if self._chance(0.3) else "",
            propagation=self._rng.choice(tuple(Propagation)),
            grace_seconds=self._rng.choice((None, 0, 30)),
            force=self._chance(0.3),
            dry_run=self._chance(0.2),
            operation=self._operation(obj),
        )

    # Requests of components ----------------------------------------------------------------------

    def _process(self) -> Process | None:
        forged = Process(id="p", restarts=self._rng.randrange(5), addresses={"http": "10.0.0.9:1"})
        return self._rng.choice((None, Process(id="p"), forged))

    def _move(self) -> Any:
        return ask.Move(
            self._target(),
            self._rng.choice(tuple(State)),
            "Told",
            "by the agent",
            self._rng.choice((1, 1, 1, 2, None)),
            process=self._process(),
            word=self._rng.choice(("", "gone")),
            operation=self._rng.choice(("", f"op-{self._rng.randrange(50)}")),
        )

    def _report(self) -> Any:
        stage = self._rng.choice(tuple(Stage))
        life = self._rng.choice((1, 1, 2, None))
        return ask.ReportStage(self._target(), stage, life, self._process())

    def _register(self) -> Any:
        nodes: list[Any] = [it for it in self._all() if isinstance(it, Node)]
        node = self._rng.choice(nodes)
        if self._chance(0.7):
            node = next(it for it in nodes if it.name == self._node)
        spec = msgspec.structs.replace(
            node.spec,
            **self._rng.choice(
                (
                    {},
                    {"capacity": {"cpu": "32", "memory": "64Gi"}},
                    {"cordoned": not node.spec.cordoned},
                    {"pool": "recovery", "region": "us-east", "zone": "us-east-a"},
                    {"overcommit": {"cpu": 400}},
                )
            ),
        )
        status = msgspec.structs.replace(
            node.status,
            **self._rng.choice(({}, {"incarnation": 9}, {"mark": None}, {"agent_version": "9"})),
        )
        labels = node.metadata.labels if self._chance(0.5) else {"pool": "gold"}
        name = node.name if self._chance(0.95) else "node-new"
        metadata = ObjectMeta(name=name, labels=labels, finalizers=("example.com/hold",))
        made = Node(metadata, spec=spec, status=status)
        return ask.RegisterNode(made, (), self._rng.choice(("", f"op-{self._rng.randrange(50)}")))

    def _as_another(self) -> Any:
        """What only a scheduler, a controller or a server may ask for."""
        target, term = self._target(), Term("scheduler:one", 1)
        at = self._plane.at(60)
        owner = ReservationOwner(kind="Replica", name=target.name, uid=target.uid)
        bind = ask.Bind(target, self._node, "u", term)
        place = (target, self._node, "u")
        return self._rng.choice(
            (
                bind,
                ask.BindTogether((bind, bind)),
                ask.Reserve(*place, term, at),
                ask.Unreserve(target, "mine"),
                ask.HoldCapacity(target.namespace, owner, Intent.RECOVERY, (), at, term),
                ask.CommitGang(target.namespace, target.name, target.uid, term),
                ask.DropReservation(target.namespace, f"{target.name}-bind", target.uid, "mine"),
                ask.Evict(target, self._rng.choice(tuple(Cause))),
                ask.StopAndReserve(*place, (target,), term, at),
                ask.JudgeNode(
                    self._rng.choice((self._node, "node-b")),
                    "u",
                    self._rng.choice(tuple(ask.NodeAction)),
                    term,
                ),
                ask.AcquireLease(self._rng.choice(("scheduler:one", "authority")), 1_000),
                ask.RenewLease(term),
                ask.ReleaseLease(term),
                ask.RetireLease("scheduler:one", 1, 0),
                ask.ForgetOperations(("ann/op-1",), term),
            )
        )
