"""What must happen after the faults: nothing is stuck, what fits is placed, writes stop.

The script of a world then tells scripted clients to rest: to finish what there is and to start
nothing new. What is not done after that would never be done.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.model import keys
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import claim, demand_of
from holdfast.model.placement.placement_rules import isolation_refusal, neighbour_refusal
from holdfast.model.quota.allowance import quota_refusal
from holdfast.model.quota.charging import budget_of
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Refusal
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import ACTIVE, StoreCopy
from holdfast.sim.world import World

# Without faults, everything that can make progress does so within this time.
STUCK_MS = 60_000
OVERDUE_MS = 30_000
PLACED_MS = 60_000
QUIET_MS = 120_000
# Reserved is not listed: a clock far ahead may have set a late deadline, which INV12 covers.
_PASSING = (State.STOPPING, State.FAILED, State.SUCCEEDED, State.RELEASED)


def _past_ms(world: World, moment: datetime) -> float:
    """The age of a moment, by true time."""
    return (world.origin_us + world.now_us) / 1000 - moment.timestamp() * 1000


def unsettled_work(store_copy: StoreCopy, world: World) -> str | None:
    """V1: a deletion, or work that ended, without progress."""
    for obj in (*store_copy.all("objects/workloads/"), *store_copy.all("objects/replicas/")):
        asked = obj.metadata.deletion_timestamp
        if asked is not None and _past_ms(world, asked) > STUCK_MS:
            return f"{obj.name} has been under deletion since {asked}"
    for replica in store_copy.all("objects/replicas/"):
        last = replica.status.transitions[-1].at
        if replica.status.state in _PASSING and _past_ms(world, last) > STUCK_MS:
            return f"{replica.name} has been {replica.status.state.value} since {last}"
    return None


def overdue_reservation(store_copy: StoreCopy, world: World) -> str | None:
    """INV12: a reservation that was not dropped within one repair period after its deadline."""
    for held in store_copy.all("objects/reservations/"):
        if held.status.phase in ACTIVE and _past_ms(world, held.spec.deadline) > OVERDUE_MS:
            return f"reservation {held.name} was due at {held.spec.deadline}"
    return None


class PlaceableReplicas:
    """V2: a replica that fits on some node all the time is bound within a limit."""

    placed_ms = PLACED_MS

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        self._since: dict[str, int] = {}
        # The replicas that waited, as of a version of the copy.
        self._seen: tuple[int, dict[str, Replica]] = (-1, {})

    def missing(self, world: World) -> str | None:
        if self._seen[0] != self._store_copy.version:
            self._seen = (self._store_copy.version, self._waiting())
        waiting = self._seen[1]
        now_ms = world.now_us // 1000
        self._since = {uid: self._since.get(uid, now_ms) for uid in waiting}
        for uid, since_ms in self._since.items():
            if now_ms - since_ms > self.placed_ms:
                return f"{waiting[uid].name} has fitted since {since_ms} ms and is not bound"
        return None

    def _waiting(self) -> dict[str, Replica]:
        """The replicas that could be bound now, except gangs: those are placed all or none."""
        found = {}
        ledgers = self.open_ledgers()
        for replica in self._store_copy.all("objects/replicas/"):
            free = replica.status.state is State.PENDING and not replica.spec.gang
            if (
                free
                and replica.metadata.deletion_timestamp is None
                and self._fits(replica, ledgers)
            ):
                found[replica.metadata.uid] = replica
        return found

    def open_ledgers(self) -> list[NodeLedger]:
        """The ledgers of nodes that take new work."""
        return [ledger for ledger in self._store_copy.all("ledgers/node/") if _open(ledger)]

    def _fits(self, replica: Replica, ledgers: list[NodeLedger]) -> bool:
        return self.quota_allows(replica, 1) and any(
            self.fits_on(replica, ledger) for ledger in ledgers
        )

    def quota_allows(self, replica: Replica, count: int) -> bool:
        """Whether the tenant may have this many more of it."""
        wanted = demand_of(replica.spec.template)
        quota = self._store_copy.now["ledgers/quota/house"]
        tenant: Any = self._store_copy.now[f"objects/tenants/{replica.namespace}"]
        budget = budget_of(replica.spec.template.priority_class)
        amounts = {resource: units * count for resource, units in wanted.amounts.items()}
        refused = quota_refusal(quota, replica.namespace, CapacityClass.HARD, amounts, budget)
        return refused is None and not tenant.spec.suspended

    @staticmethod
    def fits_on(replica: Replica, ledger: NodeLedger) -> bool:
        """Whether this node would take it now."""
        template = replica.spec.template
        home = template.placement.residency
        return (
            (not home or ledger.gate.region == home)
            and isolation_refusal(ledger.gate.isolation, template.isolation, template.runtime)
            is None
            and neighbour_refusal(ledger.gate, ledger.tenants, replica.namespace) is None
            and not isinstance(claim(ledger, demand_of(template)), Refusal)
        )


def _open(ledger: NodeLedger) -> bool:
    gate = ledger.gate
    shut = gate.cordoned or gate.draining or gate.taints
    return gate.phase is NodePhase.READY and not shut


class QuietStore(Checker):
    """V4: at the fixed point nothing is written.

    Exceptions are lease renewals, the removal of operations whose time is over and of reservations
    that have ended, and what is written together with those.
    """

    invariants = ("V4",)

    def __init__(self, store_copy: StoreCopy, after_ms: int = QUIET_MS) -> None:
        self._store_copy, self._after_ms = store_copy, after_ms
        self._demanded = False

    def on_calm(self, world: World) -> None:
        world.post(world.now_us + self._after_ms * 1000, self._begin, world, None)

    def _begin(self, _number: int, _world: World, _: None) -> None:
        """Demands silence unless a reservation is active: a clock that was minutes ahead may have
        set a deadline that is still to come."""
        held = self._store_copy.all("objects/reservations/")
        self._demanded = not any(each.status.phase in ACTIVE for each in held)

    def on_commit(self, world: World, commit: Commit) -> None:
        removed = any(
            change.value is None and change.key.startswith("objects/reservations/")
            for change in commit.changes
        )
        for change in commit.changes if self._demanded and not removed else ():
            if not change.key.startswith(("objects/leases/", keys.OPERATIONS, keys.AUDIT)):
                self.violated("V4", f"{change.key} is still written at {world.now_us // 1000} ms")
