"""The published GPU trace, and other lists of pods derived from it, for `openb`.

A policy that was chosen on one list could be fitted to it. So `variations` changes one thing at a
time, by seed: the order, the kinds, the share of fractions, of whole nodes and of pods without GPU,
the models that pods require, the fleet, and once all pods for synthetic ones.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.propose.gpu import GpuDemand

# The published runs go on until this much of the fleet's GPUs has been asked for.
LOAD_MAX = 1.31


@dataclass(frozen=True)
class TraceNode:
    """An empty node of the trace; memory in MiB, like that of pods."""

    cpu_milli: int
    memory: int
    devices: int
    model: str


@dataclass(frozen=True)
class PodList:
    """Nodes, all pods (which define a given mix), and the order in which they arrive."""

    name: str
    nodes: list[TraceNode]
    pods: list[GpuDemand]
    order: list[int]
    # Of nodes with equal scores the one with the smallest rank is taken.
    node_rank: list[int]


def published(folder: Path) -> list[PodList]:
    """The default list in its published orders, one for each seed."""
    nodes, pods = _nodes(folder), _pods(folder)
    found = []
    with gzip.open(folder / "arrival_orders.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            run = json.loads(line)
            name = str(run["seed"])
            found.append(PodList(name, nodes, pods, run["order"], run["node_rank"]))
    return found


def curves(folder: Path, policy: str) -> dict[str, list[float]]:
    """The published allocation by bucket of arrived load, for each seed."""
    with (folder / "published_allo.csv").open(encoding="utf-8") as file:
        return {
            row["seed"]: [float(row[str(bucket)]) for bucket in range(131)]
            for row in csv.DictReader(file)
            if row["sc_policy"] == policy
        }


def variations(folder: Path, seed: int) -> Iterator[PodList]:
    """Other lists; the same ones for the same seed."""
    nodes, pods = _nodes(folder), _pods(folder)
    rng = random.Random(seed)
    kinds = sorted(set(pods))
    half = set(rng.sample(kinds, len(kinds) // 2))
    yield _shuffled("shuffled", nodes, pods, rng)
    yield _shuffled("half_the_kinds", nodes, [pod for pod in pods if pod in half], rng)
    for name, fractions, several, without in (
        ("fractions_40", 0.40, 0.06, 1.0),
        ("fractions_80", 0.80, 0.02, 1.0),
        ("fractions_only", 1.0, 0.0, 1.0),
        ("several_gpus_30", 0.21, 0.30, 1.0),
        ("several_gpus_50", 0.15, 0.50, 1.0),
        ("only_gpu_pods", 0.28, 0.07, 0.0),
        ("cpu_pods_double", 0.28, 0.07, 2.0),
        ("cpu_pods_triple", 0.28, 0.07, 3.0),
    ):
        yield _shuffled(name, nodes, _blend(pods, fractions, several, without, rng), rng)
    for share in (10, 33):
        picky = [_insisting(pod, rng) if rng.random() < share / 100 else pod for pod in pods]
        yield _shuffled(f"models_{share}", nodes, picky, rng)
    yield _shuffled("other_sizes", nodes, _resized(pods, rng), rng)
    yield _shuffled("made_up", nodes, [_made_up(rng) for _ in range(8_000)], rng)
    yield _shuffled("150_nodes", rng.sample(nodes, 150), pods, rng)
    yield _shuffled("one_model", [node for node in nodes if node.model == "G2"][:200], pods, rng)


def _nodes(folder: Path) -> list[TraceNode]:
    with (folder / "openb_node_list_gpu_node.csv").open(encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["sn"])
    return [
        TraceNode(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in rows
    ]


def _pods(folder: Path) -> list[GpuDemand]:
    with (folder / "openb_pod_list_default.csv").open(encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["name"])
    return [
        GpuDemand(
            cpu_milli=int(row["cpu_milli"]),
            device_milli=int(row["gpu_milli"]),
            devices=int(row["num_gpu"]),
            models=tuple(model for model in row["gpu_spec"].split("|") if model),
            memory=int(row["memory_mib"]),
        )
        for row in rows
    ]


def _shuffled(
    name: str, nodes: list[TraceNode], pods: list[GpuDemand], rng: random.Random
) -> PodList:
    """All pods in a random order, then random ones of them again, until the load is reached."""
    wanted = LOAD_MAX * 1000 * sum(node.devices for node in nodes)
    order = rng.sample(range(len(pods)), len(pods))
    load = sum(pod.gpu_milli for pod in pods)
    while load < wanted:
        order.append(rng.randrange(len(pods)))
        load += pods[order[-1]].gpu_milli
    return PodList(name, nodes, pods, order, rng.sample(range(len(nodes)), len(nodes)))


def _blend(
    pods: list[GpuDemand], fractions: float, several: float, without: float, rng: random.Random
) -> list[GpuDemand]:
    """The same GPUs in all, with these shares of them, and this many times the pods without."""
    whole_milli = sum(pod.gpu_milli for pod in pods)
    cpu_only = [pod for pod in pods if not pod.devices]
    blend = [rng.choice(cpu_only) for _ in range(int(without * len(cpu_only)))]
    for share, group in (
        (fractions, [pod for pod in pods if pod.is_fraction]),
        (several, [pod for pod in pods if pod.devices > 1]),
        (
            1 - fractions - several,
            [pod for pod in pods if pod.devices == 1 and not pod.is_fraction],
        ),
    ):
        milli = 0
        while milli < share * whole_milli:
            blend.append(rng.choice(group))
            milli += blend[-1].gpu_milli
    return blend


def _insisting(pod: GpuDemand, rng: random.Random) -> GpuDemand:
    """A pod that accepts only some models, in about the shares of the trace's own such lists."""
    if not pod.devices:
        return pod
    if pod.is_fraction:
        models = rng.choice(["T4", "T4", "T4", "P100"])
    elif pod.devices > 1:
        models = rng.choice(["G2", "G2", "G2|V100M32", "G2|G3|V100M16|V100M32"])
    else:
        models = rng.choice(
            ["T4", "T4", "G2", "G2", "V100M16|V100M32", "P100|V100M16|V100M32", "G3", "V100M32"]
        )
    return GpuDemand(
        pod.cpu_milli, pod.device_milli, pod.devices, tuple(models.split("|")), pod.memory
    )


