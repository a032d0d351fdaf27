"""Scribes over one store: one chain, whatever becomes of those who write it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import keys
from holdfast.model.audit.chain import ChainVerification, ChainVerifier
from holdfast.model.audit.records import (
    Head,
    Mutation,
    Stamp,
    encode,
    head_of,
    mutation_of,
    record_of,
)
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
from holdfast.observe.audit_writer import writer as scribe_module
from holdfast.observe.audit_writer.chain import Chain
from holdfast.observe.audit_writer.protocol import Append, Appended, Cut, Prune, Ready, Resume
from holdfast.observe.audit_writer.writer import (
    FLUSH_LINES,
    FLUSH_MS,
    IDLE_REVISIONS,
    LOOK_MS,
    PENDING_MAX,
    STANDSTILL_MS,
    AuditWriter,
)
from holdfast.store.memory import Keyspace


class Desk:
    """One server: a scribe, its journal, and what goes wrong with it."""

    def __init__(self, office: Office, name: str) -> None:
        self.office, self.name = office, name
        self.lines: list[bytes] = []
        self.floor = 1
        self.pruned = 1
        self.full = False
        self.begin()

    def begin(self) -> None:
        """Its first life, or the next one."""
        self.writer = AuditWriter(self.name)
        self.wakes: dict[str, int] = {}
        self.watch: tuple[int, int] | None = None
        self.line: list[Any] = [Started({})]

    def resume(self, head: Head) -> None:
        numbers = [record_of(line).number for line in self.lines]
        self.lines = [x for x, n in zip(self.lines, numbers, strict=True) if n <= head.number]

    def step(self) -> bool:
        """Let it have one thing that happened; whether there was one."""
        self._deliver()
        if not self.line:
            return False
        now = self.office.now
        for effect in self.writer.step(self.line.pop(0), now):
            answer = self._perform(effect)
            if answer is not None:
                self.line.append(Answered(effect.call, answer))
        return True

    def _deliver(self) -> None:
        store, now_ms = self.office.store, self.office.now.monotonic_ms
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
                return self.office.on_store(self, effect)
        return None


class Office:
    """A store, several desks, and a hand on the clock."""

    def __init__(self, *names: str) -> None:
        self.store = Keyspace()
        self.elapsed_ms = 0
        self.said = 0
        self.lost: list[Any] = []
        self.desks = {name: Desk(self, name) for name in names}

    @property
    def now(self) -> Instant:
        return Instant(self.elapsed_ms, 1_800_000_000_000 + self.elapsed_ms)

    def on_store(self, desk: Desk, effect: Range | Txn) -> Any:
        try:
            if isinstance(effect, Range):
                return self.store.range(effect.start, effect.end, limit=effect.limit, at=effect.at)
            outcome = self.store.txn(effect.transaction)
            return OutcomeUnknown("lost") if desk.name in self.lost else outcome
        except HoldfastError as error:
            return error

    def say(self, count: int = 1, mutations: int = 1) -> None:
        """So many transactions, each with so many mutations."""
        for _ in range(count):
            made = []
            for _ in range(mutations):
                self.said += 1
                made.append(Mutation(who="ann", verb="Patch", name=f"w{self.said}"))
            value = encode(Stamp(self.now.wall_ms, tuple(made)))
            self.store.txn(Transaction((), (Put(keys.audit_stamp(), value),)))

    def renew(self, count: int) -> None:
        """What is written down nowhere."""
        for number in range(count):
            self.store.txn(Transaction((), (Put("objects/leases/x", b"%d" % number),)))

    def run(self, for_ms: int = 0, *absent: str) -> None:
        """Let so much time pass; those who are absent do nothing in it."""
        until_ms = self.elapsed_ms + for_ms
        while True:
            while any(desk.step() for name, desk in self.desks.items() if name not in absent):
                pass
            if self.elapsed_ms >= until_ms:
                return
            self.elapsed_ms = min(until_ms, self.elapsed_ms + 250)

    @property
    def head(self) -> Head:
        record = self.store.get(keys.audit_head())
        return head_of(record.value) if record is not None else Head()

    def judged(self) -> ChainVerification:
        judge = ChainVerifier()
        parts = [desk.lines for desk in self.desks.values() if desk.lines]
        for part in sorted(parts, key=lambda lines: record_of(lines[0]).number):
            judge.part("part", part)
        return judge.judgement(self.head)

    def check(self) -> None:
        """All that was said is in the chain, once and in its order, and nothing else."""
        found = self.judged()
        assert (found.findings, found.gaps, found.beyond) == ([], [], 0)
        assert found.last == self.said == self.head.number
        by_number = {
            record_of(line).number: mutation_of(record_of(line)).name
            for desk in self.desks.values()
            for line in desk.lines
        }
        assert [by_number[n] for n in sorted(by_number)] == [
            f"w{n}" for n in range(1, self.said + 1)
        ]


def test_every_mutation_becomes_a_record_and_the_head_says_how_far() -> None:
    """[A8]"""
    office = Office("one")
    office.say(3, mutations=2)
    office.run(FLUSH_MS * 2)
    office.check()
    assert office.head.revision >= 3
    office.say(5)
    office.run(FLUSH_MS * 2)
    office.check()
    assert office.desks["one"].writer.lag == 0
    assert office.desks["one"].writer.wrote == 11


def test_a_steady_trickle_is_written_as_soon_as_anything_else() -> None:
    """What comes every moment does not put off what came before it."""
    office = Office("one")
    for _ in range(40):
        office.say(1)
        office.run(FLUSH_MS // 4)
    assert office.head.number > 25
    assert office.desks["one"].writer.standstill_ms(office.elapsed_ms) < 2 * FLUSH_MS


def test_only_one_of_several_writes() -> None:
    office = Office("one", "two", "three")
    for _ in range(10):
        office.say(2)
        office.run(FLUSH_MS * 3)
    office.check()
    assert [bool(desk.lines) for desk in office.desks.values()] == [True, False, False]
    assert [desk.writer.is_writing for desk in office.desks.values()] == [True, False, False]


def test_another_takes_over_from_one_who_is_silent_and_the_chain_goes_on() -> None:
    """And the one who comes back finds that it is not the one any more. [K2, C7.4]"""
    office = Office("one", "two")
    office.say(4)
    office.run(FLUSH_MS * 2)
    office.say(4)
    office.run(STANDSTILL_MS + 2 * LOOK_MS + FLUSH_MS, "one")
    assert office.head.by == "two"
    office.check()
    office.say(1)
    office.run(FLUSH_MS * 5)
    office.check()
    assert [desk.writer.is_writing for desk in office.desks.values()] == [False, True]
    assert record_of(office.desks["two"].lines[0]).number == 5


def test_who_has_nothing_to_write_is_not_replaced() -> None:
    office = Office("one", "two")
    office.say(1)
    office.run(FLUSH_MS * 2)
    office.run(10 * STANDSTILL_MS, "one")
    assert office.head.by == "one"


def test_a_killed_scribe_goes_on_where_the_head_is() -> None:
    """Whether it died before its lines were on disk, or after, or after the head. [C7.4]"""
    for steps in range(1, 40):
        office = Office("one")
        desk = office.desks["one"]
        office.say(3, mutations=3)
        for _ in range(steps):
            desk.step()
            office.elapsed_ms += 100
        desk.begin()
        office.say(2)
        office.run(FLUSH_MS * 3)
        office.check()


def test_two_who_both_believe_to_be_the_one_make_no_fork() -> None:
    """The slower one loses by the compare, with the same records in its journal. [K2]"""
    office = Office("one", "two")
    one = office.desks["one"]
    office.say(2)
    office.run(FLUSH_MS * 2)
    office.say(3)
    office.elapsed_ms += FLUSH_MS
    # It has read and appended, and sleeps before it moves the head.
    while not one.line or not isinstance(one.line[0], Answered):
        one.step()
        office.elapsed_ms += FLUSH_MS
    office.run(STANDSTILL_MS + 3 * LOOK_MS, "one")
    assert office.head.by == "two"
    office.say(2)
    office.run(FLUSH_MS * 4)
    # What it had appended in vain is set aside: the other one has it.
    assert len(one.lines) == 2
    office.check()


def test_a_full_disk_loses_nothing_and_another_writes() -> None:
    """[C7.5]"""
    office = Office("one", "two")
    office.say(1)
    office.run(FLUSH_MS * 2)
    office.desks["one"].full = True
    office.say(7)
    office.run(FLUSH_MS * 2)
    writer = office.desks["one"].writer
    assert writer.lag >= 7
    assert writer.last_error == "no space left on device"
    office.run(STANDSTILL_MS + 2 * LOOK_MS + FLUSH_MS)
    assert office.head.by == "two"
    office.check()


def test_alone_it_goes_on_when_there_is_room_again() -> None:
    """[C7.5]"""
    office = Office("one")
    office.desks["one"].full = True
    office.say(5)
    office.run(60_000)
    assert office.desks["one"].writer.standstill_ms(office.elapsed_ms) > 50_000
    assert office.desks["one"].writer.failures > 3
    office.desks["one"].full = False
    office.run(10_000)
    office.check()
    assert office.desks["one"].writer.standstill_ms(office.elapsed_ms) == 0


def test_a_lost_answer_of_the_head_writes_nothing_twice() -> None:
    """[N1.1]"""
    office = Office("one")
    office.lost.append("one")
    office.say(3)
    office.run(20_000)
    office.lost.clear()
    office.say(3)
    office.run(20_000)
    office.check()


def test_what_the_store_forgot_too_early_is_said_in_the_chain() -> None:
    """By one record, agreed on before it is written, from where on nothing is missing."""
    office = Office("one", "two")
    office.say(3)
    office.run(FLUSH_MS * 2)
    written = office.head.revision
    office.say(9)
    office.store.compact(office.store.revision - 3)
    compacted = office.store.compacted
    for desk in office.desks.values():
        desk.begin()
    office.run(30_000)
    found = office.judged()
    assert (found.findings, found.beyond) == ([], 0)
    (gap,) = found.gaps
    assert (gap.after, gap.upto) == (written, compacted)
    lost = gap.upto - gap.after - 1
    assert found.last == office.said - lost + 1
    office.say(2)
    office.run(FLUSH_MS * 3)
    assert office.judged().last == office.said - lost + 1


def test_history_in_which_nobody_did_anything_may_be_forgotten_without_a_gap() -> None:
    office = Office("one")
    office.say(2)
    office.run(FLUSH_MS * 2)
    office.renew(500)
    office.store.compact(office.store.revision)
    office.desks["one"].begin()
    office.run(20_000)
    office.say(2)
    office.run(FLUSH_MS * 2)
    office.check()


def test_the_head_follows_where_there_is_nothing_to_write() -> None:
    """So that history can be forgotten; and not with each revision."""
    office = Office("one")
    office.say(1)
    office.run(FLUSH_MS * 2)
    before = office.head.revision
    office.renew(IDLE_REVISIONS + 10)
    office.run(1_000)
    assert office.head.revision >= before + IDLE_REVISIONS
    moved = office.head
    office.renew(IDLE_REVISIONS // 2)
    office.run(1_000)
    assert office.head == moved


@pytest.mark.parametrize("mutations", [FLUSH_LINES // 2, PENDING_MAX // 3])
def test_a_long_history_is_read_in_pieces(mutations: int) -> None:
    office = Office("one")
    office.say(4, mutations=mutations)
    office.run(20_000)
    office.check()


def test_what_waits_in_memory_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is left in the store's history until there is room."""
    monkeypatch.setattr(scribe_module, "PENDING_BYTES_MAX", 5_000)
    most, take = 0, Chain.take

    def watched(self: Chain, batch: Any) -> int:
        nonlocal most
        last = take(self, batch)
        most = max(most, self.waiting_bytes)
        assert self.waiting_bytes == sum(map(len, self.waiting))
        return last

    monkeypatch.setattr(Chain, "take", watched)
    office = Office("one")
    office.say(4, mutations=1)
    office.run(1)
    for _ in range(30):
        office.say(1, mutations=5)
        office.run(1)
    assert most < 5_000 + 6 * 1_000
    office.run(60_000)
    office.check()


