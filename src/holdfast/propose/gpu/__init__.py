"""GPU packing: which node, and which of its devices, a replica should take.

The fleet has a pool for each class of devices; `propose/scores/fragmentation.py` asks them for a
score of each node, and for the devices of the node that was chosen. A way of packing is a
`GpuPolicy`: it ranks the rows of some `ClassColumns` for a demand, knowing the mix of what is asked for
typically. The score may be weighed against others and carries no hard rule; whether a device is
still free the commit says. Nothing here reads a clock, draws a number or does anything but compute.
docs/gpu-packing.md says why it scores as it does.
"""

from __future__ import annotations

from holdfast.propose.gpu.class_columns import ClassColumns, GpuDemand, GpuNode
from holdfast.propose.gpu.demand_mix import TYPICAL_MAX, LearnedMix, Mix, Typical, typical_mix
from holdfast.propose.gpu.policies import (
    SCORE_MAX,
    UNFIT,
    BestFit,
    Fgd,
    GpuPolicy,
    Ranking,
    Sparing,
)
from holdfast.propose.gpu.pools import GpuPool, GpuPools

__all__ = [
    "SCORE_MAX",
    "TYPICAL_MAX",
    "UNFIT",
    "BestFit",
    "ClassColumns",
    "Fgd",
    "GpuDemand",
    "GpuNode",
    "GpuPolicy",
    "GpuPool",
    "GpuPools",
    "LearnedMix",
    "Mix",
    "Ranking",
    "Sparing",
    "Typical",
    "typical_mix",
]
