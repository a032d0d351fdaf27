"""What must hold of preemption, from the committed records alone.

The rule is spelled here once more on purpose: an oracle that called the one under test would share
its mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.model import keys
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent, Reservation
from holdfast.model.kinds.tenant import PriorityClass, Quota
from holdfast.model.lifecycle import TAKES_BACK, Cause, State
from holdfast.model.placement.fit import demand_of
from holdfast.model.quota.ledger import Amounts, DisruptionLedger, NodeLedger, TenantUse
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import ACTIVE, StoreCopy
from holdfast.sim.world import World

REPLICAS, RESERVATIONS = "objects/replicas/", "objects/reservations/"
RUNS = (State.BOUND, State.RUNNING)
# Longer than the product's own cooldown.
IN_TURN_MS = 600_000
# A bind takes a moment; a lost answer, a resync or a lease that is taken over take longer.
HELD_MS = 40_000


class PreemptedWork(Checker):
    """G4: victims are legal at the instant of the stop, needed, and stopped once, for a place that
    is promised in the same commit; and no two workloads stop each other in turn.
    """

    invariants = ("LEGAL-VICTIM", "STOPPED-TWICE", "STOP-AND-PLACE", "NEEDLESS-STOP", "IN-TURN")

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        self._stopped: set[str] = set()
        # When work of one workload was last stopped for another, by both uids.
        self._pairs: dict[tuple[str, str], int] = {}
        self.victims = self.preemptions = self.reclaimed = self.taken_back = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        stopped = [
            (old, new)
            for _, old, new in self._store_copy.changed(REPLICAS)
            if isinstance(new, Replica) and _is_stopped(old, new)
        ]
        self.taken_back += sum(new.status.cause is Cause.RECLAIM for _, new in stopped)
        victims = [it for it in stopped if it[1].status.cause is Cause.PREEMPTION]
        promises = [
            new
            for _, old, new in self._store_copy.changed(RESERVATIONS)
            if isinstance(new, Reservation) and is_new_promise(old, new)
        ]
        if not victims and not promises:
            return
        self.victims += len(victims)
        self.preemptions += len(promises)
        at_ms = world.now_us // 1000
        for old, new in victims:
            if new.metadata.uid in self._stopped:
                self.violated("STOPPED-TWICE", f"{new.name} was stopped for other work before")
            self._stopped.add(new.metadata.uid)
            mine = self._made_by(old, victims, promises)
            if not mine:
                self.violated("STOP-AND-PLACE", f"{new.name} was stopped, and nothing is promised")
            if not any(self._is_legal(it, old, victims, promises) for it in mine):
                names = ", ".join(it.spec.owner.name for it in mine)
                self.violated("LEGAL-VICTIM", f"{new.name} may not be stopped for {names}")
            self._check_turns(mine, new, at_ms)
        for promise in promises:
            node = promise.status.claims[0].node
            there = [old for old, _ in victims if _node(old) == node]
            nodes = {it.status.claims[0].node for it in self._together(promise, promises)}
            if not any(_node(old) in nodes for old, _ in victims):
                self.violated(
                    "STOP-AND-PLACE", f"{promise.name} promises a place, stopping nothing"
                )
            if sum(it.status.claims[0].node == node for it in promises) == 1:
                self._check_need(promise, node, there)

    def _together(self, promise: Reservation, promises: list[Reservation]) -> list[Reservation]:
        """The promises of the same commit to the same gang; only itself if it is to no gang."""
        member = self._preemptor(promise)
        if member is None or not member.spec.gang:
            return [promise]
        others = [(it, self._preemptor(it)) for it in promises]
        uid = member.spec.workload_uid
        return [it for it, of in others if of is not None and of.spec.workload_uid == uid]

    @staticmethod
    def _made_by(
        victim: Replica, victims: list[tuple[Replica, Replica]], promises: list[Reservation]
    ) -> list[Reservation]:
        """The promises for which a victim may have been stopped: on its node, or on that of another
        member of its gang.
        """
        fellows = [old for old, _ in victims if old.spec.workload_uid == victim.spec.workload_uid]
        nodes = {_node(it) for it in (fellows if victim.spec.gang else [victim])}
        return [it for it in promises if it.status.claims[0].node in nodes]

    # The rule, once more -------------------------------------------------------------------------

    def _is_legal(
        self,
        promise: Reservation,
        victim: Replica,
        victims: list[tuple[Replica, Replica]],
        promises: list[Reservation],
    ) -> bool:
        preemptor = self._preemptor(promise)
        binding = victim.status.binding
        if preemptor is None or binding is None or not preempts(self._store_copy, preemptor):
            return False
        if binding.capacity_class == "reclaimable":
            return victim.spec.priority < preemptor.spec.priority
        together = self._together(promise, promises)
        return self._is_reclaimed(together, preemptor, victim, victims)

    def _preemptor(self, promise: Reservation) -> Replica | None:
        name = promise.spec.owner.name
        found: Replica | None = self._store_copy.now.get(
            f"{REPLICAS}{promise.namespace}/{name}"
        ) or self._store_copy.before.get(f"{REPLICAS}{promise.namespace}/{name}")
        return found

    def _is_reclaimed(
        self,
        together: list[Reservation],
        preemptor: Replica,
        victim: Replica,
        victims: list[tuple[Replica, Replica]],
    ) -> bool:
        if (
            together[0].spec.capacity_class.value != "hard"
            or victim.namespace == preemptor.namespace
        ):
            return False
        mine, theirs = self._quota(preemptor.namespace), self._quota(victim.namespace)
        if mine is None or theirs is None or mine.spec.cohort != theirs.spec.cohort:
            return False
        # Of what is stopped in this commit the largest may have been the first.
        gone = sorted(
            old.status.binding.charge.get("cpu", 0)
            for old, _ in victims
            if old.namespace == victim.namespace
            and old.status.binding is not None
            and old.status.binding.capacity_class == "hard"
        )
        used = self._charged(victim.namespace, stopping=False) + sum(gone[-1:])
        used += self._reserved(victim.namespace) + self._released(victim.namespace)
        self.reclaimed += 1
        return used > _cpus(theirs) and self._stays_inside(together, preemptor, mine)

    def _stays_inside(self, together: list[Reservation], preemptor: Replica, quota: Quota) -> bool:
        """Whether the lender stays inside its share, as it was before this commit or is after it:
        the same commit may have released or bound other work of it.
        """
        need = sum(it.status.claims[0].charge.get("cpu", 0) for it in together)
        key = f"ledgers/quota/{quota.spec.cohort}"
        found = self._store_copy.versions(key)
        held = [it.used.get(preemptor.namespace, TenantUse()).hard.get("cpu", 0) for it in found]
        others = self._reserved(preemptor.namespace, besides=together)
        after = self._charged(preemptor.namespace, stopping=True) + others
        least: int = min([*held, after])
        return least + need <= _cpus(quota)

    def _quota(self, tenant: str) -> Quota | None:
        found: Quota | None = self._store_copy.now.get(f"objects/quotas/{tenant}/default")
        return found

    def _charged(self, tenant: str, *, stopping: bool) -> int:
        """The committed cpu that a tenant holds, without what was stopped for other work."""
        return sum(
            _committed(it, tenant, stopping=stopping) for it in self._store_copy.all(REPLICAS)
        )

    def _released(self, tenant: str) -> int:
        """The committed cpu that a tenant has released in this commit, perhaps after a stop."""
        return sum(
            _committed(old, tenant, stopping=False)
            for _, old, new in self._store_copy.changed(REPLICAS)
            if isinstance(old, Replica)
            and not (isinstance(new, Replica) and new.status.state is not State.RELEASED)
        )

    def _reserved(self, tenant: str, *, besides: Sequence[Reservation] = ()) -> int:
        """The committed cpu that the open promises and reservations of a tenant are charged."""
        uids = [it.metadata.uid for it in besides]
        return sum(
            claim.charge.get("cpu", 0)
            for held in self._store_copy.all(RESERVATIONS)
            if held.namespace == tenant and held.metadata.uid not in uids and held.spec.quota
            if held.status.phase in ACTIVE and held.spec.capacity_class.value == "hard"
            for claim in held.status.claims
            if not claim.consumed
        )

    # The other invariants ------------------------------------------------------------------------

    def _check_need(self, promise: Reservation, node: str, victims: list[Replica]) -> None:
        """Without any one victim the promised cpu would not have been free."""
        key = keys.node_ledger(node)
        ledger: NodeLedger | None = self._store_copy.before.get(key)
        now: NodeLedger | None = self._store_copy.now.get(key)
        claim = promise.status.claims[0]
        if ledger is None or now is None or claim.devices or claim.ports or len(victims) < 2:
            return
        if ledger.used != now.used or ledger.allocatable != now.allocatable:
            # Something else was decided on this node in the same commit.
            return
        for victim in victims:
            binding = victim.status.binding
            others = [it.status.binding for it in victims if it is not victim]
            is_short = any(
                units
                > ledger.free(resource)
                + sum(it.charge.get(resource, 0) for it in others if it is not None)
                for resource, units in claim.charge.items()
            )
            if victim.spec.gang:
                # Its gang may have been needed as a whole.
                continue
            if binding is not None and not is_short and binding.capacity_class != "hard":
                self.violated("NEEDLESS-STOP", f"{victim.name} was stopped for {promise.name}")

    def _check_turns(self, promises: list[Reservation], victim: Replica, at_ms: int) -> None:
        found = [self._preemptor(it) for it in promises]
        preemptor = found[0] if found else None
        if preemptor is None or len({it.spec.workload_uid for it in found if it is not None}) > 1:
            return
        mine, theirs = preemptor.spec.workload_uid, victim.spec.workload_uid
        back = self._pairs.get((theirs, mine))
        if back is not None and at_ms - back < IN_TURN_MS:
            self.violated(
                "IN-TURN", f"{preemptor.name} stops {victim.name}, whose workload stopped its own"
            )
        self._pairs[mine, theirs] = at_ms


class StuckPreemptors:
    """V6: work that may preempt does not wait where stopping less valuable work makes room."""

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy

    def missing(self, _world: World) -> str | None:
        running = [it for it in self._store_copy.all(REPLICAS) if it.status.state in RUNS]
        for waits in self._store_copy.all(REPLICAS):
            pending = waits.status.pending
            if waits.status.state is not State.PENDING or pending is None:
                continue
            # A member of a gang needs room for others as well: `StuckGangs`.
            if waits.metadata.deletion_timestamp is not None or waits.spec.gang:
                continue
            if not preempts(self._store_copy, waits):
                continue
            if set(pending.reasons) - {"NodeFull"}:
                # Something else is in its way too.
                continue
            for node in self._store_copy.all("objects/nodes/"):
                room = self._room(node, waits, running)
                if room is not None:
                    return room
        return None

    def _room(self, node: Node, waits: Replica, running: list[Replica]) -> str | None:
        ledger: NodeLedger | None = self._store_copy.now.get(keys.node_ledger(node.name))
        spec = node.spec
        is_open = node.status.phase is NodePhase.READY and not spec.cordoned and not spec.drain
        if ledger is None or not is_open or spec.taints or ledger.promised:
            return None
        template = waits.spec.template
        if template.devices or template.ports:
            return None
        gone = self._stoppable(node, waits, running)
        for resource, units in demand_of(template).amounts.items():
            free = ledger.free(resource) + sum(charge.get(resource, 0) for charge in gone)
            if units > free:
                return None
        if gate_forbids(node, waits):
            return None
        return f"{waits.name} waits, and reclaimable work on {node.name} could make room for it"

    def _stoppable(self, node: Node, waits: Replica, running: list[Replica]) -> list[Amounts]:
        """What less valuable work holds on a node, of each workload within its budget."""
        workloads: dict[str, list[Amounts]] = {}
        for it in running:
            binding = it.status.binding
            if binding is None or binding.node != node.name:
                continue
            is_less = it.spec.priority < waits.spec.priority
            is_left = it.metadata.deletion_timestamp is None
            if binding.capacity_class != "reclaimable" or not (is_less and is_left):
                continue
            if it.spec.gang:
                # Of a gang it depends on the others.
                continue
            key = f"ledgers/disruption/{it.namespace}/{it.spec.workload}"
            workloads.setdefault(key, []).append(binding.charge)
        found: list[Amounts] = []
        for key, charges in workloads.items():
            budget: DisruptionLedger | None = self._store_copy.now.get(key)
            most = len(charges)
            if budget is not None and budget.allowed is not None:
                wanted = budget.replicas if budget.desired is None else budget.desired
                most = max(0, budget.allowed - max(0, wanted - budget.healthy))
            found += sorted(charges, key=lambda it: it.get("cpu", 0))[-most:] if most else []
        return found


class HeldPromises:
    """V7: a promised place that its victims have left is bound or given back soon."""

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # Since when the victims of each promise are gone, by uid.
        self._since_ms: dict[str, int] = {}

    def missing(self, world: World) -> str | None:
        now_ms = world.now_us // 1000
        leaving = {
            _node(it)
            for it in self._store_copy.all(REPLICAS)
            if it.status.cause is Cause.PREEMPTION and it.status.state is not State.RELEASED
        }
        active = [
            held
            for held in self._store_copy.all(RESERVATIONS)
            if held.spec.intent is Intent.PREEMPTION and held.status.phase in ACTIVE
        ]
        # The places of a gang are bound together.
        waiting = {self._whose(held) for held in active if held.status.claims[0].node in leaving}
        free = {held.metadata.uid: held for held in active if self._whose(held) not in waiting}
        self._since_ms = {uid: self._since_ms.get(uid, now_ms) for uid in free}
        for uid, since_ms in self._since_ms.items():
            if now_ms - since_ms > HELD_MS:
                return f"{free[uid].name} holds a place that its victims left"
        return None

    def _whose(self, held: Reservation) -> str:
        """The gang that it is held for, or itself."""
        key = f"{REPLICAS}{held.namespace}/{held.spec.owner.name}"
        owner: Replica | None = self._store_copy.now.get(key)
        is_member = owner is not None and owner.metadata.uid == held.spec.owner.uid
        if owner is None or not is_member or not owner.spec.gang:
            return held.metadata.uid
        return owner.spec.workload_uid


def preempts(store_copy: StoreCopy, replica: Replica) -> bool:
    """Whether the priority class of this work stops other work."""
    name = replica.spec.template.priority_class or "default"
    found: PriorityClass | None = store_copy.now.get(f"objects/priorityclasses/{name}")
    return found is not None and found.spec.preempts


def gate_forbids(node: Node, replica: Replica) -> bool:
    """Whether isolation, which some nodes of this world lack, is in the way."""
    return node.status.isolation is not None and node.status.isolation.value == "none"


def _committed(replica: Replica, tenant: str, *, stopping: bool) -> int:
    """The committed cpu of a replica of this tenant; `stopping` includes what makes way."""
    binding = replica.status.binding
    if binding is None or replica.namespace != tenant or replica.status.state is State.RELEASED:
        return 0
    is_leaving = replica.status.cause in TAKES_BACK
    is_counted = binding.capacity_class == "hard" and (stopping or not is_leaving)
    return binding.charge.get("cpu", 0) if is_counted else 0


def _is_stopped(old: Any, new: Replica) -> bool:
    """Whether it is stopped, or again while it is stopping."""
    if not isinstance(old, Replica) or new.status.state is not State.STOPPING:
        return False
    was_stopping = old.status.state is State.STOPPING
    is_again = was_stopping and old.status.transition_number != new.status.transition_number
    return old.status.state in RUNS or is_again


def is_stopped_for_other_work(old: Any, new: Replica) -> bool:
    """Whether this change of a replica is its stop for other work."""
    return _is_stopped(old, new) and new.status.cause is Cause.PREEMPTION


def is_new_promise(old: Any, new: Any) -> bool:
    """Whether this change of a reservation is a new promise."""
    if not isinstance(new, Reservation):
        return False
    if new.spec.intent is not Intent.PREEMPTION or new.status.phase not in ACTIVE:
        return False
    same = isinstance(old, Reservation) and old.metadata.uid == new.metadata.uid
    return not same and bool(new.status.claims)


def _node(replica: Replica) -> str:
    binding = replica.status.binding
    return binding.node if binding is not None else ""


def _cpus(quota: Quota) -> int:
    return int(str(quota.spec.hard["cpu"])) * 1000
