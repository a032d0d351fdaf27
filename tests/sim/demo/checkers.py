"""The invariants of the demonstration world."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.keys import after_prefix
from holdfast.sim.check import Checker, Commit, Settles
from holdfast.sim.world import World
from tests.sim.demo.counter import PREFIX, Client, IntentDone, decode, decode_bytes
from tests.sim.demo.lease import EPOCH_KEY, LEASE_KEY, WORK_KEY, LampLit, LampOut, Lease
from tests.sim.demo.views import Follower, Viewer


class ExactlyOnce(Checker):
    """INV3: an intent takes effect at most once, and nothing else changes a total.

    INV11: an acknowledged intent is in the store.
    """

    invariants = ("INV3", "INV11")

    def __init__(self, amounts: dict[str, int]) -> None:
        self._amounts = amounts
        self._totals: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            if change.key.startswith(PREFIX):
                self._check_value(change.key, decode_bytes(change.value), commit.revision)

    def _check_value(self, key: str, value: Any, revision: int) -> None:
        first = self._seen.setdefault(value.intent, revision)
        if first != revision:
            self.violated(
                "INV3", f"intent {value.intent} took effect at {first} and again at {revision}"
            )
        total = self._totals.get(key, 0) + self._amounts[value.intent]
        if value.total != total:
            self.violated("INV3", f"{key} is {value.total} at {revision}, its intents sum {total}")
        self._totals[key] = total

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, IntentDone) and fact.intent not in self._seen:
            self.violated("INV11", f"{fact.intent} was acknowledged and is not in the store")


class OneLamp(Checker):
    """INV1: at most one lamp burns at any time, by the lamps themselves and not by the lease."""

    invariants = ("INV1",)

    def __init__(self) -> None:
        self._burning: list[str] = []

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, LampLit):
            self._burning.append(fact.host)
            # The lamp of a frozen computer does not count; when the computer resumes, it puts an
            # overdue lamp out first.
            shining = [name for name in self._burning if not world.hosts[name].frozen]
            if len(shining) > 1:
                self.violated("INV1", f"lamps burn on {' and '.join(shining)}")
        elif isinstance(fact, LampOut):
            self._burning.remove(fact.host)


class Epochs(Checker):
    """INV7: a stale epoch never wins, and a new holder has a new epoch."""

    invariants = ("INV7",)

    def __init__(self) -> None:
        self._lease: Lease | None = None

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            if change.key == LEASE_KEY and change.value is not None:
                self._check_lease(msgspec.json.decode(change.value, type=Lease))
            elif change.key == WORK_KEY and change.value is not None:
                self._check_write(world, int(change.value))

    def _check_lease(self, lease: Lease) -> None:
        before, self._lease = self._lease, lease
        if before is None:
            return
        step = 0 if lease.holder == before.holder and lease.beat else 1
        if lease.epoch != before.epoch + step:
            self.violated("INV7", f"from {before} to {lease}: the epoch should grow by {step}")

    def _check_write(self, world: World, epoch: int) -> None:
        record = world.stores["store"].keyspace.get(EPOCH_KEY)
        current = 0 if record is None else int(record.value)
        if epoch != current:
            self.violated("INV7", f"a write of epoch {epoch} won under epoch {current}")


class TrueViews(Checker):
    """INV10: the follower's copy equals the store at its revision; a viewer never goes back."""

    invariants = ("INV10",)

    def __init__(self) -> None:
        self._follower = (0, 0)
        self._viewer = (0, 0)

    def after_event(self, world: World) -> None:
        cell = world.cells["follower"]
        follower = cell.machine
        if isinstance(follower, Follower) and (cell.life, follower.revision) != self._follower:
            self._follower = (cell.life, follower.revision)
            self._compare(world, follower)
        cell = world.cells["viewer"]
        viewer = cell.machine
        if isinstance(viewer, Viewer):
            shown = (cell.life, viewer.shown.revision)
            if shown < self._viewer:
                self.violated("INV10", f"the viewer went back from {self._viewer} to {shown}")
            self._viewer = shown

    def _compare(self, world: World, follower: Follower) -> None:
        keyspace = world.stores["store"].keyspace
        if not keyspace.compacted <= follower.revision:
            return
        page = keyspace.range(PREFIX, after_prefix(PREFIX), at=follower.revision)
        truth = {record.key: record.value for record in page.records}
        if truth != follower.cache:
            self.violated(
                "INV10", f"as of {follower.revision} the follower has {follower.cache}, not {truth}"
            )


def _open_intent(world: World) -> str | None:
    for cell in world.cells.values():
        if isinstance(cell.machine, Client) and cell.machine.memory.todo:
            return f"{cell.name} has yet to do {cell.machine.memory.todo[0]}"
    return None


def _stale_view(world: World) -> str | None:
    keyspace = world.stores["store"].keyspace
    total = decode(keyspace.get(PREFIX + "a")).total
    viewer, follower = world.cells["viewer"].machine, world.cells["follower"].machine
    if isinstance(viewer, Viewer) and viewer.shown.total != total:
        return f"the viewer shows {viewer.shown}, the total is {total}"
    truth = {r.key: r.value for r in keyspace.range(PREFIX, after_prefix(PREFIX)).records}
    if isinstance(follower, Follower) and follower.cache != truth:
        return f"the follower has {follower.cache}, the store {truth}"
    return None


def _no_lamp(world: World) -> str | None:
    return None if any("lamp" in host.things for host in world.hosts.values()) else "no lamp burns"


def counter_checkers(amounts: dict[str, int], *, within_ms: int) -> list[Checker]:
    return [
        ExactlyOnce(amounts),
        TrueViews(),
        Settles("V1-done", _open_intent, within_ms=within_ms),
        Settles("V1-views", _stale_view, within_ms=within_ms + 15_000),
    ]


def lease_checkers(*, within_ms: int) -> list[Checker]:
    return [OneLamp(), Epochs(), Settles("V1-lamp", _no_lamp, within_ms=within_ms)]