def _resized(pods: list[GpuDemand], rng: random.Random) -> list[GpuDemand]:
    """Each kind with other CPU, and each fraction with another size."""
    other: dict[GpuDemand, GpuDemand] = {}
    for pod in sorted(set(pods)):
        milli = pod.device_milli
        if pod.is_fraction:
            milli = min(990, max(50, int(milli * rng.uniform(0.7, 1.4) / 10) * 10))
        cpu = int(pod.cpu_milli * rng.uniform(0.6, 1.5))
        other[pod] = GpuDemand(cpu, milli, pod.devices, pod.models, pod.memory)
    return [other[pod] for pod in pods]


def _made_up(rng: random.Random) -> GpuDemand:
    """Round numbers that are unrelated to the trace."""
    chance = rng.random()
    if chance < 0.45:
        milli = rng.choice([100, 200, 250, 300, 400, 500, 600, 700, 800])
        return GpuDemand(
            rng.choice([1000, 2000, 4000, 8000]), milli, 1, (), rng.choice([4096, 16384])
        )
    if chance < 0.80:
        return GpuDemand(rng.choice([4000, 8000, 12000, 16000]), 1000, 1, (), 32768)
    if chance < 0.87:
        count = rng.choice([2, 4, 8])
        return GpuDemand(count * rng.choice([4000, 8000, 10000]), 1000, count, (), count * 16384)
    return GpuDemand(rng.choice([2000, 8000, 16000]), 0, 0, (), 8192)
