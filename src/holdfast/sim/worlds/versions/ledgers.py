"""The end-to-end world with ledgers that are damaged while their work runs, and an operator who
recounts them.

    python -m holdfast.sim run holdfast.sim.worlds.versions.ledgers:LEDGERS --seeds 0-99

A hazard overwrites the ledger of a node that has work, or that of the tenants' quota: bytes that
cannot be decoded, or sums that are lost. The hazard does not restore it. The first decision that
reads it puts it into quarantine; after a while an operator finds it there and recounts it, as
`holdfast repair recount` does (`RepairOperator`). Until then, everything that does not need the
ledger goes on, and nothing is charged to a ledger in quarantine (`ConfinedLedgers`). After the
repair it is exact again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.commit.ledgers.ledger_sums import StoreContents
from holdfast.commit.ledgers.rebuild import rebuild_ledger
from holdfast.commit.record_encoding import decode_or_none, encode
from holdfast.model import keys
from holdfast.model.errors import Invalid, Missing
from holdfast.model.machine import Answered, Ask, Range, Started, Wake, Woken
from holdfast.model.quota.ledger import Amounts, NodeLedger, QuotaLedger
from holdfast.model.requests import Accepted, RepairAction, RepairRecord
from holdfast.model.time import Instant
from holdfast.model.transaction import Compare, Put, Record, Transaction
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker, Commit
from holdfast.sim.faults import STORE, FaultKind
from holdfast.sim.plan import SELDOM_LATE, Act, Fault, Hazard, Prompted, calendar_steps
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.checkers.liveness import PlaceableReplicas
from holdfast.sim.planes.components import person
from holdfast.sim.planes.facts import StateFact
from holdfast.sim.planes.shared_names import CLIENT_SERVERS
from holdfast.sim.planes.simulated_plane import SimulatedPlane, world_of
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.scenario import LAWS, WELL_WITHIN_MS, parts, service

NODES = 5
FAULTS_MS = 180_000
SETTLE_MS = WELL_WITHIN_MS + 30_000
MENDER = "mender"
NODE_LEDGERS, QUOTA_LEDGERS = f"{keys.LEDGERS}node/", f"{keys.LEDGERS}quota/"
# Most nodes stay undamaged, or no work could go on.
DAMAGED_MAX = 2
# One damage in this many hits the tenants' quota, which every bind of this world needs.
QUOTA_ONE_IN = 6
LOOK_EVERY_MS = 5_000
# How long the operator leaves a record in quarantine.
PATIENCE_MS = (5_000, 60_000)
# After the faults the operator compares all ledgers with the objects: a damaged ledger that no
# decision has read, or whose sums are too low but possible, is in no quarantine.
THOROUGH = {"do": "recount-all"}
THOROUGH_AT_MS = FAULTS_MS + 3_000
# What fits on a node with an undamaged ledger is bound within this time, while all components that
# place it run. It includes a bind refused for a ledger in quarantine and a pause before the next.
PLACED_MS = 30_000
# A component that was down or paused has this long to recover.
BACK_MS = 15_000
PLACING = ("server", "scheduler", "controllers")

HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("spoil", 200, amount=(0, 9_999), share=1),
    Hazard("work_exit", 120, amount=(0, 2), only="agent"),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), share=0.5),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="server", share=0.5),
    Hazard("store_mute", 30, for_ms=(1_000, 20_000), amount=(100, 900), share=0.3),
    Hazard("duplicate", 60, for_ms=(1_000, 40_000), amount=(100, 800), share=0.4),
    Hazard("stream_break", 60),
)


def _damaged_form(ledger: NodeLedger | QuotaLedger, how: int) -> bytes:
    """A form of a ledger that cannot be decoded, or that has lost its sums."""
    tree = msgspec.json.decode(encode(ledger))
    match how % 4:
        case 0:
            return encode(ledger)[:-7]
        case 1:
            tree["used"] = how
        case 2 if isinstance(ledger, NodeLedger):
            # The whole use: the sums, the tenants and the ports.
            for field in ("used", "tenants", "ports"):
                tree.pop(field, None)
        case _:
            tree.pop("used", None)
    return msgspec.json.encode(tree)


class Damage(Checker):
    """Records which ledgers are damaged, for the other checkers, which come after it."""

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy
        # The records in quarantine; how many damages and repairs there were, and how many of the
        # repaired records had been in quarantine.
        self.noted: dict[str, None] = {}
        self.struck = self.repaired = self.met = 0

    def strike(self, world: World, fault: Fault) -> None:
        """Overwrite a ledger that is in use, as a bad disk or another version would."""
        store_copy, store = self.store_copy, world.stores[fault.target]
        if len(store_copy.damaged) >= DAMAGED_MAX:
            return
        pick, how = divmod(fault.amount, 4)
        prefix = QUOTA_LEDGERS if pick % QUOTA_ONE_IN == 0 else NODE_LEDGERS
        found = store.keyspace.range(prefix, keys.after_prefix(prefix)).records
        whole = [(it, decode_or_none(it)) for it in found if it.key not in store_copy.damaged]
        used = [(it, ledger) for it, ledger in whole if ledger is not None and ledger.used]
        if not used:
            return
        record, ledger = used[pick % len(used)]
        store_copy.damaged[record.key] = None
        self.struck += 1
        put = Put(record.key, _damaged_form(ledger, how))
        spoil = Transaction((Compare(record.key, record.modified),), (put,))
        world.storage.write(store, spoil, "spoil")

    def on_commit(self, world: World, commit: Commit) -> None:
        changed = {change.key: change.value for change in commit.changes}
        repaired = [key for key in self.store_copy.damaged if self._is_repaired(key, changed)]
        self.store_copy.repaired = tuple(repaired)
        for key in repaired:
            self.repaired += 1
            self.met += key in self.noted
            del self.store_copy.damaged[key]
        for key, value in changed.items():
            if key.startswith(keys.QUARANTINE):
                record = key.removeprefix(keys.QUARANTINE)
                if value is None:
                    self.noted.pop(record, None)
                else:
                    self.noted[record] = None

    def _is_repaired(self, key: str, changed: dict[str, bytes | None]) -> bool:
        """Whether this commit takes it out of quarantine, or writes the sums of the objects."""
        value = changed.get(key)
        if value is None:
            return False
        if key in self.noted:
            note = keys.quarantine(key)
            return note in changed and changed[note] is None
        found = decode_or_none(Record(key, value, 0, 0))
        return found is not None and found == _recount(self._after(changed), key)

    def _after(self, changed: dict[str, bytes | None]) -> list[Record]:
        """All records with these changes."""
        now = {key: encode(value) for key, value in self.store_copy.now.items()}
        now |= {key: value for key, value in changed.items() if value is not None}
        gone = {key for key, value in changed.items() if value is None}
        return [Record(key, value, 0, 0) for key, value in now.items() if key not in gone]


def _recount(records: Sequence[Record], key: str) -> Any:
    try:
        return rebuild_ledger(StoreContents(records), key)
    except (Invalid, Missing):
        # Its node does not exist, or an object that may count cannot be decoded.
        return None


class ConfinedLedgers(Checker):
    """Nothing is charged to a ledger in quarantine, and everything else goes on."""

    invariants = ("INV3", "INV4", "V1", "V2")

    def __init__(self, damage: Damage, store_copy: StoreCopy) -> None:
        self._damage, self._store_copy = damage, store_copy
        self._noted: dict[str, None] = {}
        self._placeable = PlaceableMeanwhile(store_copy)
        self._well_since_ms = 0

    def watch(self, world: World) -> None:
        self._look(0, world, None)

    def on_commit(self, world: World, commit: Commit) -> None:
        # As of the previous commit: the commit that puts it into quarantine may also charge it.
        for key in self._noted:
            if key not in self._store_copy.before or key in self._store_copy.repaired:
                continue
            old, new = self._store_copy.before[key], self._store_copy.now.get(key)
            law = "INV4" if key.startswith(NODE_LEDGERS) else "INV3"
            if key.startswith((NODE_LEDGERS, QUOTA_LEDGERS)) and _grows(old, new):
                self.violated(law, f"{key} is in quarantine, and a commit charged more to it")
        self._noted = dict(self._damage.noted)

    def _look(self, _number: int, world: World, _: None) -> None:
        now_ms = world.now_us // 1_000
        placing = [it for name, it in world.cells.items() if name.startswith(PLACING)]
        if any(it.machine is None or it.paused for it in placing):
            self._well_since_ms = now_ms
        if now_ms - self._well_since_ms < BACK_MS:
            self._placeable.forget()
        late = self._placeable.missing(world)
        if late is not None:
            damaged = ", ".join(self._store_copy.damaged) or "nothing"
            self.violated("V2", f"{late}, while {damaged} is damaged")
        world.post(world.now_us + 1_000_000, self._look, world, None)

    def at_end(self, world: World) -> None:
        left = [*self._store_copy.damaged, *self._damage.noted]
        if left:
            self.violated("V1", f"{left[0]} is still damaged or in quarantine")


class PlaceableMeanwhile(PlaceableReplicas):
    """V2 for work that needs no damaged ledger, whatever else waits."""

    placed_ms = PLACED_MS

    def forget(self) -> None:
        """Restart the wait of all pending replicas."""
        self._since = {}

    def open_ledgers(self) -> list[NodeLedger]:
        if any(key.startswith(QUOTA_LEDGERS) for key in self._store_copy.damaged):
            return []
        sound = self._store_copy.keyed(NODE_LEDGERS).items()
        whole = [ledger for key, ledger in sound if key not in self._store_copy.damaged]
        return [ledger for ledger in super().open_ledgers() if ledger in whole]


def _grows(old: Any, new: Any) -> bool:
    """Whether any sum of a ledger grew."""
    before, after = dict(_sums(old)), dict(_sums(new))
    return any(
        units > before.get(whose, {}).get(what, 0)
        for whose, sums in after.items()
        for what, units in sums.items()
    )


def _sums(ledger: Any) -> Iterator[tuple[str, Amounts]]:
    match ledger:
        case NodeLedger():
            yield "", ledger.used
        case QuotaLedger():
            yield from ((tenant, use.hard) for tenant, use in ledger.used.items())


class RepairAnswer(msgspec.Struct, frozen=True):
    """A fact: the answer to the operator's request to repair a record."""

    key: str
    answer: Any


