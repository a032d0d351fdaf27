"""How much of a fleet's GPUs the default packing fills: the Alibaba trace, against FGD and BestFit.

The trace and the curves of its simulator were published with "Beware of Fragmentation: Scheduling
GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023): the trace in the
folder cluster-trace-gpu-v2023 of github.com/alibaba/clusterdata, the simulator with its results at
github.com/hkust-adsl/kubernetes-scheduler-simulator. The files are not part of this project;
HOLDFAST_BENCH_DATA names a directory with a folder `openb` that holds them.

Every pod is tried once, in the published order, and dropped if it fits nowhere; nothing leaves or
moves. At an arrived load of k % of all GPUs, allocation is what the placed pods hold. Nodes and
pods are those of the trace, but every decision is the scheduler's: the fleet's columns, its filters
and its scorers, with the placement assumed. FGD and BestFit are further scorers, with the trace's
order of nodes among equals, so that comparing their curves with the published ones checks the
method.

FGD gets the mix of the frequent kinds of pods (95 % of them). `default` is the scheduler with its
usual weights and a policy that states the expected mix, and `online` has no policy, so that it
learns from the pods that came so far. Both choose at random among equal nodes. None looks ahead,
and none moves or stops anything.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

from bench.harness import figure
from bench.openb_lists import PodList, curves, published, variations
from bench.openb_play import Run, Way, play
from holdfast.propose.gpu import TYPICAL_MAX, BestFit, Fgd, typical_mix

# Another seed makes other lists by the same recipes.
VARIATION_SEED = 1
CURVE_ERROR_MAX = 0.05
GAIN_MIN = 0.15
RATE_MIN = 2_000
# FGD's own definition of the typical pods.
FGD_COVER = 0.95


def bestfit(pods: PodList) -> Way:
    return Way(scorer=lambda columns, mix: BestFit(columns))


def fgd(pods: PodList) -> Way:
    return Way(scorer=Fgd, mix=typical_mix(Counter(pods.pods), cover=FGD_COVER))


def default(pods: PodList) -> Way:
    gpu = Counter(pod for pod in pods.pods if pod.devices)
    return Way(mix=typical_mix(gpu, most=TYPICAL_MAX))


def online(pods: PodList) -> Way:
    return Way()


def _curve_error(runs: dict[str, Run], known: dict[str, list[float]]) -> float:
    return max(
        abs(runs[seed].alloc[bucket] - value)
        for seed, curve in known.items()
        for bucket, value in enumerate(curve)
    )


def _gains(runs: dict[str, Run], peers: dict[str, Run], bucket: int) -> list[float]:
    return [run.alloc[bucket] - peers[name].alloc[bucket] for name, run in runs.items()]


def _print_known(name: str, runs: dict[str, Run], known: dict[str, list[float]]) -> None:
    for bucket in (100, 130):
        figure(
            f"openb.{name}.alloc{bucket}",
            mean(run.alloc[bucket] for run in runs.values()),
            "% of GPUs",
            peer="the published curve",
            peer_value=mean(curve[bucket] for curve in known.values()),
            seeds=len(runs),
        )
    figure(
        f"openb.{name}.max_curve_error",
        _curve_error(runs, known),
        "points",
        peer="what is allowed at any bucket of any seed",
        peer_value=CURVE_ERROR_MAX,
        goal=f"<= {CURVE_ERROR_MAX}",
    )


def _print_ours(name: str, knows: str, runs: dict[str, Run], peers: dict[str, Run]) -> None:
    for bucket in (100, 130):
        figure(
            f"openb.{name}.alloc{bucket}",
            mean(run.alloc[bucket] for run in runs.values()),
            "% of GPUs",
            peer="FGD in this run",
            peer_value=mean(run.alloc[bucket] for run in peers.values()),
            knows=knows,
        )
    at_100, at_130 = (_gains(runs, peers, bucket) for bucket in (100, 130))
    worst = {bucket: min(_gains(runs, peers, bucket)) for bucket in range(131)}
    lowest = min(worst, key=lambda bucket: worst[bucket])
    figure(
        f"openb.{name}.gain_over_fgd",
        min(mean(at_100), mean(at_130)),
        "points",
        peer="a difference that is real",
        peer_value=GAIN_MIN,
        goal=f">= {GAIN_MIN}",
        at_100=round(mean(at_100), 3),
        at_130=round(mean(at_130), 3),
        least_of_a_seed=round(min(at_100 + at_130), 3),
        least_at_any_load=round(worst[lowest], 3),
        least_at_load=lowest,
        knows=knows,
    )
    figure(
        f"openb.{name}.decisions_per_s",
        max(run.decisions_per_s for run in runs.values()),
        "decisions/s",
        peer="FGD on the same columns",
        peer_value=max(run.decisions_per_s for run in peers.values()),
        goal=f">= {RATE_MIN}",
        nodes=1213,
    )


def _print_variations(folder: Path) -> None:
    """One line for each list as soon as it is done: all of them take several minutes."""
    for pods in variations(folder, VARIATION_SEED):
        peer, *ours = (play(pods, policy(pods)) for policy in (fgd, default, online))
        gains: dict[str, Any] = {
            f"{who}_{bucket}": round(run.alloc[bucket] - peer.alloc[bucket], 3)
            for who, run in zip(("default", "online"), ours, strict=True)
            for bucket in (80, 90, 100, 130)
        }
        figure(
            f"openb.other.{pods.name}",
            ours[0].alloc[100],
            "% of GPUs",
            peer="FGD in this run, given this list's own mix",
            peer_value=peer.alloc[100],
            online_decisions_per_s=round(ours[1].decisions_per_s),
            **gains,
        )


def main() -> None:
    where = os.environ.get("HOLDFAST_BENCH_DATA", "")
    folder = Path(where) / "openb"
    if not where or not (folder / "arrival_orders.jsonl.gz").is_file():
        raise SystemExit(
            "HOLDFAST_BENCH_DATA names no directory with a folder openb. The trace is published in "
            "github.com/alibaba/clusterdata (cluster-trace-gpu-v2023), the curves and orders come "
            "from github.com/hkust-adsl/kubernetes-scheduler-simulator (USENIX ATC 2023)."
        )
    lists = published(folder)
    runs = {
        policy.__name__: {pods.name: play(pods, policy(pods)) for pods in lists}
        for policy in (bestfit, fgd, default, online)
    }
    _print_known("bestfit", runs["bestfit"], curves(folder, "05-BestFit"))
    _print_known("fgd", runs["fgd"], curves(folder, "06-FGD"))
    _print_ours("default", "the mix of all kinds", runs["default"], runs["fgd"])
    _print_ours("online", "the pods seen so far", runs["online"], runs["fgd"])
    _print_variations(folder)


if __name__ == "__main__":
    main()
