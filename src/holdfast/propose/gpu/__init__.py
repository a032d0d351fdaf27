"""GPU packing: which node, and which of its devices, a replica should take.

The snapshot keeps one `Columns` of the nodes that have devices, tells it of every placement
(`take`) and release (`give_back`), and makes a new one when a node comes or goes. For a replica:

    packer = Packer(columns, learned=learned)  # or Packer(columns, mix=typical_mix(counts))
    packer.see(demand)                         # once for each replica that arrives
    ranking = packer.rank(demand)              # by row: 0..100, UNFIT where it does not fit
    devices = packer.devices(demand, row, ranking)

`rank` is a score like any other in `propose/scores`: it may be weighed against others and carries
no hard rule; whether a device is still free the commit says. Nothing here reads a clock, draws a
number or does anything but compute. docs/gpu-packing.md says why it scores as it does.
"""

from __future__ import annotations

from holdfast.propose.gpu.columns import Columns, Demand, GpuNode
from holdfast.propose.gpu.mix import TYPICAL_MAX, LearnedMix, Mix, Typical, typical_mix
from holdfast.propose.gpu.packer import Choice, Packer
from holdfast.propose.gpu.policies import SCORE_MAX, UNFIT, BestFit, Fgd, Policy, Ranking, Sparing

__all__ = [
    "SCORE_MAX",
    "TYPICAL_MAX",
    "UNFIT",
    "BestFit",
    "Choice",
    "Columns",
    "Demand",
    "Fgd",
    "GpuNode",
    "LearnedMix",
    "Mix",
    "Packer",
    "Policy",
    "Ranking",
    "Sparing",
    "Typical",
    "typical_mix",
]
