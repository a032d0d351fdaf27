"""A lamp that at most one keeper may light: leases, epochs, and a deadline that outlives a pause.

The holder renews a record in the store. Its lamp burns until an absolute reading of its computer's
clock, counted from when the renewal was *sent*; the computer, not the keeper, puts it out, so that
a paused or crashed keeper cannot leave it burning. Other keepers take over after they have seen the
same record for longer than any lamp can burn, clock rates included, and raise the epoch.

What the holder writes under its lease compares the epoch, so that a stale holder's write loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.machine import Answered, Range, Started, Txn, Wake, Woken
from holdfast.model.time import Instant
from holdfast.model.transaction import (
    ABSENT,
    Committed,
    Compare,
    CompareFailed,
    Page,
    Put,
    Record,
    Transaction,
)
from holdfast.sim.cell import Cell, Host, Seat
from holdfast.sim.world import World

LEASE_KEY = "lease/lamp"
EPOCH_KEY = "lease/lamp-epoch"
WORK_KEY = "work/log"
LEASE_MS = 10_000
RENEW_MS = 2_000
# Clocks differ by up to 500 ppm each way in this world, and a millisecond is lost in rounding.
TAKEOVER_MS = LEASE_MS + 50
STORE_TIMEOUT_MS = 1_500


class Lease(msgspec.Struct, frozen=True):
    holder: str
    epoch: int
    beat: int


class Light(msgspec.Struct, frozen=True):
    """Let the lamp burn until this reading of the computer's monotonic clock."""

    until_ms: int


class LampLit(msgspec.Struct, frozen=True):
    host: str


class LampOut(msgspec.Struct, frozen=True):
    host: str


class Lamps:
    """Performs Light. A lamp is a thing of its host, like a process."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.perform(Light, self._light)
        world.power_hooks.append(self._power)

    def _light(self, cell: Cell, effect: Light) -> None:
        host, world = cell.host, self._world
        if effect.until_ms <= host.clock.instant(world.now_us).monotonic_ms:
            # The deadline is checked before the lamp is lit: a keeper may resume very late.
            return
        if "lamp" in host.things:
            world.timers.cancel(host, host.things["lamp"])
        else:
            world.fact(LampLit(host.name))
        host.things["lamp"] = world.timers.alarm(host, effect.until_ms, self._put_out, host, None)

    def _put_out(self, _number: int, host: Host, _: None) -> None:
        del host.things["lamp"]
        self._world.fact(LampOut(host.name))

    def _power(self, host: Host) -> None:
        if host.things.pop("lamp", None) is not None:
            self._world.fact(LampOut(host.name))


class Keeper:
    """Renews the lease if it holds it, and waits for it otherwise."""

    def __init__(self, seat: Seat) -> None:
        self._name = seat.name
        self._rng = seat.rng
        self._calls = 0
        # What the call in flight is for, and when it was sent.
        self._doing = ""
        self._sent_ms = 0
        # The newest record seen, and since when it is unchanged.
        self._lease: Record | None = None
        self._seen_since_ms = 0
        self._epoch_record: Record | None = None
        self.lit_until_ms = 0

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        match stimulus:
            case Started():
                return self._look(now)
            case Woken():
                return self._look(now)
            case Answered(call=call, body=body) if call == self._calls:
                return self._answered(body, now)
        return ()

    def _look(self, now: Instant) -> Sequence[Any]:
        return (Range(self._call("look", now), "lease/", "lease0", timeout_ms=STORE_TIMEOUT_MS),)

    def _answered(self, body: Any, now: Instant) -> Sequence[Any]:
        doing, sent_ms = self._doing, self._sent_ms
        if doing == "look" and isinstance(body, Page):
            return self._seen(body, now)
        if doing in ("renew", "take") and isinstance(body, Committed):
            return self._held(sent_ms, now)
        if doing == "renew" and isinstance(body, CompareFailed):
            return self._wait(now, 0)
        # An unknown outcome changes nothing: the lamp goes out, and a read shows the holder.
        return self._wait(now, RENEW_MS)

    def _seen(self, page: Page, now: Instant) -> Sequence[Any]:
        records = {record.key: record for record in page.records}
        lease = records.get(LEASE_KEY)
        self._epoch_record = records.get(EPOCH_KEY)
        if _version(lease) != _version(self._lease) or self._seen_since_ms == 0:
            self._seen_since_ms = now.monotonic_ms
        self._lease = lease
        value = _decode(lease)
        if value is not None and value.holder == self._name:
            return self._renew(value, now)
        if value is None or now.monotonic_ms - self._seen_since_ms >= TAKEOVER_MS:
            return self._take(value, now)
        return self._wait(now, RENEW_MS)

    def _renew(self, value: Lease, now: Instant) -> Sequence[Any]:
        lease = Lease(self._name, value.epoch, value.beat + 1)
        transaction = Transaction(
            (Compare(LEASE_KEY, _version(self._lease)),),
            (Put(LEASE_KEY, msgspec.json.encode(lease)),),
        )
        return (Txn(self._call("renew", now), transaction, timeout_ms=STORE_TIMEOUT_MS),)

    def _take(self, value: Lease | None, now: Instant) -> Sequence[Any]:
        epoch = 1 if value is None else value.epoch + 1
        lease = Lease(self._name, epoch, 0)
        transaction = Transaction(
            (
                Compare(LEASE_KEY, _version(self._lease)),
                Compare(EPOCH_KEY, _version(self._epoch_record)),
            ),
            (Put(LEASE_KEY, msgspec.json.encode(lease)), Put(EPOCH_KEY, b"%d" % epoch)),
        )
        return (Txn(self._call("take", now), transaction, timeout_ms=STORE_TIMEOUT_MS),)

    def _held(self, sent_ms: int, now: Instant) -> Sequence[Any]:
        until_ms = sent_ms + LEASE_MS
        self.lit_until_ms = until_ms
        return (Light(until_ms), *self._work(now), *self._wait(now, RENEW_MS))

    def _work(self, now: Instant) -> Sequence[Any]:
        """Write something that only the holder may write, under the epoch that it last read."""
        value = _decode(self._lease)
        if value is None or value.holder != self._name:
            return ()
        transaction = Transaction(
            (Compare(EPOCH_KEY, _version(self._epoch_record)),),
            (Put(WORK_KEY, b"%d" % value.epoch),),
        )
        return (Txn(self._call("work", now), transaction, timeout_ms=STORE_TIMEOUT_MS),)

    def _wait(self, now: Instant, wait_ms: int) -> Sequence[Any]:
        jitter_ms = int(self._rng.random() * 200)
        return (Wake("look", now.monotonic_ms + wait_ms + jitter_ms),)

    def _call(self, doing: str, now: Instant) -> int:
        self._calls += 1
        self._doing = doing
        self._sent_ms = now.monotonic_ms
        return self._calls


def _version(record: Record | None) -> int:
    return ABSENT if record is None else record.modified


def _decode(record: Record | None) -> Lease | None:
    return None if record is None else msgspec.json.decode(record.value, type=Lease)
