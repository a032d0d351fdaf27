"""The end-to-end world with parts of two versions over one store, which are replaced by each other.

    python -m holdfast.sim run holdfast.sim.worlds.versions.mixed:MIXED --seeds 0-99

Each life of a server, a scheduler, a controller runner, an agent or an operator is of one version
or of the next (`newer`), whose structs have one more field, which is written into workloads,
replicas and the ledgers of nodes. All are restarted all the time, so that each record is rewritten
by both and each pair of versions meets. Now and then one workload has a type that only the next
version knows. The invariants of the end-to-end world hold, no component crashes, and the new field
is never lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.commit.ledgers.ledger_sums import StoreContents
from holdfast.commit.ledgers.rebuild import rebuild_ledger
from holdfast.commit.record_encoding import encode
from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.encoding.unknown_fields import has_unknown
from holdfast.model.errors import Invalid, OutcomeUnknown, Unavailable
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.machine import Answer, Answered, Ask, Asked, Pushed
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.read_requests import GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Create, Forward, Update, refuses_unknown
from holdfast.model.time import Instant
from holdfast.model.transaction import Compare, Delete, Put, Transaction
from holdfast.observe.watch_events import read_line
from holdfast.sim.cell import Factory, Seat, SimulatedMachine
from holdfast.sim.check import CRASHED, Checker, Commit
from holdfast.sim.faults import STORE, FaultKind, Heal
from holdfast.sim.plan import SELDOM_LATE, Act, Fault, Hazard, calendar_steps
from holdfast.sim.planes.checkers.witness import FinalRecount
from holdfast.sim.planes.facts import AcknowledgedRequest, StateFact
from holdfast.sim.planes.simulated_plane import ServerFactory, SimulatedPlane, Trait, world_of
from holdfast.sim.planes.simulated_server import SimServer
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.scenario import LAWS, WELL_WITHIN_MS, parts, service
from holdfast.sim.worlds.versions.newer import (
    FIELD,
    GROWN,
    Later,
    next_version,
    read_object,
    read_object_from_client,
    struct_of,
)

NODES = 5
FAULTS_MS = 120_000
SETTLE_MS = WELL_WITHIN_MS + 30_000
TENANT = "later"
OPERATOR = "operator"
NEWER_ONLY = "mesh"
# A server's message about a field that it does not know.
UNKNOWN = "unknown field"
# One version may charge an object by the new field, and the other release it without (ADR 0098).
INEXACT = "the ledger says bytes"

HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("newer_type", 200, for_ms=(2_000, 60_000), share=1),
    Hazard("crash", 900, for_ms=(0, 3_000), amount=(0, 6), only="server", share=1),
    Hazard("crash", 300, for_ms=(0, 3_000), amount=(0, 6), only="controllers", share=1),
    Hazard("crash", 300, for_ms=(0, 3_000), amount=(0, 6), only="scheduler", share=1),
    Hazard("crash", 300, for_ms=(0, 3_000), amount=(0, 6), only="agent", share=1),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6)),
    Hazard("work_exit", 120, amount=(0, 2), only="agent"),
    Hazard("partition", 60, for_ms=(500, 20_000), only="agent", share=0.4),
    Hazard("store_mute", 60, for_ms=(1_000, 20_000), amount=(100, 900), share=0.4),
    Hazard("watch_expire", 30),
    Hazard("stream_break", 60),
)


class ObjectRejected(msgspec.Struct, frozen=True):
    """A fact: a server refused an object because of a field or value that it does not know."""

    sender: str
    name: str
    message: str


class VersionsMet(msgspec.Struct, frozen=True):
    """A fact: a server received an object; sender and server have a version each."""

    sender: str
    is_newer: bool
    server_is_newer: bool


class FieldPromised(msgspec.Struct, frozen=True):
    """A fact: the answer to a client says that an object was created with the new field."""

    key: str
    uid: str


class _RawStreamServer(SimServer):
    """A server that sends the raw lines of its streams: each reader decodes by its own structs."""

    def _read_piece(self, plural: str, piece: bytes) -> tuple[Any, ...]:
        return plural, piece


class _VersionedMachine:
    """A machine whose lives are each of one version or of the next."""

    def __init__(
        self, seat: Seat, machine: SimulatedMachine, *, is_newer: bool | None = None
    ) -> None:
        self.name = seat.name
        self.is_newer = seat.rng.random() < 0.5 if is_newer is None else is_newer
        self.machine = machine

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if not self.is_newer:
            return self._step_once(stimulus, now)
        with next_version():
            return self._step_once(stimulus, now)

    def _step_once(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        raise NotImplementedError


class MixedServer(_VersionedMachine):
    """A server that reads requests by its own structs. Clients read the answers by theirs."""

    def __init__(
        self, seat: Seat, settings: PlaneSettings, *, is_newer: bool | None = None
    ) -> None:
        super().__init__(seat, _RawStreamServer(seat, settings), is_newer=is_newer)

    def _step_once(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Asked):
            met = _versions_met(stimulus, self.is_newer)
            try:
                stimulus = Asked(stimulus.call, stimulus.sender, _request(stimulus.body))
            except Unavailable as error:
                return [Answer(stimulus.call, error)]
            except Invalid as error:
                refusal = Refusal(Reason.INVALID, error.message)
                return [
                    StateFact(
                        ObjectRejected(_who(stimulus.sender), _name(stimulus.body), error.message)
                    ),
                    Answer(stimulus.call, refusal),
                ]
            return [*met, *self.machine.step(stimulus, now)]
        return self.machine.step(stimulus, now)


class MixedComponent(_VersionedMachine):
    """A scheduler, controllers, an agent or an operator: any client of the servers."""

    @property
    def missed(self) -> int:
        """How many changes its streams should have brought and only a list found."""
        missed: int = getattr(self.machine, "missed", 0)
        return missed

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        effects = super().step(stimulus, now)
        is_asking = self.is_newer and self.name == OPERATOR
        return [it for effect in effects for it in _with_facts(effect, is_asking)]

    def _step_once(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        kind = type(stimulus)
        if kind is Pushed:
            stimulus = Pushed(stimulus.stream, _watch_events(self.is_newer, *stimulus.body))
        elif kind is Answered:
            stimulus = Answered(stimulus.call, self._read(stimulus.body))
        effects = self.machine.step(stimulus, now)
        # Only users ask for the new field as soon as they can; components do so a version later.
        return [_with_new_field(effect) for effect in effects] if self.name == OPERATOR else effects

    def _read(self, body: Any) -> Any:
        if self.name == OPERATOR and isinstance(body, Refusal) and UNKNOWN in body.message:
            # The operator tries another server.
            return Unavailable(body.message)
        return _read_answer(body)


def component(make: Factory) -> Factory:
    return lambda seat: MixedComponent(seat, make(seat))


@lru_cache(maxsize=512)
def _watch_events(is_newer: bool, plural: str, piece: bytes) -> tuple[Any, ...]:
    """The lines of a stream as a component of that version reads them."""
    struct = struct_of(plural, is_newer=is_newer)
    return tuple([read_line(struct, line) for line in piece.split(b"\n") if line])


def _request(body: Any) -> Any:
    """A request with its object as the server that received it decodes it."""
    is_forwarded = isinstance(body, Forward)
    request = body.request if is_forwarded else body
    if not isinstance(request, Create | Update):
        return body
    if not is_forwarded:
        obj = read_object_from_client(request.object, strict=refuses_unknown(request))
        return msgspec.structs.replace(request, object=obj)
    try:
        obj = read_object(request.object)
    except msgspec.ValidationError as error:
        raise Unavailable(f"a forwarded request cannot be read: {error}") from error
    if has_unknown(obj, encode(request.object)):
        raise Unavailable("a forwarded object has fields that this server does not know")
    return Forward(body.identity, msgspec.structs.replace(request, object=obj), body.epoch)


def _versions_met(asked: Asked, is_newer: bool) -> list[StateFact]:
    """The fact that two versions met, if the request shows the version of its sender."""
    if not isinstance(asked.body, Create | Update):
        return []
    kind = type(asked.body.object)
    is_told = issubclass(kind, Workload)
    return (
        [StateFact(VersionsMet(_who(asked.sender), kind is not Workload, is_newer))]
        if is_told
        else []
    )


def _read_answer(body: Any) -> Any:
    """An answer as a component decodes it: see `host/client/verdicts`."""
    try:
        if isinstance(body, Accepted):
            return msgspec.structs.replace(body, objects=tuple(map(read_object, body.objects)))
        if isinstance(body, GetResult) and body.object is not None:
            return GetResult(read_object(body.object), body.revision)
    except msgspec.ValidationError as error:
        kind = Unavailable if isinstance(body, GetResult) else OutcomeUnknown
        return kind(f"an answer that cannot be read: {error}")
    return body


def _with_new_field(effect: Any) -> Any:
    """An operator's request, with the fields that its version knows."""
    if not isinstance(effect, Ask) or not isinstance(effect.body, Create):
        return effect
    body = msgspec.structs.replace(effect.body, object=read_object(effect.body.object))
    return msgspec.structs.replace(effect, body=body)


