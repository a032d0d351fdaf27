"""Asking why a replica is not further, on a stage: as a server would, from what the plane has.

The records of the store, what each server heard of agents, what components would say of themselves,
and the last decisions. Nothing of the world's own truth goes into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.correct.controller_runner import ControllerRunner
from holdfast.explain.answer import Explanation
from holdfast.explain.evidence import (
    ReplicaFacts,
    StoredRecords,
    decode_records,
    ranges_to_read,
    siblings_of,
    siblings_range,
)
from holdfast.explain.explain_replica import explain
from holdfast.model import keys
from holdfast.model.fence import FenceTiming
from holdfast.model.heartbeat import HeartbeatQuery, HeartbeatReport
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.machine import Answer, Asked
from holdfast.model.pulse import Beat, Pulse, Pulses, ReceivedPulse
from holdfast.model.registry import kind_of_struct
from holdfast.propose.scheduler import Scheduler
from holdfast.sim.cell import Cell
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.rogues import ADMIN
from holdfast.sim.worlds.end_to_end.servers import SimServer
from holdfast.store.memory import Keyspace


class ExplanationGiven(msgspec.Struct, frozen=True):
    """A fact: somebody asked about a replica, and this is the answer."""

    about: str
    asked_ms: int
    answer: Explanation

    def __repr__(self) -> str:
        say = self.answer.finding
        until = f" by {say.deadline:%H:%M:%S}" if say.deadline is not None else ""
        who = f"{say.owner}{until}" if say.owner else "nobody"
        return f"why is {self.answer.name} not further? {say.leg}, {say.why}: next moves {who}"


def explain_now(
    world: World,
    keyspace: Keyspace,
    key: str,
    timing: FenceTiming,
    decisions: Mapping[str, Decision],
) -> Explanation | None:
    """What is known of a replica by its key; None if there is none."""
    read = _read(keyspace, [(key, key + "\0")])
    replica = read.get(key)
    if not isinstance(replica, Replica):
        return None
    binding = replica.status.binding
    wanted = [(key, key + "\0")]
    node: Node | None = None
    if binding is not None:
        where = keys.object_key(kind_of_struct(Node), "", binding.node)
        wanted.append((where, where + "\0"))
        node = _read(keyspace, wanted[-1:]).get(where)
    wanted += ranges_to_read(replica, node)
    facts = ReplicaFacts(
        replica,
        _read(keyspace, wanted),
        timing,
        siblings=siblings_of(_read(keyspace, [siblings_range(replica)]), replica),
        heard=tuple(_heard(world)),
        pulses=tuple(_pulses(world)),
        decision=decisions.get(replica.metadata.uid),
    )
    now = next(iter(_servers(world))).host.clock.instant(world.now_us)
    return explain(facts, now)


def _read(keyspace: Keyspace, wanted: Iterable[tuple[str, str]]) -> StoredRecords:
    records = [record for it in wanted for record in keyspace.range(*it).records]
    return decode_records(keyspace.revision, records)


def _servers(world: World) -> Iterable[Cell]:
    return (it for it in world.cells.values() if isinstance(it.machine, SimServer))


def _heard(world: World) -> Iterable[HeartbeatReport]:
    """What each server that works would answer controller:nodes."""
    for cell in _servers(world):
        if not cell.ready:
            continue
        now = cell.host.clock.instant(world.now_us)
        machine: Any = cell.machine
        for effect in machine.renewals.step(Asked(0, ADMIN, HeartbeatQuery()), now):
            if isinstance(effect, Answer) and isinstance(effect.body, HeartbeatReport):
                yield effect.body


def _pulses(world: World) -> Iterable[Pulses]:
    """What each component that works would say of itself."""
    felt: list[ReceivedPulse] = []
    for cell in world.cells.values():
        machine: Any = cell.machine
        while machine is not None and not isinstance(machine, ControllerRunner | Scheduler):
            machine = getattr(machine, "machine", None)
        if machine is None or not cell.ready:
            continue
        now = cell.host.clock.instant(world.now_us)
        beats = machine.beats(now) if isinstance(machine, ControllerRunner) else (_beat(machine),)
        pulse = Pulse(cell.name, beats, picture_ms=max(0, machine.cache.age_ms(now)))
        felt.append(ReceivedPulse(str(cell.identity), 0, pulse))
    yield Pulses("stage", 1 << 20, tuple(felt))


def _beat(machine: Scheduler) -> Beat:
    term = machine.election.term
    return Beat(machine.election.scope, term.epoch if term is not None else 0)
