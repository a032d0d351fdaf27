"""How many replicas of each kind every node, zone and region has.

The fleet maintains it from bindings and from what is assumed; spread, affinity and the limit per
node read it. Counts are kept only for what some work asks about (a term: a workload, or a selector
within a tenant), and start with one pass over all kinds of replicas of that tenant.

A replica that is being stopped counts until it is gone: until then affinities refer to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from holdfast.model.kinds.placement import Topology
from holdfast.model.kinds.replica import Replica
from holdfast.model.selection.selectors import LabelSelector, selects
from holdfast.observe.node_columns import NodeColumns

# The terms that are counted at once. The first one is dropped, and counted again when needed.
TERMS_MAX = 4_096
# The kinds of replicas for which the anti-affinities to them are cached.
KINDS_MAX = 16_384


# A required anti-affinity: the selector, and the topology within which it holds.
Apart = tuple[bytes, Topology]


class ReplicaTraits(msgspec.Struct, frozen=True, gc=False):
    """What the topology rules look at in a replica."""

    namespace: str
    workload_uid: str
    labels: tuple[tuple[str, str], ...] = ()
    # The selectors of its required anti-affinities as encoded, and their topologies.
    apart: tuple[Apart, ...] = ()


def traits_of(replica: Replica) -> ReplicaTraits:
    """The traits of a replica, whether it has a node or needs one."""
    labels = tuple(replica.metadata.labels.items())
    spec = replica.spec
    rules = spec.template.placement.anti_affinity
    if not rules:
        return ReplicaTraits(replica.namespace, spec.workload_uid, labels)
    apart = tuple((_written(it.selector), it.within) for it in rules if it.required)
    return ReplicaTraits(replica.namespace, spec.workload_uid, labels, apart)


def _written(selector: LabelSelector) -> bytes:
    return msgspec.json.encode(selector, order="deterministic")


class TopologyTerm:
    """What is counted: replicas of one workload, those of a tenant that a selector matches, or
    those that have a certain anti-affinity.
    """

    __slots__ = ("apart", "counts", "namespace", "selector", "total", "workload_uid")

    def __init__(
        self,
        namespace: str,
        workload_uid: str,
        selector: LabelSelector | None,
        apart: Apart | None = None,
    ) -> None:
        self.namespace, self.workload_uid, self.selector = namespace, workload_uid, selector
        self.apart = apart
        # By row, by zone and by region, each by its number in the columns.
        self.counts: dict[Topology, dict[int, int]] = {topology: {} for topology in Topology}
        self.total = 0

    def takes(self, traits: ReplicaTraits) -> bool:
        """Whether a replica counts."""
        if traits.namespace != self.namespace:
            return False
        if self.apart is not None:
            return self.apart in traits.apart
        if self.selector is None:
            return traits.workload_uid == self.workload_uid
        return selects(self.selector, dict(traits.labels))

    def add(self, row: int, columns: NodeColumns, more: int) -> None:
        """Add `more` replicas on this row; a negative number removes them."""
        self.total += more
        for topology, number in domains_of(row, columns):
            counts = self.counts[topology]
            count = counts.get(number, 0) + more
            if count:
                counts[number] = count
            else:
                del counts[number]


def domains_of(row: int, columns: NodeColumns) -> Iterator[tuple[Topology, int]]:
    """The domains of a row, by topology."""
    yield Topology.NODE, row
    yield Topology.ZONE, int(columns.zone[row])
    yield Topology.REGION, int(columns.region[row])


class _ReplicaKind:
    """Replicas that no term distinguishes: how many are on each row, and which terms count them."""

    __slots__ = ("rows", "terms", "traits")

    def __init__(self, traits: ReplicaTraits, terms: list[TopologyTerm]) -> None:
        self.traits, self.terms = traits, terms
        self.rows: dict[int, int] = {}


class TopologyCounts:
    """See the module's docstring. A replica is on one node, or on none."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        # By tenant: where each replica is, and the kinds of replicas that are placed.
        self._where: dict[str, dict[str, tuple[_ReplicaKind, int]]] = {}
        self._kinds: dict[str, dict[ReplicaTraits, _ReplicaKind]] = {}
        self._terms: dict[tuple[str, str, bytes | Apart], TopologyTerm] = {}
        # By tenant, the anti-affinities of placed replicas, with the number of replicas of each.
        self._aparts: dict[str, dict[Apart, int]] = {}
        # The anti-affinities that select a kind of replicas; cleared when the set changes.
        self._repelling: dict[ReplicaTraits, list[Apart]] = {}
        # The tenants whose replicas came or went since this was last read.
        self.changed_tenants: dict[str, None] = {}
        # Whether a node changed: the domains that a spread compares with may have changed too.
        self.nodes_changed = False
        self.changes = 0
        # The tenants whose replicas and kinds a copy has too.
        self._shared: set[str] = set()

    def copy(self, columns: NodeColumns) -> TopologyCounts:
        """The same counts for a copy of the columns; a tenant is copied when one side changes it.

        Terms are counted again when they are asked for.
        """
        made = TopologyCounts(columns)
        made._where, made._kinds = dict(self._where), dict(self._kinds)
        made._aparts = {tenant: dict(aparts) for tenant, aparts in self._aparts.items()}
        made.changes = self.changes
        self._shared, made._shared = set(self._where), set(self._where)
        return made

    def _own(self, namespace: str) -> None:
        """Copy what is shared of a tenant, before it is changed."""
        if namespace not in self._shared:
            return
        self._shared.discard(namespace)
        terms = list(self._terms.values())
        kinds: dict[ReplicaTraits, _ReplicaKind] = {}
        for traits, shared in self._kinds[namespace].items():
            kinds[traits] = _ReplicaKind(traits, [it for it in terms if it.takes(traits)])
            kinds[traits].rows = dict(shared.rows)
        there = self._where[namespace].items()
        self._where[namespace] = {uid: (kinds[kind.traits], row) for uid, (kind, row) in there}
        self._kinds[namespace] = kinds

    def put(self, uid: str, traits: ReplicaTraits, row: int) -> None:
        """Set the row of a replica, wherever it was before."""
        self._own(traits.namespace)
        there = self._where.setdefault(traits.namespace, {})
        before = there.get(uid)
        if before is not None:
            if before[1] == row and before[0].traits == traits:
                return
            self._count(before[0], before[1], -1)
        kind = self._kind_of(traits)
        there[uid] = kind, row
        self._count(kind, row, 1)

    def remove(self, uid: str, namespace: str, row: int) -> None:
        """Remove a replica from this row; if it is elsewhere by now, nothing changes."""
        self._own(namespace)
        there = self._where.get(namespace, {})
        before = there.get(uid)
        if before is None or before[1] != row:
            return
        del there[uid]
        if not there:
            del self._where[namespace]
        self._count(before[0], row, -1)

    def term(
        self, namespace: str, workload_uid: str, selector: LabelSelector | None
    ) -> TopologyTerm:
        """The counts of a workload, or of what a selector matches in this tenant."""
        key = namespace, workload_uid, msgspec.json.encode(selector) if selector else b""
        return self._terms.get(key) or self._term(
            key, TopologyTerm(namespace, workload_uid, selector)
        )

    def repelling(self, traits: ReplicaTraits) -> list[tuple[TopologyTerm, Topology]]:
        """The terms of replicas with an anti-affinity to such a replica, in a fixed order."""
        aparts = self._aparts.get(traits.namespace)
        if not aparts:
            return []
        found = self._repelling.get(traits)
        if found is None:
            if len(self._repelling) >= KINDS_MAX:
                self._repelling.clear()
            labels = dict(traits.labels)
            found = [it for it in sorted(aparts) if selects(_selector(it[0]), labels)]
            self._repelling[traits] = found
        return [(self._bearers(traits.namespace, apart), apart[1]) for apart in found]

    def _bearers(self, namespace: str, apart: Apart) -> TopologyTerm:
        key = namespace, "", apart
        return self._terms.get(key) or self._term(key, TopologyTerm(namespace, "", None, apart))

    def aparts_in(
        self, namespace: str, topology: Topology, number: int
    ) -> Iterator[tuple[LabelSelector, Topology]]:
        """The anti-affinities of all replicas in one domain, for a message."""
        for kind, row in self._where.get(namespace, {}).values():
            for written, within in kind.traits.apart:
                if within is topology and (topology, number) in domains_of(row, self._columns):
                    yield _selector(written), within

    def _term(self, key: tuple[str, str, bytes | Apart], term: TopologyTerm) -> TopologyTerm:
        if len(self._terms) >= TERMS_MAX:
            self._forget(self._terms.pop(next(iter(self._terms))))
        self._own(term.namespace)
        self._terms[key] = term
        for kind in self._kinds.get(term.namespace, {}).values():
            if term.takes(kind.traits):
                kind.terms.append(term)
                for row, count in kind.rows.items():
                    term.add(row, self._columns, count)
        return term

    def _forget(self, term: TopologyTerm) -> None:
        for kind in self._kinds.get(term.namespace, {}).values():
            if term in kind.terms:
                kind.terms.remove(term)

    def labels_in(
        self, namespace: str, topology: Topology, number: int
    ) -> Iterator[dict[str, str]]:
        """The labels of all replicas of a tenant in one domain, for a message."""
        for kind, row in self._where.get(namespace, {}).values():
            if (topology, number) in domains_of(row, self._columns):
                yield dict(kind.traits.labels)

    def rezone(self) -> None:
        """Count domains again after a node moved to another zone or region."""
        for term in self._terms.values():
            rows = term.counts[Topology.NODE]
            fresh: Mapping[Topology, dict[int, int]] = {topology: {} for topology in Topology}
            for row, count in rows.items():
                for topology, number in domains_of(row, self._columns):
                    fresh[topology][number] = fresh[topology].get(number, 0) + count
            term.counts = dict(fresh)

    def _kind_of(self, traits: ReplicaTraits) -> _ReplicaKind:
        kinds = self._kinds.setdefault(traits.namespace, {})
        kind = kinds.get(traits)
        if kind is None:
            kind = kinds[traits] = _ReplicaKind(
                traits, [it for it in self._terms.values() if it.takes(traits)]
            )
        return kind

    def _count(self, kind: _ReplicaKind, row: int, more: int) -> None:
        traits, rows = kind.traits, kind.rows
        self.changed_tenants[traits.namespace] = None
        self.changes += 1
        count = rows.get(row, 0) + more
        if count:
            rows[row] = count
        else:
            del rows[row]
            if not rows:
                del self._kinds[traits.namespace][traits]
                if not self._kinds[traits.namespace]:
                    del self._kinds[traits.namespace]
        for term in kind.terms:
            term.add(row, self._columns, more)
        if traits.apart:
            self._keep_apart(traits, more)

    def _keep_apart(self, traits: ReplicaTraits, more: int) -> None:
        aparts = self._aparts.setdefault(traits.namespace, {})
        for apart in traits.apart:
            before = aparts.get(apart, 0)
            if before and before + more:
                aparts[apart] = before + more
                continue
            self._repelling.clear()
            if before:
                del aparts[apart]
            else:
                aparts[apart] = more
        if not aparts:
            del self._aparts[traits.namespace]


# The selector is evaluated for each class of work whenever a replica with an anti-affinity exists.
@lru_cache(maxsize=1024)
def _selector(written: bytes) -> LabelSelector:
    return msgspec.json.decode(written, type=LabelSelector)
