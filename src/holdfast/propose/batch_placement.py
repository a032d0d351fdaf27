"""Places many replicas of one equivalence class in turn, without evaluating every node each time.

One placement changes the sums of one node only, and the counts of its topology domains. So the best
rows are put into heaps, one for each group of rows that the topology rules treat alike. Each
placement takes the best allowed row and puts it back with its new score. The result is the same as
deciding one by one; a property test checks that.

For K placements only the K best rows of each group can be chosen: after k of them at least one of
those is untouched, and no worse than any row that was left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from holdfast.model.kinds.placement import Topology
from holdfast.observe.node_columns import Bools
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.node_choice import ranks
from holdfast.propose.topology.batch_counts import BatchCounts, Effect

# For how many placements on one row scores are computed in advance, and then for how many more.
LEVELS_FIRST = 2
LEVELS_MORE = 32

_Rows = npt.NDArray[np.intp]
# Higher sums first, then lower ranks.
_Head = tuple[float, int, int]
# A row, its sum at that moment, and the score of each scorer.
Choice = tuple[int, float, dict[str, float]]


class _Steps:
    """The sum and scores of a row after each further placement there."""

    __slots__ = ("level", "parts", "room", "sums")

    def __init__(self, sums: list[float], parts: list[list[float]], room: int) -> None:
        self.sums, self.parts, self.room = sums, parts, room
        self.level = 0


class _Group:
    """Rows of one zone or region, or all of them, the best first."""

    __slots__ = ("aside", "front", "heap", "region", "zone")

    def __init__(self, heap: list[_Head], zone: int, region: int) -> None:
        self.heap, self.zone, self.region = heap, zone, region
        # Rows that may be allowed again when the emptiest node has more.
        self.aside: list[_Head] = []
        # The best row that may be taken now, if there is one.
        self.front: _Head | None = None

    def look(self, batch_counts: BatchCounts | None) -> None:
        """Find the front again."""
        heap = self.heap
        self.front = None
        if batch_counts is None:
            self.front = heap[0] if heap else None
            return
        if not batch_counts.allows_group(self):
            return
        while heap:
            row = heap[0][2]
            if not batch_counts.allows_row(row):
                heapq.heappop(heap)
            elif not batch_counts.is_even(row):
                self.aside.append(heapq.heappop(heap))
            else:
                self.front = heap[0]
                return

    def readmit(self) -> None:
        for head in self.aside:
            heapq.heappush(self.heap, head)
        self.aside.clear()


class BatchPlacement:
    """See the module's docstring. `choices` may end early: then no node has room left."""

    def __init__(
        self,
        view: FleetSnapshot,
        equivalence: EquivalenceClass,
        count: int,
        salt: int,
        among: Bools | None = None,
    ) -> None:
        """`among` are the rows that may be chosen; all of them if it is not given."""
        self._among = among
        self._view, self._alike, self._salt = view, equivalence, salt
        self._names = [scorer.name for scorer, _ in equivalence.verdicts.scorers]
        self._steps: dict[int, _Steps] = {}
        self._batch_counts: BatchCounts | None = None
        if equivalence.topology_rules is not None:
            self._batch_counts = BatchCounts(view, equivalence.topology_rules, equivalence.verdicts)
        self._groups = list(self._grouped(count))
        for group in self._groups:
            group.look(self._batch_counts)

    def choices(self, count: int) -> Iterator[Choice]:
        """The rows for `count` placements, in turn."""
        groups = self._groups
        for _ in range(count):
            best: _Group | None = None
            for group in groups:
                front = group.front
                if front is None:
                    continue
                if best is None or best.front is None or front < best.front:
                    best = group
            if best is None or best.front is None:
                return
            yield self._taken(best, best.front)

    def _taken(self, group: _Group, front: _Head) -> Choice:
        negative, rank, row = front
        steps = self._steps.get(row) or self._look_ahead(np.array([row], np.intp))
        level = steps.level
        scores = {name: part[level] for name, part in zip(self._names, steps.parts, strict=True)}
        level = steps.level = level + 1
        if level >= steps.room:
            heapq.heappop(group.heap)
        else:
            if level >= len(steps.sums):
                self._more(row, steps)
            heapq.heapreplace(group.heap, (-steps.sums[level], rank, row))
        self._settle(group, row)
        return row, -negative, scores

    def _settle(self, group: _Group, row: int) -> None:
        """Find out what may be taken next, after one more placement."""
        if self._batch_counts is None:
            group.front = group.heap[0] if group.heap else None
            return
        effect = self._batch_counts.placed(row, group)
        if effect is Effect.NONE:
            group.look(self._batch_counts)
            return
        for each in self._groups:
            if Effect.ROWS in effect:
                each.readmit()
            each.look(self._batch_counts)

    def _more(self, row: int, steps: _Steps) -> None:
        """Compute scores for more placements on one row."""
        begin = len(steps.sums)
        counts = np.arange(begin, min(steps.room, begin + LEVELS_MORE))
        rows = np.array([row], np.intp)
        sums, parts = self._alike.verdicts.ladder(self._view, rows, counts)
        steps.sums += sums[0].tolist()
        for own, part in zip(steps.parts, parts.values(), strict=True):
            own += part[0].tolist()

    # Groups --------------------------------------------------------------------------------------

    def _grouped(self, count: int) -> Iterator[_Group]:
        columns, verdicts = self._view.columns, self._alike.verdicts
        feasible = verdicts.sums[columns.all] > -np.inf
        rows = np.flatnonzero(feasible if self._among is None else feasible & self._among)
        if self._view.closed:
            rows = rows[~np.isin(rows, self._view.closed)]
        batch_counts = self._batch_counts
        if batch_counts is None:
            yield self._group(rows, count, count)
            return
        rows = rows[~batch_counts.never(rows)]
        by = {Topology.ZONE: columns.zone, Topology.REGION: columns.region}.get(batch_counts.finest)
        # Rows that are set aside for a while could leave fewer than are needed.
        kept = len(rows) if batch_counts.sets_aside else count
        if by is None:
            yield self._group(rows, kept, count)
            return
        places = np.unique(by[rows]).tolist()
        # Each group gets twice its share in advance; scores of other rows are computed when needed.
        share = 2 * count // max(1, len(places)) + 1
        for number in places:
            yield self._group(rows[by[rows] == number], kept, share)

    def _group(self, rows: _Rows, kept: int, ahead: int) -> _Group:
        columns, verdicts = self._view.columns, self._alike.verdicts
        if not len(rows):
            return _Group([], -1, -1)
        sums = verdicts.sums[rows]
        if len(rows) > kept:
            # All rows as good as the last one kept: the rank decides among them below.
            least = np.partition(sums, len(sums) - kept)[len(sums) - kept]
            rows, sums = rows[sums >= least], sums[sums >= least]
        lots = ranks(columns.lot[rows], self._salt)
        order = np.lexsort((lots, -sums))[:kept]
        rows, sums, lots = rows[order], sums[order], lots[order]
        # Most placements go to rows that are among the best now; others are computed when needed.
        self._look_ahead(rows[:ahead])
        # A sorted list is a heap.
        heap = list(zip((-sums).tolist(), lots.tolist(), rows.tolist(), strict=True))
        return _Group(heap, int(columns.zone[rows[0]]), int(columns.region[rows[0]]))

    def _look_ahead(self, rows: _Rows) -> _Steps:
        """Compute the scores of the next placements on these rows. Returns the last row's."""
        columns, verdicts = self._view.columns, self._alike.verdicts
        room = np.full(len(rows), np.iinfo(np.int64).max)
        for resource, units in self._alike.work.units:
            room = np.minimum(room, columns.free[resource, rows] // units)
        ahead, parts = verdicts.ladder(self._view, rows, np.arange(LEVELS_FIRST))
        # By row, then by scorer, then by level.
        listed = np.stack([*parts.values(), ahead], axis=1).tolist()
        for row, own, left in zip(rows.tolist(), listed, room.tolist(), strict=True):
            steps = self._steps[row] = _Steps(own.pop(), own, left)
        return steps
