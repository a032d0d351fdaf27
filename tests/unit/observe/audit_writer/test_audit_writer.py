"""Audit writers over one store: one chain, whatever happens to the writers."""

from __future__ import annotations

from typing import Any

import pytest

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
from holdfast.model.audit.chain import ChainVerification, ChainVerifier
from holdfast.model.audit.journal_protocol import Append, Appended, Cut, Prune, Ready, Resume
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.machine import (
    Answered,
    Changed,
    Range,
    Started,
    Txn,
    Unwatch,
    Wake,
    Watch,
    Woken,
)
from holdfast.model.plane_format import FORMAT
from holdfast.model.time import Instant
from holdfast.model.transaction import Put, Transaction
from holdfast.observe.audit_writer import audit_writer as scribe_module
from holdfast.observe.audit_writer.audit_writer import (
    FLUSH_LINES,
    FLUSH_MS,
    IDLE_REVISIONS,
    LOOK_MS,
    PENDING_MAX,
    STANDSTILL_MS,
    AuditWriter,
)
from holdfast.observe.audit_writer.chain_end import Chain
from holdfast.store.memory import Keyspace


class ServerRig:
    """One server: an audit writer, its journal, and its faults."""

    def __init__(self, plane: PlaneRig, name: str) -> None:
        self.plane, self.name = plane, name
        self.lines: list[bytes] = []
        self.floor = 1
        self.pruned = 1
        self.full = False
        self.begin()

    def begin(self) -> None:
        """Start it, or restart it."""
        self.writer = AuditWriter(self.name)
        self.wakes: dict[str, int] = {}
        self.watch: tuple[int, int] | None = None
        self.line: list[Any] = [Started({})]

    def resume(self, head: Head) -> None:
        numbers = [record_of(line).number for line in self.lines]
        self.lines = [x for x, n in zip(self.lines, numbers, strict=True) if n <= head.number]

    def step(self) -> bool:
        """Deliver one stimulus. Returns whether there was one."""
        self._deliver()
        if not self.line:
            return False
        now = self.plane.now
        for effect in self.writer.step(self.line.pop(0), now):
            answer = self._perform(effect)
            if answer is not None:
                self.line.append(Answered(effect.call, answer))
        return True

    def _deliver(self) -> None:
        store, now_ms = self.plane.store, self.plane.now.monotonic_ms
        for name in [name for name, at_ms in self.wakes.items() if at_ms <= now_ms]:
            del self.wakes[name]
            self.line.append(Woken(name))
        if self.watch is None:
            return
        number, after = self.watch
        try:
            batch = store.changes(keys.audit_stamp(), after=after)
        except HoldfastError as error:
            self.watch = None
            self.line.append(Changed(number, error))
            return
        if batch.revision > after:
            self.watch = (number, batch.revision)
            self.line.append(Changed(number, batch))

    def _perform(self, effect: Any) -> Any:
        match effect:
            case Wake(name=name, at_ms=at_ms):
                self.wakes[name] = at_ms
            case Watch(watch=number, after=after):
                self.watch = (number, after)
            case Unwatch():
                self.watch = None
            case Prune(floor=floor):
                self.pruned = floor
            case Cut(last=last):
                self.lines = [line for line in self.lines if record_of(line).number <= last]
            case Resume(head=head):
                self.resume(head)
                return Ready()
            case Append(lines=lines):
                if self.full:
                    return Unavailable("no space left on device")
                self.lines += lines
                return Appended(self.floor)
            case Range() | Txn():
                return self.plane.on_store(self, effect)
        return None


