"""Three audit writers on their own machines, clients whose transactions have audit stamps, and
faults.

    python -m holdfast.sim run holdfast.sim.worlds.audit.scenario:SCENARIO --seeds 0-99
"""

from __future__ import annotations

from typing import Any

from holdfast.commit.record_encoding import decode
from holdfast.model import keys
from holdfast.model.audit.audit_records import (
    Head,
    Mutation,
    Stamp,
    encode,
    head_of,
    mutation_of,
    record_of,
)
from holdfast.model.audit.chain import ChainVerifier
from holdfast.model.audit.journal_protocol import Append, Appended, Cut, Prune, Ready, Resume
from holdfast.model.errors import Unavailable
from holdfast.model.machine import Answered, Started, Txn, Wake, Woken
from holdfast.model.plane import Plane
from holdfast.model.time import Instant
from holdfast.model.transaction import Put, Transaction
from holdfast.observe.audit_writer.audit_writer import AuditWriter
from holdfast.sim.cell import Cell, Seat
from holdfast.sim.check import Checker, Commit, Settles
from holdfast.sim.plan import Hazard, calendar_steps
from holdfast.sim.planes.components import person, servers, store
from holdfast.sim.planes.simulated_plane import SimulatedPlane, world_of
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.world import World

WRITERS = ("server-1", "server-2", "server-3")
CLIENTS = ("clerk-1", "clerk-2")
FAULTS_MS = 240_000
SETTLE_MS = 60_000
CAUGHT_UP_MS = 45_000
# One append in this many finds a full disk, which then stays full for a while.
FULL_ONCE_IN = 40
FULL_US = 20_000_000

HAZARDS = (
    # No participant sends requests to another, so none comes late; operations of the store may.
    Hazard("crash", 200, for_ms=(0, 30_000), amount=(0, 8), only="server"),
    Hazard("pause", 200, for_ms=(500, 60_000), amount=(0, 8), only="server"),
    Hazard("clock_rate", 20, amount=(-200, 200)),
    calendar_steps(60),
    Hazard("partition", 60, for_ms=(500, 30_000)),
    Hazard("cut", 60, for_ms=(500, 30_000)),
    Hazard("store_slow", 40, for_ms=(1_000, 20_000), amount=(10, 2_000)),
    Hazard("store_fail", 60, for_ms=(1_000, 20_000), amount=(100, 900)),
    Hazard("store_mute", 90, for_ms=(1_000, 30_000), amount=(100, 900)),
    Hazard("store_late", 90, for_ms=(1_000, 30_000), amount=(50, 600)),
    Hazard("store_stall", 30, for_ms=(100, 10_000)),
    Hazard("store_compact", 30, amount=(0, 30)),
    Hazard("watch_hold", 60, for_ms=(100, 30_000), only="server"),
    Hazard("watch_expire", 60, only="server"),
)


class ScriptedAuthority:
    """Stands in for the authority: an audited write has its stamp in the same transaction."""

    def __init__(self, seat: Seat) -> None:
        self._name, self._life, self._rng = seat.name, seat.life, seat.rng
        self._calls = 0

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        if not isinstance(stimulus, Started | Woken):
            return []
        self._calls += 1
        writes = [Put(f"objects/leases/{self._name}", b"%d" % now.monotonic_ms)]
        if self._rng.random() < 0.6:
            # The other writes are renewals, which are not audited.
            mutations = tuple(
                Mutation(who=self._name, verb="Patch", name=f"{self._life}-{self._calls}-{part}")
                for part in range(1 + int(self._rng.random() * 3))
            )
            writes.append(Put(keys.audit_stamp(), encode(Stamp(now.wall_ms, mutations))))
        pause_ms = 100 + int(self._rng.random() * 2_900)
        wake = Wake("write", now.monotonic_ms + pause_ms)
        return [Txn(self._calls, Transaction((), tuple(writes))), wake]


