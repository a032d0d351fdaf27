"""The end-to-end world with damaged records: each may stop only requests about itself.

    python -m holdfast.sim run holdfast.sim.worlds.versions.rot:ROT --seeds 0-99

Some objects exist only for this, one of most kinds that components follow. A hazard overwrites one
of them: bytes that are no JSON, a missing field, a value that only a newer version can decode.
Everything else must go on as if nothing had happened, under the invariants of the end-to-end world.
An operator patches the damaged ones now and then, and the refusal must name the damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.commit.record_encoding import decode_or_none
from holdfast.model import keys
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.tenant import PriorityClass, PriorityClassSpec, Quota, QuotaSpec, Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.machine import Answered, Ask
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Patch, PatchType
from holdfast.model.time import Instant
from holdfast.model.transaction import Compare, Put, Transaction
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker, Commit
from holdfast.sim.faults import STORE, FaultKind, Heal
from holdfast.sim.plan import SELDOM_LATE, Act, Fault, Hazard, Prompted, calendar_steps
from holdfast.sim.planes.facts import StateFact
from holdfast.sim.planes.shared_names import ADMIN, CLIENT_SERVERS
from holdfast.sim.planes.simulated_plane import SimulatedPlane, world_of
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.scenario import LAWS, WELL_WITHIN_MS, parts, service

NODES = 5
FAULTS_MS = 120_000
SETTLE_MS = WELL_WITHIN_MS + 30_000
ROTTEN = "rotten"
CURIOUS = "curious"

HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("rot", 600, for_ms=(2_000, 60_000), amount=(0, 999), share=1),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6)),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="server"),
    Hazard("watch_expire", 60),
    Hazard("stream_break", 120),
    Hazard("delivery_repeat", 20, for_ms=(1_000, 60_000), amount=(50, 500)),
)


def decoys() -> tuple[Object, ...]:
    """Objects that nothing depends on."""
    named = ObjectMeta(name=ROTTEN)
    inside = ObjectMeta(name="default", namespace=ROTTEN)
    return (
        Tenant(named),
        Region(named),
        PriorityClass(named, spec=PriorityClassSpec(value=1)),
        Quota(inside, spec=QuotaSpec(hard={"cpu": "1"})),
        Workload(
            ObjectMeta(name=ROTTEN, namespace=ROTTEN),
            spec=WorkloadSpec(template=Template(command=("none",)), replicas=0),
        ),
    )


DECOYS = tuple(keys.key_of(obj) for obj in decoys())


def _unreadable(tree: dict[str, Any], how: int) -> bytes:
    """A form of the record that this version cannot decode."""
    section = tree.setdefault("spec", {}) if how % 2 else tree
    match how % 5:
        case 0:
            return b'{"metadata": {"name": "rott'
        case 1:
            section["type"] = section["phase"] = section["stage"] = 7
            tree["metadata"]["generation"] = "many"
        case 2:
            tree["metadata"]["name"] = how
        case 3:
            tree["metadata"]["ownerReferences"] = [{"kind": "Newer"}]
        case _:
            tree["apiVersion"] = "holdfast.dev/v2"
    return msgspec.json.encode(tree)


def _rot(world: World, fault: Fault) -> Heal | None:
    """Overwrite one of the decoys, as a bad disk or another version would; then restore it."""
    store = world.stores[fault.target]
    key = DECOYS[fault.amount % len(DECOYS)]
    found = store.keyspace.range(key, key + "\0").records
    good = found[0] if found and decode_or_none(found[0]) is not None else None
    if good is None:
        return None
    value = _unreadable(msgspec.json.decode(good.value), fault.amount // len(DECOYS))
    spoil = Transaction((Compare(key, good.modified),), (Put(key, value),))
    world.storage.write(store, spoil, "rot")
    at = store.keyspace.revision

    def heal() -> None:
        back = Transaction((Compare(key, at),), (Put(key, good.value),))
        world.storage.write(store, back, "rot")

    return heal


class DecoyAnswer(msgspec.Struct, frozen=True):
    """A fact: the answer to an operator who patched one of the decoys."""

    answer: Any


class LabelingOperator:
    """An operator who labels the decoys, and states the answers as facts."""

    def __init__(self, _seat: Seat) -> None:
        self._calls = 0

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Prompted(body={"key": key}):
                self._calls += 1
                return [Ask(self._calls, CLIENT_SERVERS, _label_patch(key, self._calls), 3_000)]
            case Answered(body=body):
                return [StateFact(DecoyAnswer(body))]
        return []


def _label_patch(key: str, number: int) -> Patch:
    plural, *inside = key.removeprefix(keys.OBJECTS).split("/")
    namespace, name = inside if len(inside) > 1 else ("", inside[0])
    body = {"metadata": {"labels": {"turn": str(number)}}}
    return Patch(plural, namespace, name, PatchType.MERGE, body)


class ConfinedRecords(Checker):
    """Damage is refused with its own reason, and every record so refused is in quarantine."""

    invariants = ("V1",)

    def __init__(self) -> None:
        self.met: dict[str, int] = {}
        self.noted: dict[str, None] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            if change.key.startswith(keys.QUARANTINE):
                self.noted[change.key.removeprefix(keys.QUARANTINE)] = None

    def on_fact(self, world: World, fact: Any) -> None:
        if not isinstance(fact, DecoyAnswer) or not isinstance(fact.answer, Refusal):
            return
        if fact.answer.reason is not Reason.RECORD_UNREADABLE:
            self.violated("V1", f"a decoy was refused with {fact.answer}")
        self.met.setdefault(fact.answer.details["record"], world.now_us)

    def at_end(self, world: World) -> None:
        unseen = [key for key in self.met if key not in self.noted]
        if unseen:
            self.violated("V1", f"{unseen[0]} was refused as unreadable and is not in quarantine")


def rotting(plane: SimulatedPlane) -> None:
    """Decoys that are damaged, and an operator who labels them."""
    plane.world.faults.add("rot", FaultKind(STORE, _rot))
    plane.add(CURIOUS, LabelingOperator, ADMIN)
    plane.world.check(ConfinedRecords())


def script(rng: Random) -> Sequence[Act]:
    """What the operators do over the run."""
    acts = [Act(500 + 100 * i, "operator", service(rng, i)) for i in range(3)]
    acts += [
        Act(between(rng, 5_000, FAULTS_MS - 20_000), "operator", service(rng, number))
        for number in range(3, 6)
    ]
    acts += [
        Act(between(rng, 10_000, FAULTS_MS), CURIOUS, {"key": pick(rng, DECOYS)}) for _ in range(40)
    ]
    return sorted(acts, key=lambda act: act.at_ms)


ROT = Scenario(
    name="holdfast.sim.worlds.versions.rot:ROT",
    build=world_of(
        *parts(NODES, zones="abcde", faults_ms=FAULTS_MS, more=decoys()), *LAWS, rotting
    ),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
    damages=True,
)
