"""The scheduler's picture of the nodes: what each has, what is taken of it, and what is assumed.

It is kept up to date from the changes of the cache and from the scheduler's own binds that are on
their way. What a node's ledger would say is put together here from the node, the replicas and the
reservations, since ledgers themselves are the commit's own; whether something fits is asked of the
same `model/fit.py` as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.model.fit import Held
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, ReservationPhase
from holdfast.model.lifecycle import CHARGED, Cause
from holdfast.model.refusal import Refusal
from holdfast.observe.cache import Change, Key
from holdfast.propose.site import Site

# Longer than a resync of the cache takes to bring a lost event to light. An assumption that is
# given up too early costs one refused bind; one that is never given up would waste a place.
ASSUMED_MS = 90_000
# A node whose ledger said no to what looked possible is known to be seen wrongly. News of it end
# this at once.
SHUNNED_MS = 3_000

_ACTIVE = (ReservationPhase.HELD, ReservationPhase.COMMITTED)


class Assumption(msgspec.Struct, frozen=True, gc=False):
    """A placement of ours that is on its way, or was accepted and is not seen yet."""

    key: Key
    node: str
    held: Held
    until_ms: int


class Fleet:
    """All nodes. `notice` takes in what the cache tells; the scheduler adds what it assumes."""

    def __init__(self) -> None:
        self._sites: dict[str, Site] = {}
        self._assumed: dict[str, Assumption] = {}

    def __iter__(self) -> Iterator[Site]:
        """The nodes that are registered, in the order in which they became known."""
        return (site for site in self._sites.values() if site.node is not None)

    def get(self, name: str) -> Site | None:
        site = self._sites.get(name)
        return site if site is not None and site.node is not None else None

    # What the cache tells ------------------------------------------------------------------------

    def notice(self, change: Change) -> list[str]:
        """Take in a change; the names of the nodes that may have more to give than before."""
        before, after = change.before, change.after
        match change.object:
            case Node(metadata=metadata):
                return self._node(metadata.name, after if isinstance(after, Node) else None)
            case Replica(metadata=metadata):
                freed = self._moved(_of_replica(before), _of_replica(after))
                return [*freed, *self._seen(metadata.uid, after)]
            case Reservation():
                return self._moved(_of_reservation(before), _of_reservation(after))
        return []

    def _node(self, name: str, node: Node | None) -> list[str]:
        site = self._site(name)
        old = site.node
        if node is not None and old is not None and _looks_alike(old, node):
            # Only its status was written: heartbeats and conditions make no room.
            site.node = node
            return []
        site.place(node)
        self._tidy(site)
        return [name] if node is not None else []

    def _moved(self, before: dict[_Where, Held], after: dict[_Where, Held]) -> list[str]:
        freed: dict[str, None] = {}
        for where, held in before.items():
            if after.get(where) != held:
                site = self._site(where.node)
                getattr(site, where.shelf).pop(where.owner, None)
                site.changed()
                freed[where.node] = None
        for where, held in after.items():
            if before.get(where) != held:
                site = self._site(where.node)
                getattr(site, where.shelf)[where.owner] = held
                site.changed()
                if where.shelf == "leaving":
                    freed[where.node] = None
        for name in freed:
            self._tidy(self._site(name))
        return list(freed)

    def _seen(self, uid: str, replica: Any) -> list[str]:
        """A replica that moved on answers every assumption about it, whichever way."""
        assumed = self._assumed.get(uid)
        if assumed is None or not isinstance(replica, Replica):
            return []
        is_going = replica.metadata.deletion_timestamp is not None
        if replica.status.state not in CHARGED and not is_going:
            return []
        self.unassume(uid)
        binding = replica.status.binding
        return [] if binding is not None and binding.node == assumed.node else [assumed.node]

    def _site(self, name: str) -> Site:
        site = self._sites.get(name)
        if site is None:
            site = self._sites[name] = Site(name)
        return site

    def _tidy(self, site: Site) -> None:
        if site.is_idle():
            self._sites.pop(site.name, None)

    # What is assumed -----------------------------------------------------------------------------

    def assume(self, uid: str, key: Key, node: str, held: Held, now_ms: int) -> None:
        """Count a placement as made until it is seen, taken back, or too old to be believed."""
        self.unassume(uid)
        self._assumed[uid] = Assumption(key, node, held, now_ms + ASSUMED_MS)
        self._site(node).assume(uid, held)

    def renew(self, uid: str, now_ms: int) -> None:
        """Believe in an assumption for longer, if it has not been answered yet."""
        assumed = self._assumed.get(uid)
        if assumed is not None:
            self.assume(uid, assumed.key, assumed.node, assumed.held, now_ms)

    def unassume(self, uid: str) -> str | None:
        """Count it no longer; the node that has more to give by it."""
        assumed = self._assumed.pop(uid, None)
        if assumed is None:
            return None
        site = self._site(assumed.node)
        site.assume(uid, None)
        self._tidy(site)
        return assumed.node

    def assumed(self, uid: str) -> Assumption | None:
        return self._assumed.get(uid)

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
        """When the next assumption is too old."""
        return next((assumed.until_ms for assumed in self._assumed.values()), None)

    def shun(self, node: str, refusal: Refusal, now_ms: int) -> None:
        """Leave a node alone that the commit refused, until there is news of it or a short time."""
        site = self.get(node)
        if site is not None:
            site.shunned, site.shunned_until_ms = refusal, now_ms + SHUNNED_MS


class _Where(msgspec.Struct, frozen=True, gc=False):
    """Where something is written down: on which node, on which shelf, for whom."""

    node: str
    shelf: str
    owner: str


def _looks_alike(old: Node, new: Node) -> bool:
    return (
        old.metadata.uid == new.metadata.uid
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and old.status.phase is new.status.phase
        and old.status.mark == new.status.mark
        and old.status.incarnation == new.status.incarnation
    )


def _held(source: Binding | Claim) -> Held:
    return Held(charge=source.charge, devices=source.devices, ports=source.ports)


def _of_replica(replica: Any) -> dict[_Where, Held]:
    """What a replica holds. A released one keeps its binding as history only."""
    if not isinstance(replica, Replica):
        return {}
    binding = replica.status.binding
    if binding is None or replica.status.state not in CHARGED:
        return {}
    uid, held = replica.metadata.uid, _held(binding)
    found = {_Where(binding.node, "held", uid): held}
    if replica.status.cause is Cause.PREEMPTION:
        found[_Where(binding.node, "leaving", uid)] = held
    return found


def _of_reservation(reservation: Any) -> dict[_Where, Held]:
    """What a reservation holds: its open claims, or for a preemption what it was promised."""
    if not isinstance(reservation, Reservation) or reservation.status.phase not in _ACTIVE:
        return {}
    is_promise = reservation.spec.intent is Intent.PREEMPTION
    shelf = "promised" if is_promise else "held"
    found: dict[_Where, Held] = {}
    for index, claim in enumerate(reservation.status.claims):
        if claim.consumed or not claim.node:
            continue
        # A gang may have several claims on one node. A promise has one, and its holder's name.
        uid = reservation.metadata.uid
        owner = uid if is_promise else f"{uid}/{index}"
        found[_Where(claim.node, shelf, owner)] = _held(claim)
    return found