class SimulatedJournals:
    """The journals on the disks: they survive every crash, and an acknowledged append is synced.

    As `host/audit/journal.py` does, they keep records after the head, and compare them with what is
    to be written there.
    """

    def __init__(self, world: World) -> None:
        # The files of each server, in the order of their creation.
        self.files: dict[str, list[list[bytes]]] = {name: [] for name in WRITERS}
        self.is_calm = False
        # How many lines of the last file are valid.
        self._valid_lines = dict.fromkeys(WRITERS, 0)
        self._world = world
        self._rng = world.rng("disks")
        self._full_until_us = dict.fromkeys(WRITERS, 0)
        world.perform(Resume, self._resume)
        world.perform(Append, self._append)
        world.perform(Cut, self._cut)
        world.perform(Prune, lambda _cell, _effect: None)

    @property
    def parts(self) -> list[list[bytes]]:
        """All files, in the order of their first records."""
        found = [file for files in self.files.values() for file in files if file]
        return sorted(found, key=lambda file: record_of(file[0]).number)

    def _resume(self, cell: Cell, effect: Resume) -> None:
        if effect.cut is not None:
            self._cut_before(cell.name, effect.cut, effect.head.hash)
        files, head = self.files[cell.name], effect.head
        last = [record_of(line) for line in files[-1]] if files else []
        place = next((n for n, it in enumerate(last, 1) if it.hash == head.hash), None)
        if place is None and last and last[0].previous == head.hash:
            place = 0
        if place is None:
            files.append([])
        self._valid_lines[cell.name] = place or 0
        self._answer(cell, effect.call, Ready())

    def _append(self, cell: Cell, effect: Append) -> None:
        world, name = self._world, cell.name
        if self._rng.random() * FULL_ONCE_IN < 1 and not self.is_calm:
            self._full_until_us[name] = world.now_us + FULL_US
        if world.now_us < self._full_until_us[name] and not self.is_calm:
            world.inject("disk_full")
            self._answer(cell, effect.call, Unavailable("No space left on device"))
            return
        file = self.files[name][-1]
        for line in effect.lines:
            place = self._valid_lines[name]
            if place < len(file) and file[place] != line:
                world.inject("set_aside")
                del file[place:]
            if place == len(file):
                file.append(line)
            self._valid_lines[name] += 1
        self._answer(cell, effect.call, Appended())

    def _cut(self, cell: Cell, effect: Cut) -> None:
        self._cut_before(cell.name, effect.last, "")

    def _cut_before(self, name: str, last: int, present: str) -> None:
        for file in self.files[name]:
            if file and record_of(file[0]).previous == present:
                return
            kept = [line for line in file if record_of(line).number <= last]
            if len(kept) < len(file):
                self._world.inject("cut_off")
            file[:] = kept

    def _answer(self, cell: Cell, call: int, body: Any) -> None:
        self._world.send(cell, Answered(call, body), between(self._rng, 100, 50_000))


class OneChain(Checker):
    """INV9: the chain has every mutation once and in order, or a record of the gap."""

    invariants = ("INV9", "INV11")

    def __init__(self, journals: SimulatedJournals) -> None:
        self._journals = journals
        self._done: list[tuple[int, bytes]] = []
        self._heads: dict[int, str] = {}
        self.gaps = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            if change.key == keys.audit_stamp() and change.value is not None:
                self._done.append((commit.revision, change.value))
            if change.key == keys.audit_head() and change.value is not None:
                self._check_head(head_of(change.value))

    def _check_head(self, head: Head) -> None:
        """A committed head never moves back, and its records are on some disk."""
        known = self._heads.setdefault(head.number, head.hash)
        if known != head.hash:
            self.violated("INV9", f"the head had two different records {head.number}")
        if head.number < max(self._heads):
            self.violated("INV9", f"the head went back to {head.number}")
        numbers = (record_of(part[-1]).number for part in self._journals.parts)
        if head.number > max(numbers, default=0):
            self.violated("INV11", f"record {head.number} is in the head but on no disk")

    def on_calm(self, world: World) -> None:
        self._journals.is_calm = True

    def at_end(self, world: World) -> None:
        record = world.stores["store"].keyspace.get(keys.audit_head())
        head = head_of(record.value) if record is not None else Head()
        judge = ChainVerifier()
        for part in self._journals.parts:
            judge.part("part", part)
        found = judge.judgement(head)
        self.gaps = len(found.gaps)
        if found.findings:
            self.violated("INV9", "; ".join(found.findings[:3]))
        missing = [(gap.after, gap.upto) for gap in found.gaps]
        due = [
            mutation
            for revision, value in self._done
            if revision <= head.revision
            and not any(after < revision <= upto for after, upto in missing)
            for mutation in _names(value)
        ]
        if self._recorded_mutations(head) != due:
            self.violated("INV9", f"the chain differs from the {len(due)} mutations that are due")

    def _recorded_mutations(self, head: Head) -> list[str]:
        by_number = {}
        for line in (line for part in self._journals.parts for line in part):
            record = record_of(line)
            if record.number <= head.number and not record.is_gap:
                mutation = mutation_of(record)
                by_number[record.number] = f"{mutation.who}/{mutation.name}"
        return [by_number[number] for number in sorted(by_number)]


def _names(value: bytes) -> list[str]:
    stamp = decode(keys.audit_stamp(), value)
    return [f"{it.who}/{it.name}" for it in stamp.mutations]


def behind(world: World) -> str | None:
    """How far the chain is behind, if it is further than the writers need to be."""
    keyspace = world.stores["store"].keyspace
    record, stamp = keyspace.get(keys.audit_head()), keyspace.get(keys.audit_stamp())
    head = head_of(record.value) if record is not None else Head()
    lag = stamp.modified - head.revision if stamp is not None else 0
    # The clients keep writing, and a record waits up to a second for others.
    return f"{lag} revisions are not in the chain" if lag > 60 else None


def journals(plane: SimulatedPlane) -> None:
    """The disks of the writers, and what must hold of the records on them."""
    chain = OneChain(SimulatedJournals(plane.world))
    plane.world.check(chain, Settles("V1", behind, within_ms=CAUGHT_UP_MS))


SCENARIO = Scenario(
    name="holdfast.sim.worlds.audit.scenario:SCENARIO",
    build=world_of(
        store(),
        servers(lambda seat, _settings: AuditWriter(seat.name)),
        *(person(name, lambda seat, _who: ScriptedAuthority(seat), name) for name in CLIENTS),
        journals,
        plane=Plane(servers=WRITERS),
    ),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
)
