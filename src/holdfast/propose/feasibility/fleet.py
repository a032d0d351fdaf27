"""The scheduler's state of the nodes: what each has, what is taken of it, and what is assumed.

It is kept up to date from the changes of the cache and from the scheduler's own binds in flight.
The ledgers themselves belong to the commit. What a node's ledger would say is reconstructed here
from the node, the replicas and the reservations; whether something fits is decided by the same
`model/placement/fit.py`.

Each node has a `NodeState`, which knows who holds what, and a row of the columns, which has the
sums. A change adds to the row or subtracts from it; a row is only recomputed where promises exist.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation
from holdfast.model.lifecycle import CHARGED, Cause
from holdfast.model.placement.fit import Allocation
from holdfast.model.quota.charging import is_active, is_recovery
from holdfast.model.refusal import Refusal
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.node_columns import NodeColumns
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.gpu import GpuPools
from holdfast.propose.preemption.evictables import Evictables, evictable_of
from holdfast.propose.preemption.known_budgets import KnownBudgets
from holdfast.propose.topology.topology_counts import ReplicaTraits, TopologyCounts, traits_of

# What replicas and reservations hold, and on which nodes, as their own objects state it.
#
# The fleet computes this for the state before and after each change, and applies the difference.


class HoldingKey(msgspec.Struct, frozen=True, gc=False):
    """Where an allocation is recorded: the node, the attribute of its state, and the owner."""

    node: str
    attribute: str
    owner: str


def node_of(replica: Any) -> str:
    """The node of a replica, or an empty string."""
    if not isinstance(replica, Replica) or replica.status.state not in CHARGED:
        return ""
    binding = replica.status.binding
    return binding.node if binding is not None else ""


def _held(source: Binding | Claim, tenant: str) -> Allocation:
    return Allocation(source.charge, source.devices, source.ports, tenant)


def of_replica(replica: Any) -> dict[HoldingKey, Allocation]:
    """What a replica holds. The binding of a released replica is history only."""
    if not isinstance(replica, Replica):
        return {}
    binding = replica.status.binding
    if binding is None or replica.status.state not in CHARGED:
        return {}
    uid, held = replica.metadata.uid, _held(binding, replica.namespace)
    found = {HoldingKey(binding.node, "held", uid): held}
    if replica.status.cause is Cause.PREEMPTION:
        found[HoldingKey(binding.node, "leaving", uid)] = held
    return found


def of_reservation(reservation: Any) -> dict[HoldingKey, Allocation]:
    """What a reservation holds: its open claims, or for a preemption what it was promised."""
    if not isinstance(reservation, Reservation) or not is_active(reservation):
        return {}
    is_promise = reservation.spec.intent is Intent.PREEMPTION
    attribute = "promised" if is_promise else "recovery" if is_recovery(reservation) else "held"
    found: dict[HoldingKey, Allocation] = {}
    for index, claim in enumerate(reservation.status.claims):
        if claim.consumed or not claim.node:
            continue
        # A gang may have several claims on one node. A promise has one, under its holder's name.
        uid = reservation.metadata.uid
        owner = uid if is_promise else f"{uid}/{index}"
        found[HoldingKey(claim.node, attribute, owner)] = _held(claim, reservation.namespace)
    return found


# Longer than a resync of the cache takes to find a lost event. An assumption that is given up too
# early costs one refused bind; one that is never given up would waste capacity.
ASSUMED_MS = 90_000
# If a node's ledger refused what looked possible, our state of that node is wrong. A change of the
# node ends this at once.
SHUNNED_MS = 3_000


class Assumption(msgspec.Struct, frozen=True, gc=False):
    """A placement of ours that is in flight, or was accepted and is not seen yet."""

    key: Key
    node: str
    held: Allocation
    until_ms: int
    traits: ReplicaTraits | None = None


class _Promise(msgspec.Struct, frozen=True, gc=False):
    """A promised place of a plan in flight, and the victims that leave by it alone."""

    node: str
    victims: tuple[str, ...]


# The owner of such a promise, until the reservation is seen that has it.
_PLANNED = "plan/"


class Fleet:
    """All nodes. `notice` applies the changes of the cache; the scheduler adds what it assumes."""

    def __init__(self) -> None:
        self.columns = NodeColumns()
        self.topology_counts = TopologyCounts(self.columns)
        self.pools = GpuPools(self.columns)
        self._sites: dict[str, NodeState] = {}
        self._by_row: dict[int, NodeState] = {}
        self.evictables, self.budgets = Evictables(self.columns), KnownBudgets()
        self._assumed: dict[str, Assumption] = {}
        # Places that are promised by a plan of ours and not seen yet, by the uid of their replica;
        # and the node that each of their victims leaves.
        self._promised: dict[str, _Promise] = {}
        self._supposed: dict[str, str] = {}
        self._shunned: dict[str, NodeState] = {}
        # The uids of assumptions that ended, if a consumer set a list; the consumer empties it.
        self.unassumed: list[str] | None = None
        # The nodes whose state a copy has too.
        self._shared: set[str] = set()

    def copy(self) -> Fleet:
        """A fleet that may change while this one does not, and the other way round.

        The columns are copied, which are few large arrays. The state of a node is copied when one
        of the two changes it.
        """
        made = copy.copy(self)
        made.columns = self.columns.copy()
        made.topology_counts = self.topology_counts.copy(made.columns)
        made.pools = self.pools.copy(made.columns)
        made.evictables = self.evictables.copy(made.columns)
        made.budgets = self.budgets.copy()
        made._promised, made._supposed = dict(self._promised), dict(self._supposed)
        made._sites, made._by_row = dict(self._sites), dict(self._by_row)
        made._assumed, made._shunned = dict(self._assumed), dict(self._shunned)
        made.unassumed = None
        self._shared, made._shared = set(self._sites), set(self._sites)
        return made

    def only(self, name: str, *, is_empty: bool) -> Fleet:
        """A fleet of this one node, with what is settled there, or with nothing on it.

        What depends on other nodes, as spread and affinity do, cannot be asked of it.
        """
        made, site = Fleet(), self._sites[name]
        made.notice(ObjectChange("nodes", None, site.node))
        attributes = {
            "held": site.held,
            "recovery": site.recovery,
            "promised": site.promised,
            "leaving": site.leaving,
        }
        for attribute, allocations in {} if is_empty else attributes.items():
            for owner, held in allocations.items():
                made._put(HoldingKey(name, attribute, owner), None, held)
        return made

    def only_without(self, name: str, gone: Iterable[str]) -> Fleet:
        """The fleet of this one node as it is, without what these owners hold."""
        made, site = Fleet(), self._sites[name]
        made.notice(ObjectChange("nodes", None, site.node))
        left_out = frozenset(gone)
        for attribute in ("held", "promised", "leaving", "assumed"):
            for owner, held in getattr(site, attribute).items():
                if owner not in left_out:
                    where = "held" if attribute == "assumed" else attribute
                    made._put(HoldingKey(name, where, owner), None, held)
        return made

    def __iter__(self) -> Iterator[NodeState]:
        """The registered nodes, in the order in which they became known."""
        return (site for site in self._sites.values() if site.node is not None)

    def get(self, name: str) -> NodeState | None:
        site = self._sites.get(name)
        return site if site is not None and site.node is not None else None

    def at(self, row: int) -> NodeState:
        """The node of a row."""
        return self._by_row[row]

    # Changes of the cache ------------------------------------------------------------------------

    def notice(self, change: ObjectChange) -> list[str]:
        """Apply a change. Returns the nodes that may have more room than before."""
        before, after = change.before, change.after
        match change.object:
            case Node(metadata=metadata):
                return self._node(metadata.name, after if isinstance(after, Node) else None)
            case Replica(metadata=metadata):
                if before is None and isinstance(after, Replica):
                    self.pools.see(after.spec.template)
                # Counted first: a node on which nothing is left is dropped together with its row.
                self._count(before, after)
                after_held = of_replica(after)
                freed = self._moved(of_replica(before), after_held)
                self._left(metadata.uid, after_held)
                self._evictable(metadata.uid, after)
                self.budgets.notice(before, after)
                return [*freed, *self._seen(metadata.uid, after)]
            case Reservation():
                return self._moved(of_reservation(before), of_reservation(after))
        return []

    def _node(self, name: str, node: Node | None) -> list[str]:
        site = self._site(name)
        old = site.node
        if node is not None and old is not None and _looks_alike(old, node):
            # Only its status was written: heartbeats and conditions make no room.
            site.node = node
            if old.status.images != node.status.images:
                self.columns.images(site.row, node)
            return []
        site.place(node)
        self.topology_counts.nodes_changed = True
        self._shunned.pop(name, None)
        self._place(site)
        self._tidy(site)
        return [name] if node is not None else []

    def _place(self, site: NodeState) -> None:
        """Write what the node is now into its row."""
        columns, row = self.columns, site.row
        before = int(columns.zone[row]), int(columns.region[row])
        if site.node is None:
            columns.absent(row)
        else:
            columns.place_node(row, site.node, site.empty)
            columns.shun(row, shunned=False)
        self._restate(site)
        if before != (int(columns.zone[row]), int(columns.region[row])) and not site.is_bare():
            # Its replicas became known before the node did.
            self.topology_counts.rezone()

    def _restate(self, site: NodeState) -> None:
        ledger = site.ledger if site.is_bent else None
        held = (*site.held.values(), *site.recovery.values())
        self.columns.restate(site.row, held, site.assumed.values(), ledger)

    def _moved(
        self, before: dict[HoldingKey, Allocation], after: dict[HoldingKey, Allocation]
    ) -> list[str]:
        freed: dict[str, None] = {}
        for where, held in before.items():
            if after.get(where) != held:
                self._put(where, held, None)
                freed[where.node] = None
        for where, held in after.items():
            if before.get(where) != held:
                self._put(where, None, held)
                if where.attribute == "leaving":
                    freed[where.node] = None
        for name in freed:
            self._tidy(self._site(name))
        return list(freed)

    def _put(self, where: HoldingKey, old: Allocation | None, new: Allocation | None) -> None:
        """Add an allocation to a node or remove it, and update its row."""
        site = self._site(where.node)
        was_bent = site.is_bent
        attribute: dict[str, Allocation] = getattr(site, where.attribute)
        old = attribute.pop(where.owner, None) if old is not None else attribute.get(where.owner)
        if new is not None:
            attribute[where.owner] = new
        site.changed()
        self._unshun(site)
        if was_bent or site.is_bent or where.attribute == "promised":
            self._restate(site)
        elif where.attribute in ("held", "recovery"):
            if old is not None:
                self.columns.take(site.row, old, -1)
            if new is not None:
                self.columns.take(site.row, new, 1)

    def _count(self, before: Any, after: Any) -> None:
        """Update the topology counts for a replica."""
        node = node_of(after)
        if node:
            self.topology_counts.put(after.metadata.uid, traits_of(after), self._site(node).row)
        elif before_node := node_of(before):
            site = self._sites.get(before_node)
            if site is not None:
                self.topology_counts.remove(before.metadata.uid, before.namespace, site.row)

    def _seen(self, uid: str, replica: Any) -> list[str]:
        """Settle the assumption about a replica that has moved on, whichever way."""
        assumed = self._assumed.get(uid)
        if assumed is None or not isinstance(replica, Replica):
            return []
        is_going = replica.metadata.deletion_timestamp is not None
        if replica.status.state not in CHARGED and not is_going:
            return []
        self.unassume(uid)
        binding = replica.status.binding
        if binding is not None and binding.node == assumed.node:
            # It is where it was assumed to be; ending the assumption has uncounted it.
            self._count(None, replica)
            return []
        return [assumed.node]

    def _site(self, name: str) -> NodeState:
        """The state of a node, to be changed."""
        site = self._sites.get(name)
        if site is None:
            site = self._sites[name] = NodeState(name, self.columns.add())
            self._by_row[site.row] = site
        elif name in self._shared:
            self._shared.discard(name)
            site = self._sites[name] = self._by_row[site.row] = site.copy()
            if name in self._shunned:
                self._shunned[name] = site
        return site

    def _tidy(self, site: NodeState) -> None:
        if site.is_idle() and self._sites.pop(site.name, None) is not None:
            del self._by_row[site.row]
            self.columns.drop(site.row)

    # What other work makes way for ---------------------------------------------------------------

    def _evictable(self, uid: str, replica: Any) -> None:
        site = self._sites.get(node_of(replica))
        found = evictable_of(replica, site.row) if site is not None else None
        self.evictables.put(uid, found)

    def promise(
        self, uid: str, node: str, held: Allocation, victims: Mapping[str, Allocation]
    ) -> None:
        """Count a place as promised and its victims as leaving, as the commit will. Those that run
        elsewhere make no room here.
        """
        self.withdraw(uid)
        site = self._site(node)
        here = {it: each for it, each in victims.items() if it in site.held}
        new = {it: each for it, each in here.items() if it not in site.leaving}
        self._promised[uid] = _Promise(node, tuple(new))
        site.promised[_PLANNED + uid] = held
        site.leaving |= new
        self._supposed |= dict.fromkeys(new, node)
        for victim in new:
            self.evictables.hide(victim)
        site.changed()
        self._unshun(site)
        self._restate(site)

    def withdraw(self, uid: str) -> str | None:
        """End such a promise: it is seen, or was refused. Returns its node."""
        promise = self._promised.pop(uid, None)
        if promise is None:
            return None
        site = self._site(promise.node)
        site.promised.pop(_PLANNED + uid, None)
        for victim in promise.victims:
            if self._supposed.pop(victim, None) is not None:
                site.leaving.pop(victim, None)
                self.evictables.show(victim)
        site.changed()
        self._restate(site)
        self._tidy(site)
        return promise.node

    @property
    def promises(self) -> int:
        """The number of promises that are only assumed."""
        return len(self._promised)

    def _left(self, uid: str, held: dict[HoldingKey, Allocation]) -> None:
        """Settle that a replica was supposed to leave: it does now, or it is gone."""
        node = self._supposed.get(uid)
        if node is None:
            return
        if HoldingKey(node, "leaving", uid) in held:
            del self._supposed[uid]
            self.evictables.show(uid)
        elif HoldingKey(node, "held", uid) not in held:
            del self._supposed[uid]
            self.evictables.show(uid)
            site = self._site(node)
            site.leaving.pop(uid, None)
            site.changed()
            self._restate(site)

    # Assumptions ---------------------------------------------------------------------------------

    def assume(
        self,
        uid: str,
        key: Key,
        node: str,
        held: Allocation,
        now_ms: int,
        traits: ReplicaTraits | None = None,
    ) -> None:
        """Count a placement as made until it is seen, taken back, or too old."""
        self.unassume(uid)
        held = msgspec.structs.replace(held, tenant=key[0])
        self._assumed[uid] = Assumption(key, node, held, now_ms + ASSUMED_MS, traits)
        site = self._site(node)
        self._assumed_at(site, uid, held, 1)
        if traits is not None:
            self.topology_counts.put(uid, traits, site.row)

    def renew(self, uid: str, now_ms: int) -> None:
        """Extend an assumption, if it has not been settled yet."""
        assumed = self._assumed.pop(uid, None)
        if assumed is not None:
            # Moved to the end, as the last to become too old.
            self._assumed[uid] = Assumption(
                assumed.key, assumed.node, assumed.held, now_ms + ASSUMED_MS, assumed.traits
            )

    def unassume(self, uid: str) -> str | None:
        """End an assumption. Returns the node that has more room by it."""
        assumed = self._assumed.pop(uid, None)
        if assumed is None:
            return None
        if self.unassumed is not None:
            self.unassumed.append(uid)
        site = self._site(assumed.node)
        self._assumed_at(site, uid, assumed.held, -1)
        if assumed.traits is not None:
            self.topology_counts.remove(uid, assumed.traits.namespace, site.row)
        self._tidy(site)
        return assumed.node

    def _assumed_at(self, site: NodeState, uid: str, held: Allocation, sign: int) -> None:
        site.assume(uid, held if sign > 0 else None)
        if site.is_bent:
            self._restate(site)
        else:
            self.columns.lend(site.row, held, sign)

    def all_assumed(self) -> Iterable[tuple[str, Assumption]]:
        """All placements that are only assumed, by uid."""
        return self._assumed.items()

    def assumed(self, uid: str) -> Assumption | None:
        return self._assumed.get(uid)

    @property
    def assumptions(self) -> int:
        """The number of placements that are only assumed."""
        return len(self._assumed)

    def overdue(self, now_ms: int) -> list[str]:
        """The uids whose placement should have been seen long ago."""
        # Assumptions are made in the order of time and last equally long: the first ones are due.
        found = []
        for uid, assumed in self._assumed.items():
            if assumed.until_ms > now_ms:
                break
            found.append(uid)
        return found

    @property
    def next_ms(self) -> int | None:
        """When the next assumption becomes too old."""
        return next((assumed.until_ms for assumed in self._assumed.values()), None)

    def shun(self, node: str, refusal: Refusal, now_ms: int) -> None:
        """Avoid a node that the commit refused, until it changes or for a short time."""
        if self.get(node) is not None:
            site = self._site(node)
            site.shunned, site.shunned_until_ms = refusal, now_ms + SHUNNED_MS
            self._shunned.pop(node, None)
            self._shunned[node] = site
            self.columns.shun(site.row, shunned=True)

    def forgive(self, now_ms: int) -> None:
        """Stop avoiding nodes whose time is over. All last equally long: the first end first."""
        while self._shunned:
            name, site = next(iter(self._shunned.items()))
            if site.shunned_until_ms > now_ms:
                break
            site = self._site(name)
            site.shunned = None
            self._unshun(site)

    def shunned_nodes(self) -> dict[str, tuple[str, str]]:
        """Why nodes are avoided at the moment, by name: the reason and its message."""
        return {
            name: (site.shunned.reason.value, site.shunned.message)
            for name, site in self._shunned.items()
            if site.shunned is not None
        }

    def _unshun(self, site: NodeState) -> None:
        if self._shunned.pop(site.name, None) is not None:
            self.columns.shun(site.row, shunned=False)


def _looks_alike(old: Node, new: Node) -> bool:
    return (
        old.metadata.uid == new.metadata.uid
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and old.status.phase is new.status.phase
        and old.status.mark == new.status.mark
        and old.status.incarnation == new.status.incarnation
        and old.status.isolation is new.status.isolation
    )