class PlaneRig:
    """A store, several servers, and a clock that the test moves."""

    def __init__(self, *names: str) -> None:
        self.store = Keyspace()
        self.elapsed_ms = 0
        self.said = 0
        self.lost: list[Any] = []
        self.servers = {name: ServerRig(self, name) for name in names}

    @property
    def now(self) -> Instant:
        return Instant(self.elapsed_ms, 1_800_000_000_000 + self.elapsed_ms)

    def on_store(self, server: ServerRig, effect: Range | Txn) -> Any:
        try:
            if isinstance(effect, Range):
                return self.store.range(effect.start, effect.end, limit=effect.limit, at=effect.at)
            outcome = self.store.txn(effect.transaction)
            return OutcomeUnknown("lost") if server.name in self.lost else outcome
        except HoldfastError as error:
            return error

    def commit(self, count: int = 1, mutations: int = 1) -> None:
        """Commit `count` transactions, each with `mutations` mutations."""
        for _ in range(count):
            made = []
            for _ in range(mutations):
                self.said += 1
                made.append(Mutation(who="ann", verb="Patch", name=f"w{self.said}"))
            value = encode(Stamp(self.now.wall_ms, tuple(made)))
            self.store.txn(Transaction((), (Put(keys.audit_stamp(), value),)))

    def renew(self, count: int) -> None:
        """Commit changes that are not audited."""
        for number in range(count):
            self.store.txn(Transaction((), (Put("objects/leases/x", b"%d" % number),)))

    def run(self, for_ms: int = 0, *absent: str) -> None:
        """Let time pass; absent servers do nothing in it."""
        until_ms = self.elapsed_ms + for_ms
        while True:
            while any(server.step() for name, server in self.servers.items() if name not in absent):
                pass
            if self.elapsed_ms >= until_ms:
                return
            self.elapsed_ms = min(until_ms, self.elapsed_ms + 250)

    @property
    def head(self) -> Head:
        record = self.store.get(keys.audit_head())
        return head_of(record.value) if record is not None else Head()

    def verify(self) -> ChainVerification:
        judge = ChainVerifier()
        parts = [server.lines for server in self.servers.values() if server.lines]
        for part in sorted(parts, key=lambda lines: record_of(lines[0]).number):
            judge.part("part", part)
        return judge.judgement(self.head)

    def check(self) -> None:
        """All that was committed is in the chain, once and in order, and nothing else."""
        found = self.verify()
        assert (found.findings, found.gaps, found.beyond) == ([], [], 0)
        assert found.last == self.said == self.head.number
        by_number = {
            record_of(line).number: mutation_of(record_of(line)).name
            for server in self.servers.values()
            for line in server.lines
        }
        assert [by_number[n] for n in sorted(by_number)] == [
            f"w{n}" for n in range(1, self.said + 1)
        ]


def test_every_mutation_becomes_a_record_and_the_head_says_how_far() -> None:
    """[A8]"""
    plane = PlaneRig("one")
    plane.commit(3, mutations=2)
    plane.run(FLUSH_MS * 2)
    plane.check()
    assert plane.head.revision >= 3
    plane.commit(5)
    plane.run(FLUSH_MS * 2)
    plane.check()
    assert plane.servers["one"].writer.lag == 0
    assert plane.servers["one"].writer.wrote == 11


