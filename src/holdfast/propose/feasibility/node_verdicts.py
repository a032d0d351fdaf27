"""The verdicts of all nodes on one class of work: why each is infeasible, or its score.

They are computed once for all rows and then again only for rows that changed since the last time,
which the logs of the columns show. A change of a node's load re-evaluates only resources; a change
of the node itself re-evaluates everything.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from holdfast.model.errors import invariant
from holdfast.observe.node_columns import Bools, Codes, Floats, Ints, Level, NodeColumns, Rows
from holdfast.propose.filters import Filter
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork
from holdfast.propose.scores import Scorer
from holdfast.propose.scores.fragmentation import Packs

# The code of a row without a node.
NO_NODE = 255
# Above this share of all rows, evaluating all of them is cheaper than selecting the changed ones.
CHANGED_SHARE_MAX = 0.25
# Up to this many changed rows are always selected.
CHANGED_FEW = 64


class NodeVerdicts:
    """See the module's docstring. Arrays are as long as the columns have room for.

    `sums` is the weighted sum of scores, or minus infinity where the node is infeasible.
    """

    def __init__(
        self,
        work: PendingWork,
        view: FleetSnapshot,
        filters: tuple[Filter, ...],
        scorers: Sequence[Scorer],
        weights: Mapping[str, int],
    ) -> None:
        self.work, self.filters = work, filters
        self._columns, self._rules, self._policy = view.columns, view.rules, view.policy
        self._weighed = [(each, weights[each.name]) for each in scorers if each.name in weights]
        self.scorers = self._applying(view)
        loads = [place for place, each in enumerate(filters) if each.by_load]
        self._first_load, self._end_load = loads[0], loads[-1] + 1
        # What each code means: which filter, and which reason.
        self.meanings: list[tuple[int, str]] = [(-1, "")]
        self._bases: list[int] = []
        for place, each in enumerate(filters):
            self._bases.append(len(self.meanings) - 1)
            self.meanings += [(place, reason) for reason in each.reasons]
        invariant(len(self.meanings) <= NO_NODE, "the codes of all reasons must fit in one byte")
        # By code, the position of its filter; -1 where there is none.
        self.places: Ints = np.full(256, -1, np.int64)
        self.places[: len(self.meanings)] = [place for place, _ in self.meanings]
        # Grows whenever something about nodes themselves was evaluated again.
        self.version = 0
        self._begin(view.columns)

    def is_of(self, view: FleetSnapshot) -> bool:
        """Whether it was made for these columns, under the rules and the policy in force now."""
        is_same = self._columns is view.columns and self._policy is view.policy
        return is_same and self._rules == view.rules

    def _applying(self, view: FleetSnapshot) -> list[tuple[Scorer, int]]:
        """The scorers that apply to this work on this fleet."""
        return [each for each in self._weighed if each[0].applies(self.work, view)]

    @property
    def weight(self) -> int:
        """The sum of the weights of all scorers."""
        return sum(weight for _, weight in self.scorers)

    @property
    def is_exact(self) -> bool:
        """Whether a placement changes nothing here but sums, in ways that are known in advance.

        Other load-dependent filters were added by users: only evaluating them again answers that.
        """
        only_sums = all(each.is_exact for each in self.filters if each.by_load)
        return only_sums and all(scorer.is_exact for scorer, _ in self.scorers)

    def _begin(self, columns: NodeColumns) -> None:
        room = columns.capacity
        self.code: Codes = np.full(room, NO_NODE, np.uint8)
        # The codes of the filters before and after those that depend on the load.
        self._before: Codes = np.full(room, NO_NODE, np.uint8)
        self._after: Codes = np.zeros(room, np.uint8)
        self.sums: Floats = np.full(room, -np.inf, np.float64)
        self.parts: dict[str, Floats] = {
            scorer.name: np.zeros(room, np.float64) for scorer, _ in self.scorers
        }
        self.tally: Ints = np.zeros(256, np.int64)
        self._node_at = self._load_at = -1
        # The scorers that rank all nodes together, and the stamp of their last ranking.
        self._packers = [(scorer, weight) for scorer, weight in self.scorers if scorer.packs]
        self._packed: Hashable = None

    # Refreshing ----------------------------------------------------------------------------------

    def refresh(self, view: FleetSnapshot) -> None:
        """Apply whatever changed since the last time."""
        columns = view.columns
        if len(self.code) != columns.capacity:
            self._begin(columns)
        nodes = columns.node_log.since(self._node_at)
        loads = columns.load_log.since(self._load_at)
        self._node_at, self._load_at = columns.node_log.end, columns.load_log.end
        if (nodes is None or len(nodes)) and (applying := self._applying(view)) != self.scorers:
            # The first node with devices, or with a taint, makes other scorers applicable.
            self.scorers = applying
            self._begin(columns)
            self._node_at, self._load_at = columns.node_log.end, columns.load_log.end
            nodes = None
        if nodes is None or loads is None:
            self._everything(view)
        elif changed := len(nodes) + len(loads):
            if changed > CHANGED_FEW and changed > columns.count * CHANGED_SHARE_MAX:
                self._everything(view)
            else:
                if len(nodes):
                    self._look_at_nodes(view, _once(nodes, columns))
                    loads = np.concatenate([nodes, loads])
                self._look_at_loads(view, _once(loads, columns))
        if self._packers:
            self._repack(view)

    def _everything(self, view: FleetSnapshot) -> None:
        rows = view.columns.all
        self._look_at_nodes(view, rows)
        self._look_at_loads(view, rows)

    def _look_at_nodes(self, view: FleetSnapshot, rows: Rows) -> None:
        self.version += 1
        live = view.columns.live[rows]
        before: Codes = np.where(live, 0, NO_NODE).astype(np.uint8)
        self._before[rows] = self._filtered_codes(view, rows, before, 0, self._first_load)
        after = np.zeros(len(live), np.uint8)
        self._after[rows] = self._filtered_codes(
            view, rows, after, self._end_load, len(self.filters)
        )
        for scorer, _ in self.scorers:
            if not scorer.by_load and scorer.packs is None:
                self.parts[scorer.name][rows] = scorer.score(self.work, view, rows, 0)

    def _look_at_loads(self, view: FleetSnapshot, rows: Rows) -> None:
        code: Codes = self._before[rows].copy()
        code = self._filtered_codes(view, rows, code, self._first_load, self._end_load)
        after = self._after[rows]
        if after.any():
            code = np.where(code == 0, after, code)
        sums = np.zeros(len(code), np.float64)
        for scorer, weight in self.scorers:
            if scorer.by_load:
                part = scorer.score(self.work, view, rows, 0)
                self.parts[scorer.name][rows] = part
            else:
                part = self.parts[scorer.name][rows]
            sums += weight * part
        is_refused = code.any()
        if is_refused:
            sums[code != 0] = -np.inf
        if isinstance(rows, slice):
            self.tally = np.bincount(code, minlength=256)
        elif is_refused or self.code[rows].any():
            self.tally += np.bincount(code, minlength=256)
            self.tally -= np.bincount(self.code[rows], minlength=256)
        self.code[rows] = code
        self.sums[rows] = sums

    def _repack(self, view: FleetSnapshot) -> None:
        """Ask the scorers that rank all nodes together, if their result may have changed.

        A placement anywhere may change their ranking of every node, so all sums are recomputed.
        """
        packs = [scorer.packs for scorer, _ in self._packers if scorer.packs is not None]
        stamp = self.version, *(each.stamp(self.work, view) for each in packs)
        if stamp == self._packed:
            return
        self._packed = stamp
        rows = view.columns.all
        for scorer, _ in self._packers:
            self.parts[scorer.name][rows] = scorer.score(self.work, view, rows, 0)
        sums = np.zeros(view.columns.count, np.float64)
        for scorer, weight in self.scorers:
            sums += weight * self.parts[scorer.name][rows]
        sums[self.code[rows] != 0] = -np.inf
        self.sums[rows] = sums

    def _filtered_codes(
        self, view: FleetSnapshot, rows: Rows, code: Codes, begin: int, end: int
    ) -> Codes:
        """The code after these filters, each applied where the earlier ones let the node pass."""
        for place in range(begin, end):
            found = self.filters[place].judge(self.work, view, rows, Level.NOW)
            if found is not None and found.any():
                refused = (code == 0) & (found != 0)
                code[refused] = found[refused] + self._bases[place]
        return code

    # Results -------------------------------------------------------------------------------------

    @property
    def candidates(self) -> int:
        """The number of feasible nodes."""
        return int(self.tally[0])

    @property
    def nodes(self) -> int:
        return int(self.tally.sum() - self.tally[NO_NODE])

    @property
    def packer(self) -> Packs | None:
        """The scorer that chooses devices: the packing one with the highest weight."""
        heaviest = max(self._packers, key=lambda each: each[1], default=None)
        return heaviest[0].packs if heaviest is not None else None

    def affects_others(self, view: FleetSnapshot, row: int) -> bool:
        """Whether a placement on this row may change the scores of other rows."""
        packs = [scorer.packs for scorer, _ in self._packers if scorer.packs is not None]
        return any(each.affects_others(self.work, view, row) for each in packs)

    def takes_work(self, columns: NodeColumns) -> Bools:
        """The rows where only the load, or topology rules, could be in the way."""
        rows = columns.all
        found: Bools = (self._before[rows] == 0) & (self._after[rows] == 0)
        return found

    def ladder(
        self, view: FleetSnapshot, rows: npt.NDArray[np.intp], more: Ints
    ) -> tuple[Floats, dict[str, Floats]]:
        """The sums, and each score, of these rows after `more` placements of this work there.

        The result has one row for each row, and one column for each count.
        """
        down, across = rows[:, None], more[None, :]
        sums: Floats = np.zeros((len(rows), len(more)), np.float64)
        parts = {}
        for scorer, weight in self.scorers:
            part = self.parts[scorer.name][down]
            if scorer.by_load:
                part = scorer.score(self.work, view, down, across)
            parts[scorer.name] = np.broadcast_to(part, sums.shape)
            # Added in the order of a single decision, so that the sums are equal to the bit.
            sums += weight * part
        return sums, parts


def _once(noted: npt.NDArray[np.intp], columns: NodeColumns) -> npt.NDArray[np.intp]:
    """Each of these rows once, in order."""
    if len(noted) == 1:
        return noted
    if len(noted) <= CHANGED_FEW:
        return np.array(sorted(set(noted.tolist())), np.intp)
    mask = np.zeros(columns.count, np.bool_)
    mask[noted] = True
    return np.flatnonzero(mask)