def _with_facts(effect: Any, is_asking: bool) -> Sequence[Any]:
    """The effect; a fact is for checkers, which are of this version and get what it can decode.

    `is_asking` says that the request asked for the new field.
    """
    if type(effect) is not StateFact or not isinstance(effect.fact, AcknowledgedRequest):
        return [effect]
    fact = effect.fact
    answer, request = _read_answer(fact.answer), fact.request
    if not isinstance(answer, Accepted):
        return []
    promised = []
    if isinstance(request, Create | Update):
        if is_asking and isinstance(request, Create):
            (made,) = answer.objects
            promised = [StateFact(FieldPromised(keys.key_of(made), made.metadata.uid))]
        request = msgspec.structs.replace(request, object=read_object(request.object))
    return [*promised, StateFact(AcknowledgedRequest(fact.who, request, answer))]


def _who(sender: str | Identity) -> str:
    return sender.name if isinstance(sender, Identity) else sender


def _name(body: Any) -> str:
    request: Any = body.request if isinstance(body, Forward) else body
    name: str = request.object.metadata.name
    return name


class PreservedFields(Checker):
    """The field of the next version stays in every record that has it while the record exists.

    Only records that only the next version can decode come into quarantine. And no server refuses
    what a component of the other version writes: only users ask for the new field.
    """

    invariants = ("INV10", "V1", CRASHED)

    def __init__(self) -> None:
        # The records with the field; an object by its uid, since another may take its name.
        self._with_field: dict[str, str] = {}
        self._without_field: dict[str, str] = {}
        # How often a record that had it was rewritten, how often an answer promised it to a client,
        # and which versions met.
        self.rewritten = self.promised = 0
        self.met: set[VersionsMet] = set()

    def on_fact(self, world: World, fact: Any) -> None:
        match fact:
            case VersionsMet():
                self.met.add(fact)
            case ObjectRejected(sender=sender, name=name) if sender.startswith("system:"):
                if name != NEWER_ONLY:
                    self.violated(
                        "V1", f"{name} by {sender} of another version was refused: {fact.message}"
                    )
            case FieldPromised(key=key, uid=uid):
                self.promised += 1
                if self._without_field.get(key) == uid:
                    self.violated("INV10", f"{key} lacks the field that it was created with")

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            if change.key.startswith(keys.QUARANTINE) and not change.key.endswith(f"/{NEWER_ONLY}"):
                self.violated(CRASHED, f"{change.key}: {change.value!r}")
            if not change.key.startswith(tuple(GROWN)):
                continue
            if change.value is None:
                self._with_field.pop(change.key, None)
                continue
            uid = _uid(change.value)
            self._without_field[change.key] = "" if FIELD in change.value else uid
            if FIELD in change.value:
                self.rewritten += change.key in self._with_field
                self._with_field[change.key] = uid
            elif self._with_field.get(change.key) == uid:
                self.violated("INV10", f"{change.key} has lost the field of the next version")