class RepairOperator:
    """An operator who reads the quarantine, and recounts what has been there for a while.

    It does itself what a server does for `holdfast repair recount`: it reads all records as of one
    revision, adds them up, and requests the result under the revision of the record it has read.
    """

    def __init__(self, seat: Seat) -> None:
        self._rng = seat.rng
        self._calls = 0
        self._looking = 0
        self._asked: dict[int, str] = {}
        # When to repair each record, by the operator's own clock.
        self._due_ms: dict[str, int] = {}
        self._is_thorough = False

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Started() | Woken():
                wake = Wake("look", now.monotonic_ms + LOOK_EVERY_MS)
                self._looking = self._call()
                return [wake, Range(self._looking, "", keys.END)]
            case Answered(call=call, body=body) if call == self._looking:
                records = getattr(body, "records", None)
                return self._repairs(records, now) if records is not None else []
            case Answered(call=call, body=body) if call in self._asked:
                key = self._asked.pop(call)
                if isinstance(body, Accepted):
                    self._due_ms.pop(key, None)
                return [StateFact(RepairAnswer(key, body))]
            case Prompted(body=body) if body == THOROUGH:
                self._is_thorough = True
        return []

    def _repairs(self, records: Sequence[Record], now: Instant) -> list[Any]:
        asks = []
        by_key = {record.key: record for record in records}
        for key in self._wrong(records, now):
            value = _recount(records, key)
            if value is None or key not in by_key or key in self._asked.values():
                continue
            call = self._call()
            self._asked[call] = key
            seen, tree = by_key[key].modified, msgspec.to_builtins(value)
            wish = RepairRecord(key, RepairAction.RECOUNT, seen, "recounted", tree)
            asks.append(Ask(call, CLIENT_SERVERS, wish, 10_000))
        return asks

    def _wrong(self, records: Sequence[Record], now: Instant) -> Iterator[str]:
        for record in records:
            if record.key.startswith(keys.QUARANTINE):
                key = record.key.removeprefix(keys.QUARANTINE)
                least_ms, most_ms = PATIENCE_MS
                patience_ms = least_ms + int(self._rng.random() * (most_ms - least_ms + 1))
                due_ms = self._due_ms.setdefault(key, now.monotonic_ms + patience_ms)
                if self._is_thorough or now.monotonic_ms >= due_ms:
                    yield key
            elif self._is_thorough and record.key.startswith((NODE_LEDGERS, QUOTA_LEDGERS)):
                value = _recount(records, record.key)
                if value is not None and value != decode_or_none(record):
                    yield record.key

    def _call(self) -> int:
        self._calls += 1
        return self._calls