def test_a_steady_trickle_is_written_as_soon_as_anything_else() -> None:
    """A steady stream of entries does not delay the earlier ones."""
    plane = PlaneRig("one")
    for _ in range(40):
        plane.commit(1)
        plane.run(FLUSH_MS // 4)
    assert plane.head.number > 25
    assert plane.servers["one"].writer.standstill_ms(plane.elapsed_ms) < 2 * FLUSH_MS


def test_only_one_of_several_writes() -> None:
    plane = PlaneRig("one", "two", "three")
    for _ in range(10):
        plane.commit(2)
        plane.run(FLUSH_MS * 3)
    plane.check()
    assert [bool(server.lines) for server in plane.servers.values()] == [True, False, False]
    assert [server.writer.is_writing for server in plane.servers.values()] == [True, False, False]


def test_another_server_takes_over_from_a_silent_writer_and_the_chain_goes_on() -> None:
    """And the one that comes back finds that it is no longer the writer. [K2, C7.4]"""
    plane = PlaneRig("one", "two")
    plane.commit(4)
    plane.run(FLUSH_MS * 2)
    plane.commit(4)
    plane.run(STANDSTILL_MS + 2 * LOOK_MS + FLUSH_MS, "one")
    assert plane.head.by == "two"
    plane.check()
    plane.commit(1)
    plane.run(FLUSH_MS * 5)
    plane.check()
    assert [server.writer.is_writing for server in plane.servers.values()] == [False, True]
    assert record_of(plane.servers["two"].lines[0]).number == 5


def test_a_writer_with_nothing_to_write_is_not_replaced() -> None:
    plane = PlaneRig("one", "two")
    plane.commit(1)
    plane.run(FLUSH_MS * 2)
    plane.run(10 * STANDSTILL_MS, "one")
    assert plane.head.by == "one"


def test_a_killed_writer_continues_from_the_head() -> None:
    """Whether it died before its lines were on disk, or after, or after the head moved. [C7.4]"""
    for steps in range(1, 40):
        plane = PlaneRig("one")
        server = plane.servers["one"]
        plane.commit(3, mutations=3)
        for _ in range(steps):
            server.step()
            plane.elapsed_ms += 100
        server.begin()
        plane.commit(2)
        plane.run(FLUSH_MS * 3)
        plane.check()


def test_two_servers_that_both_write_make_no_fork() -> None:
    """The slower one loses by the compare, with the same records in its journal. [K2]"""
    plane = PlaneRig("one", "two")
    one = plane.servers["one"]
    plane.commit(2)
    plane.run(FLUSH_MS * 2)
    plane.commit(3)
    plane.elapsed_ms += FLUSH_MS
    # It has read and appended, and sleeps before it moves the head.
    while not one.line or not isinstance(one.line[0], Answered):
        one.step()
        plane.elapsed_ms += FLUSH_MS
    plane.run(STANDSTILL_MS + 3 * LOOK_MS, "one")
    assert plane.head.by == "two"
    plane.commit(2)
    plane.run(FLUSH_MS * 4)
    # What it had appended in vain is set aside: the other one has it.
    assert len(one.lines) == 2
    plane.check()


def test_a_full_disk_loses_nothing_and_another_writes() -> None:
    """[C7.5]"""
    plane = PlaneRig("one", "two")
    plane.commit(1)
    plane.run(FLUSH_MS * 2)
    plane.servers["one"].full = True
    plane.commit(7)
    plane.run(FLUSH_MS * 2)
    writer = plane.servers["one"].writer
    assert writer.lag >= 7
    assert writer.last_error == "no space left on device"
    plane.run(STANDSTILL_MS + 2 * LOOK_MS + FLUSH_MS)
    assert plane.head.by == "two"
    plane.check()


def test_alone_it_goes_on_when_there_is_room_again() -> None:
    """[C7.5]"""
    plane = PlaneRig("one")
    plane.servers["one"].full = True
    plane.commit(5)
    plane.run(60_000)
    assert plane.servers["one"].writer.standstill_ms(plane.elapsed_ms) > 50_000
    assert plane.servers["one"].writer.failures > 3
    plane.servers["one"].full = False
    plane.run(10_000)
    plane.check()
    assert plane.servers["one"].writer.standstill_ms(plane.elapsed_ms) == 0


def test_a_lost_answer_of_the_head_writes_nothing_twice() -> None:
    """[N1.1]"""
    plane = PlaneRig("one")
    plane.lost.append("one")
    plane.commit(3)
    plane.run(20_000)
    plane.lost.clear()
    plane.commit(3)
    plane.run(20_000)
    plane.check()


def test_what_the_store_compacted_too_early_is_recorded_as_a_gap() -> None:
    """By one record, agreed on in the head before it is written; nothing after it is missing."""
    plane = PlaneRig("one", "two")
    plane.commit(3)
    plane.run(FLUSH_MS * 2)
    written = plane.head.revision
    plane.commit(9)
    plane.store.compact(plane.store.revision - 3)
    compacted = plane.store.compacted
    for server in plane.servers.values():
        server.begin()
    plane.run(30_000)
    found = plane.verify()
    assert (found.findings, found.beyond) == ([], 0)
    (gap,) = found.gaps
    assert (gap.after, gap.upto) == (written, compacted)
    lost = gap.upto - gap.after - 1
    assert found.last == plane.said - lost + 1
    plane.commit(2)
    plane.run(FLUSH_MS * 3)
    assert plane.verify().last == plane.said - lost + 1


def test_history_without_audited_changes_may_be_compacted_without_a_gap() -> None:
    plane = PlaneRig("one")
    plane.commit(2)
    plane.run(FLUSH_MS * 2)
    plane.renew(500)
    plane.store.compact(plane.store.revision)
    plane.servers["one"].begin()
    plane.run(20_000)
    plane.commit(2)
    plane.run(FLUSH_MS * 2)
    plane.check()


def test_the_head_follows_where_there_is_nothing_to_write() -> None:
    """So that history can be compacted; and not with each revision."""
    plane = PlaneRig("one")
    plane.commit(1)
    plane.run(FLUSH_MS * 2)
    before = plane.head.revision
    plane.renew(IDLE_REVISIONS + 10)
    plane.run(1_000)
    assert plane.head.revision >= before + IDLE_REVISIONS
    moved = plane.head
    plane.renew(IDLE_REVISIONS // 2)
    plane.run(1_000)
    assert plane.head == moved


@pytest.mark.parametrize("mutations", [FLUSH_LINES // 2, PENDING_MAX // 3])
def test_a_long_history_is_read_in_pieces(mutations: int) -> None:
    plane = PlaneRig("one")
    plane.commit(4, mutations=mutations)
    plane.run(20_000)
    plane.check()


def test_what_waits_in_memory_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest stays in the store's history until there is room."""
    monkeypatch.setattr(scribe_module, "PENDING_BYTES_MAX", 5_000)
    most, take = 0, Chain.take

    def watched(self: Chain, batch: Any) -> int:
        nonlocal most
        last = take(self, batch)
        most = max(most, self.waiting_bytes)
        assert self.waiting_bytes == sum(map(len, self.waiting))
        return last

    monkeypatch.setattr(Chain, "take", watched)
    plane = PlaneRig("one")
    plane.commit(4, mutations=1)
    plane.run(1)
    for _ in range(30):
        plane.commit(1, mutations=5)
        plane.run(1)
    assert most < 5_000 + 6 * 1_000
    plane.run(60_000)
    plane.check()


def test_the_floor_rises_in_the_store_before_anything_is_removed() -> None:
    """On every server, as each learns of it."""
    plane = PlaneRig("one", "two")
    plane.commit(10)
    plane.run(FLUSH_MS * 2)
    one, two = plane.servers.values()
    assert (one.pruned, plane.head.floor) == (1, 1)
    one.floor = 6
    plane.commit(1)
    plane.run(FLUSH_MS * 2)
    assert (one.pruned, plane.head.floor) == (6, 6)
    plane.run(LOOK_MS * 2)
    assert two.pruned == 6
    one.lines = one.lines[5:]
    assert plane.verify().is_whole
    one.floor = 1
    plane.commit(1)
    plane.run(FLUSH_MS * 2)
    assert plane.head.floor == 6


def _write_format(plane: PlaneRig, value: bytes) -> None:
    plane.store.txn(Transaction((), (Put(keys.plane_format(), value),)))


def test_a_format_that_this_version_knows_is_learned_from_the_first_transaction() -> None:
    """Also one that is written while the writer is at work."""
    plane = PlaneRig("one")
    plane.commit(2)
    plane.run(FLUSH_MS * 2)
    _write_format(plane, b'{"format":%d}' % FORMAT)
    plane.commit(3)
    plane.run(FLUSH_MS * 2)
    plane.check()
    assert plane.servers["one"].writer.failures == 0


@pytest.mark.parametrize("value", [b'{"format":%d}' % (FORMAT + 1), b'{"format":"?"}'])
def test_the_head_of_a_plane_of_a_newer_format_is_not_moved(value: bytes) -> None:
    """Neither by a running writer, nor by one that starts."""
    plane = PlaneRig("one", "two")
    plane.commit(2)
    plane.run(FLUSH_MS * 2)
    before = plane.store.get(keys.audit_head())
    _write_format(plane, value)
    plane.commit(3)
    plane.run(STANDSTILL_MS * 4)
    plane.servers["one"].begin()
    plane.run(STANDSTILL_MS * 4)
    assert plane.store.get(keys.audit_head()) == before
    assert "format" in plane.servers["one"].writer.last_error
    assert plane.servers["one"].writer.wrote == 0