class _Meta(msgspec.Struct):
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


def _uid(value: bytes) -> str:
    return msgspec.json.decode(value, type=_Named).metadata.uid


def objects_of_newer_type() -> tuple[Object, ...]:
    """A workload that nothing depends on, for the type that only the next version knows."""
    spec = WorkloadSpec(template=Template(command=("none",)), replicas=0)
    return (
        Tenant(ObjectMeta(name=TENANT)),
        Workload(ObjectMeta(name=NEWER_ONLY, namespace=TENANT), spec=spec),
    )


def _newer_type(world: World, fault: Fault) -> Heal | None:
    """A user gives the workload that type through a newer server, and reverts it."""
    store = world.stores[fault.target]
    key = keys.key_of(objects_of_newer_type()[-1])

    def typed(kind: str | None) -> None:
        (record,) = store.keyspace.range(key, key + "\0").records
        tree = msgspec.json.decode(record.value)
        tree["spec"].pop("type", None)
        tree["spec"].update({"type": kind} if kind else {})
        put = Put(key, msgspec.json.encode(tree))
        wish = Transaction((Compare(key, record.modified),), (put,))
        world.storage.write(store, wish, "a newer server")

    def repaired() -> None:
        """Repair what older servers cannot decode, as an operator does: the ledger has the type."""
        typed(None)
        counted = keys.disruption_ledger(TENANT, NEWER_ONLY)
        records = store.keyspace.range("", keys.END).records
        if all(record.key != counted for record in records):
            return
        put = Put(counted, encode(rebuild_ledger(StoreContents(records), counted)))
        wish = Transaction((), (put, Delete(keys.quarantine(counted))))
        world.storage.write(store, wish, "an operator")

    typed(Later.MESH.value)
    return repaired


def versions(plane: SimulatedPlane) -> None:
    """Clients of two versions, and a type of work that only the newer ones know."""
    plane.world.faults.add("newer_type", FaultKind(STORE, _newer_type))
    plane.component = component


def preserved(plane: SimulatedPlane) -> None:
    plane.world.checker(FinalRecount).inexact = INEXACT
    plane.world.check(PreservedFields())


def two_versions(server: ServerFactory) -> tuple[Trait, ...]:
    """The end-to-end world with a few nodes, and components of two versions."""
    usual = parts(
        NODES, zones="abcde", faults_ms=FAULTS_MS, more=objects_of_newer_type(), server=server
    )
    return (versions, *usual, *LAWS, preserved)


def script(rng: Random) -> Sequence[Act]:
    """What the operator does over the run. All of it fits, so that nothing is left pending."""
    small = {"cpu": "500m", "port": 0, "replicas": 2}
    acts = [Act(500 + 100 * i, "operator", service(rng, i) | small) for i in range(4)]
    for _ in range(12):
        scaled = {"do": "scale", "some": between(rng, 0, 99), "replicas": between(rng, 0, 4)}
        acts.append(Act(between(rng, 5_000, FAULTS_MS - 10_000), "operator", scaled))
    return sorted(acts, key=lambda act: act.at_ms)


MIXED = Scenario(
    name="holdfast.sim.worlds.versions.mixed:MIXED",
    build=world_of(*two_versions(MixedServer)),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
    damages=True,
)