def damaged(plane: SimulatedPlane) -> None:
    """Ledgers that are damaged, which the other checkers must know before they look."""
    damage = Damage(plane.store_copy)
    plane.world.faults.add("spoil", FaultKind(STORE, damage.strike))
    plane.world.check(damage)


def confined(plane: SimulatedPlane) -> None:
    checker = ConfinedLedgers(plane.world.checker(Damage), plane.store_copy)
    plane.world.check(checker)
    checker.watch(plane.world)


def script(rng: Random) -> Sequence[Act]:
    """Services that are created, scaled and killed: their charges change all the time."""
    small = {"cpu": "500m", "port": 0}
    acts = [Act(500 + 100 * i, "operator", service(rng, i) | small) for i in range(3)]
    for number in range(3, 8):
        made = service(rng, number) | small
        acts.append(Act(between(rng, 10_000, FAULTS_MS - 20_000), "operator", made))
    for _ in range(12):
        some, at_ms = between(rng, 0, 99), between(rng, 10_000, FAULTS_MS - 5_000)
        scaled = {"do": "scale", "some": some, "replicas": between(rng, 0, 5)}
        acts.append(Act(at_ms, "operator", scaled if some % 2 else {"do": "kill", "some": some}))
    acts.append(Act(THOROUGH_AT_MS, MENDER, THOROUGH))
    return sorted(acts, key=lambda act: act.at_ms)


LEDGERS = Scenario(
    name="holdfast.sim.worlds.versions.ledgers:LEDGERS",
    build=world_of(
        damaged,
        *parts(NODES, zones="abcde", faults_ms=FAULTS_MS),
        *LAWS,
        person(MENDER, lambda seat, _name: RepairOperator(seat)),
        confined,
    ),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
    damages=True,
)
