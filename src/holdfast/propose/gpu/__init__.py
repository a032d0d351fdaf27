"""GPU packing: which node, and which of its devices, a replica should take.

The fleet has a pool for each device class; `propose/scores/fragmentation.py` asks them for a score
of each node, and for the devices of the chosen node. A packing policy is a `GpuPolicy`: it ranks
the rows of `ClassColumns` for a demand, given the mix of typical demands. The score may be weighed
against others and is never a hard rule; the commit decides whether a device is still free. Nothing
here reads a clock or draws random numbers. docs/gpu-packing.md explains the scores.
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
