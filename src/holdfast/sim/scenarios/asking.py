"""Explains in a simulated plane why a replica makes no progress, as a server would.

The explanation uses the store's records, the heartbeats that each server received, the pulses of
the components, and the last decisions. It uses no ground truth of the simulated world.
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
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.machine import Answer, Asked
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport
from holdfast.model.pulse import Beat, Pulse, Pulses, ReceivedPulse
from holdfast.model.registry import kind_of_struct
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.scheduler import Scheduler
from holdfast.sim.cell import Cell
from holdfast.sim.planes.shared_names import ADMIN
from holdfast.sim.planes.simulated_server import SimServer
from holdfast.sim.world import World
from holdfast.store.memory import Keyspace


class ExplanationGiven(msgspec.Struct, frozen=True):
    """A fact: the explanation that was given for a replica."""

    about: str
    asked_ms: int
    answer: Explanation

    def __repr__(self) -> str:
        finding = self.answer.finding
        until = f" by {finding.deadline:%H:%M:%S}" if finding.deadline is not None else ""
        who = f"{finding.owner}{until}" if finding.owner else "none"
        cause = f"{finding.leg}, {finding.why}"
        return f"explanation of {self.answer.name}: {cause}; next owner: {who}"


def explain_now(
    world: World,
    keyspace: Keyspace,
    key: str,
    timing: FenceTiming,
    decisions: Mapping[str, Decision],
) -> Explanation | None:
    """The explanation for the replica with this key; None if there is no such replica."""
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
        heard=tuple(_heartbeat_reports(world)),
        pulses=tuple(_pulses(world)),
        decision=decisions.get(replica.metadata.uid),
    )
    now = next(iter(_servers(world))).host.clock.instant(world.now_us)
    return explain(facts, now, VerdictCache())


def _read(keyspace: Keyspace, wanted: Iterable[tuple[str, str]]) -> StoredRecords:
    records = [record for it in wanted for record in keyspace.range(*it).records]
    return decode_records(keyspace.revision, records)


def _servers(world: World) -> Iterable[Cell]:
    return (it for it in world.cells.values() if isinstance(it.machine, SimServer))


def _heartbeat_reports(world: World) -> Iterable[HeartbeatReport]:
    """What each working server would answer to controller:nodes."""
    for cell in _servers(world):
        if not cell.ready:
            continue
        now = cell.host.clock.instant(world.now_us)
        machine: Any = cell.machine
        for effect in machine.renewals.step(Asked(0, ADMIN, HeartbeatQuery()), now):
            if isinstance(effect, Answer) and isinstance(effect.body, HeartbeatReport):
                yield effect.body


def _pulses(world: World) -> Iterable[Pulses]:
    """The pulse that each working component would send."""
    received: list[ReceivedPulse] = []
    for cell in world.cells.values():
        machine: Any = cell.machine
        while machine is not None and not isinstance(machine, ControllerRunner | Scheduler):
            machine = getattr(machine, "machine", None)
        if machine is None or not cell.ready:
            continue
        now = cell.host.clock.instant(world.now_us)
        beats = machine.beats(now) if isinstance(machine, ControllerRunner) else (_beat(machine),)
        pulse = Pulse(cell.name, beats, picture_ms=max(0, machine.cache.age_ms(now)))
        received.append(ReceivedPulse(str(cell.identity), 0, pulse))
    yield Pulses("stage", 1 << 20, tuple(received))


def _beat(machine: Scheduler) -> Beat:
    term = machine.election.term
    return Beat(machine.election.scope, term.epoch if term is not None else 0)
