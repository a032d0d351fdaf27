"""The typical demands: counted once from a list, or learned from the work as it comes.

The scores of this package weigh a placement by which other work could use it; the mix says which
other work there is. A mix is a short list of demands with their shares; a plane learns its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import msgspec

from holdfast.propose.gpu.class_columns import GpuDemand

# Enough for every kind of GPU work that is frequent in a fleet; each costs time in each decision.
TYPICAL_MAX = 96
# Beyond this many kinds the rarest is dropped, so that random demands cannot fill memory.
KINDS_MAX = 512
# A kind that is not seen for this many demands counts half. Long enough to know kinds that are one
# in a thousand, short enough to follow a fleet whose work changes.
HALF_LIFE = 4_000
GROWTH = 2.0 ** (1.0 / HALF_LIFE)
# A mix is published again when this much of its weight has moved. Each time all scores are
# recomputed, so following every single demand would cost more than it is worth.
DRIFT = 0.05
# How often the drift is checked, once the first demands have been seen.
LOOK_EVERY = 16


class Typical(msgspec.Struct, frozen=True, array_like=True):
    """A kind of demand and its share of all that are counted."""

    demand: GpuDemand
    share: float


Mix = tuple[Typical, ...]


def typical_mix(counts: Mapping[GpuDemand, float], *, cover: float = 1.0, most: int = 0) -> Mix:
    """The most frequent kinds until they cover this share of all, their shares adding up to one.

    Demands that differ in memory only are one kind, with their mean. `most` bounds the number of
    kinds; 0 means no bound.
    """
    weight: dict[GpuDemand, float] = {}
    memory: dict[GpuDemand, float] = {}
    for demand, count in counts.items():
        kind = msgspec.structs.replace(demand, memory=0)
        weight[kind] = weight.get(kind, 0.0) + count
        memory[kind] = memory.get(kind, 0.0) + count * demand.memory
    # Larger demands first among equals: the order in which the published FGD breaks such ties.
    ordered = sorted(weight, key=lambda kind: (weight[kind], kind), reverse=True)
    chosen: list[GpuDemand] = []
    covered, wanted = 0.0, cover * sum(weight.values())
    for kind in ordered:
        if covered >= wanted or (most and len(chosen) >= most):
            break
        chosen.append(kind)
        covered += weight[kind]
    return tuple(
        Typical(
            msgspec.structs.replace(kind, memory=int(memory[kind] / weight[kind])),
            weight[kind] / covered,
        )
        for kind in chosen
    )


class LearnedMix:
    """The mix of the demands seen so far, older ones counting less and less."""

    def __init__(self) -> None:
        self.counts: dict[GpuDemand, float] = {}
        self.unit = 1.0
        self._seen = 0
        self._published: dict[GpuDemand, float] = {}
        self.mix: Mix = ()

    def copy(self) -> LearnedMix:
        made = copy.copy(self)
        made.counts = dict(self.counts)
        return made

    def see(self, demand: GpuDemand) -> bool:
        """Count a demand, once for each replica. Returns whether `mix` has changed."""
        # Growing the unit is the same as shrinking all earlier counts, at no cost.
        self.unit *= GROWTH
        self.counts[demand] = self.counts.get(demand, 0.0) + self.unit
        self._seen += 1
        if len(self.counts) > KINDS_MAX:
            del self.counts[min(self.counts, key=lambda kind: (self.counts[kind], kind))]
        if self.unit > 1e100:
            self.counts = {kind: count / self.unit for kind, count in self.counts.items()}
            self.unit = 1.0
        if self._seen > 4 * LOOK_EVERY and self._seen % LOOK_EVERY:
            return False
        return self._publish()

    def _publish(self) -> bool:
        # Work without devices uses no idle GPU, and so is not part of the mix.
        gpu = {kind: count for kind, count in self.counts.items() if kind.devices}
        whole = sum(gpu.values())
        shares = {kind: count / whole for kind, count in gpu.items()}
        grown = sum(
            max(0.0, share - self._published.get(kind, 0.0)) for kind, share in shares.items()
        )
        # Shares add up to one, so what some kinds gained is what others lost.
        if grown <= DRIFT:
            return False
        self._published = shares
        self.mix = typical_mix(shares, most=TYPICAL_MAX)
        return True
