"""The scheduler's way into this room: rank the rows, pick one, name its devices.

It holds a policy on the columns and, unless it was given a mix, learns one from the demands that
arrive. Picking is deterministic: of equal scores the row with the smallest `order` is taken.
"""

from __future__ import annotations

import msgspec
import numpy as np

from holdfast.propose.gpu.columns import Columns, Demand, Ints
from holdfast.propose.gpu.mix import LearnedMix, Mix
from holdfast.propose.gpu.policies import UNFIT, Policy, Ranking, Sparing


class Choice(msgspec.Struct, frozen=True):
    """A row, its devices, and the score that won."""

    row: int
    devices: tuple[int, ...]
    score: float


class Packer:
    """The default policy on some columns, or another one that is given.

    `learned` outlives the columns: whoever makes new ones hands it on.
    """

    def __init__(
        self,
        columns: Columns,
        *,
        mix: Mix | None = None,
        learned: LearnedMix | None = None,
        policy: Policy | None = None,
        order: Ints | None = None,
    ) -> None:
        self._columns = columns
        if mix is None and policy is None:
            learned = learned if learned is not None else LearnedMix()
            mix = learned.mix
        self._learned = learned
        self._policy = policy if policy is not None else Sparing(columns, mix or ())
        self._order = np.arange(columns.rows) if order is None else order

    def see(self, demand: Demand) -> None:
        """Learn from a replica that arrived, whether or not it will find a place."""
        if self._learned is not None and self._learned.see(demand):
            self._policy = Sparing(self._columns, self._learned.mix)

    def rank(self, demand: Demand) -> Ranking:
        return self._policy.rank(demand)

    def devices(self, demand: Demand, row: int, ranking: Ranking | None = None) -> tuple[int, ...]:
        """The devices of this row that the demand should take."""
        if demand.is_fraction:
            chosen = ranking if ranking is not None else self.rank(demand)
            return (int(chosen.devices[row]),)
        return tuple(self._columns.idle_devices(demand, row))

    def pick(self, demand: Demand) -> Choice | None:
        """The best row, or None where the demand fits nowhere."""
        ranking = self.rank(demand)
        scores = ranking.scores
        best = float(scores.max()) if len(scores) else UNFIT
        if best < 0.0:
            return None
        equals = np.flatnonzero(scores == best)
        row = int(equals[self._order[equals].argmin()])
        return Choice(row, self.devices(demand, row, ranking), best)

    def place(self, demand: Demand) -> Choice | None:
        """Pick a row and count the placement in the columns."""
        choice = self.pick(demand)
        if choice is not None:
            self._columns.take(choice.row, demand, choice.devices)
        return choice