def test_the_floor_rises_in_the_store_before_anything_is_removed() -> None:
    """On every server, as each learns of it."""
    office = Office("one", "two")
    office.say(10)
    office.run(FLUSH_MS * 2)
    one, two = office.desks.values()
    assert (one.pruned, office.head.floor) == (1, 1)
    one.floor = 6
    office.say(1)
    office.run(FLUSH_MS * 2)
    assert (one.pruned, office.head.floor) == (6, 6)
    office.run(LOOK_MS * 2)
    assert two.pruned == 6
    one.lines = one.lines[5:]
    assert office.judged().is_whole
    one.floor = 1
    office.say(1)
    office.run(FLUSH_MS * 2)
    assert office.head.floor == 6


def _write_format(office: Office, value: bytes) -> None:
    office.store.txn(Transaction((), (Put(keys.plane_format(), value),)))


def test_a_format_that_this_version_knows_is_learned_from_the_first_transaction() -> None:
    """Also one that is written while the scribe is at work."""
    office = Office("one")
    office.say(2)
    office.run(FLUSH_MS * 2)
    _write_format(office, b'{"format":%d}' % FORMAT)
    office.say(3)
    office.run(FLUSH_MS * 2)
    office.check()
    assert office.desks["one"].writer.failures == 0


@pytest.mark.parametrize("value", [b'{"format":%d}' % (FORMAT + 1), b'{"format":"?"}'])
def test_the_head_of_a_plane_of_a_newer_format_is_not_moved(value: bytes) -> None:
    """Neither by a scribe that was at work, nor by one that starts."""
    office = Office("one", "two")
    office.say(2)
    office.run(FLUSH_MS * 2)
    before = office.store.get(keys.audit_head())
    _write_format(office, value)
    office.say(3)
    office.run(STANDSTILL_MS * 4)
    office.desks["one"].begin()
    office.run(STANDSTILL_MS * 4)
    assert office.store.get(keys.audit_head()) == before
    assert "format" in office.desks["one"].writer.last_error
    assert office.desks["one"].writer.wrote == 0
