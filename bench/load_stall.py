"""The stall of `bench/load`: the store pauses while clients continue."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from bench.api_rig import Rig
from bench.harness import figure, load
from bench.load_generator import Stream
from bench.load_pictures import plot_goodput, plot_latency
from bench.load_plane import (
    CONNECTIONS,
    IS_SHORT,
    SCALE,
    STEADY,
    TENANTS,
    Plane,
    costs,
    intents,
    peak,
)
from bench.load_plot import Span
from bench.load_results import Results
from bench.load_trace import Trace, causes
from tests.etcd_cluster import EtcdCluster
from tests.live.process_plane import plane_on_etcd

BEFORE_STALL_S, STALL_S, AFTER_STALL_S = 20.0, 30.0 if not IS_SHORT else 10.0, 90.0 * SCALE
# Normal is the rate of before, to a twentieth, over this long, with next to no refusals.
WINDOW_S = 5.0
# It must stay normal for this many windows, each a second later. Not to the end of the run: a store
# that sometimes pauses for a quarter of a second, stall or not, is reported beside the figure.
SUSTAINED_S = 15
# Requests that take longer are examined one by one.
SLOW_MS = 150.0


async def stall(folder: Path) -> None:
    """The store pauses for 30 s while clients continue."""
    with EtcdCluster(folder / "etcd") as cluster:
        async with Rig(folder / "on-etcd", plane=plane_on_etcd(cluster, 1)) as rig:
            plane = Plane(rig, folder)
            await plane.furnish()
            most = await peak(plane, lambda tenant: intents(tenant, "peak"))
            await _stalled(plane, cluster, most)


async def _struck(
    plane: Plane, cluster: EtcdCluster, most: float, whole: float
) -> tuple[Results, float, float, float]:
    """The results, the CPU seconds of the server, and when the store paused and continued."""
    rate = STEADY * most / len(TENANTS)
    tenants = tuple(
        Stream(
            tenant, client.file, CONNECTIONS, intents(tenant, "run"), ((0.0, rate),), retries=True
        )
        for tenant, client in plane.tenants.items()
    )
    times: list[float] = []

    async def strike(began: float) -> None:
        await asyncio.sleep(max(0.0, began + BEFORE_STALL_S - time.monotonic()))
        cluster.pause(0)
        times.append(time.monotonic())
        await asyncio.sleep(STALL_S)
        cluster.resume(0)
        times.append(time.monotonic())

    trace = Trace(plane.pid)
    trace.start()
    seen, spent = await plane.run((*tenants, *plane.leases()), whole, strike)
    trace.stop()
    stopped, went = (at - seen.began for at in times)
    # Which requests are still slow when all should be normal, and why; and the same for before.
    for name, begin, end in (("before", 2.0, stopped), ("after", went + 15.0, whole)):
        slow = causes(seen, seen.stream(*TENANTS) & seen.between(begin, end), trace, SLOW_MS)
        print(f"# slow requests {name} the stall, by cause: {slow}", file=sys.stderr)
    return seen, spent, stopped, went


async def _stalled(plane: Plane, cluster: EtcdCluster, most: float) -> None:
    whole = BEFORE_STALL_S + STALL_S + AFTER_STALL_S
    seen, spent, stopped, went = await _struck(plane, cluster, most, whole)
    usual = seen.rate(seen.good & seen.stream(*TENANTS), 2.0, stopped)
    windows = normal(seen, usual, went, whole - 1.0)
    recovery = recovery_s(windows)
    calm = normal(seen, usual, 2.0, stopped)
    counts = [it for it in seen.intents if it is not None]
    begun, sent, failed = (
        sum(it.get(name, 0) for it in counts) for name in ("begun", "requests", "failed")
    )
    more = {"durability": "quorum", "offered_per_s": round(STEADY * most), **costs(seen, spent)}
    if recovery is None:
        left_s = whole - went
        print(f"load.recovery_s: no figure, not normal within {left_s:.0f} s at a load of {load()}")
    else:
        figure(
            "load.recovery_s",
            recovery,
            "s after the stall",
            peer="the stall",
            peer_value=went - stopped,
            goal="<= 60",
            usual_per_s=round(usual),
            unwell_pct_later=_unwell_pct(windows[recovery:]),
            unwell_pct_before=_unwell_pct(calm),
            codes_during=seen.codes(seen.between(stopped, went)),
            codes_after=seen.codes(seen.between(went, whole)),
            lease_p99_ms_after=round(
                seen.p_ms(seen.kind("lease") & seen.between(went + 10.0, whole), 0.99), 1
            ),
            **more,
        )
    figure(
        "load.requests_per_intent",
        sent / max(1, begun),
        "requests",
        peer="one for each",
        peer_value=1.0,
        goal="<= 1.2",
        intents=begun,
        failed_pct=round(100 * failed / max(1, begun), 1),
        seconds=round(whole),
        **more,
    )
    spans = (Span("the store is paused", stopped, went),)
    title = f"A store that is paused for {STALL_S:g} s"
    plot_latency("stall-latency", title, seen, whole, spans)
    plot_goodput("stall-goodput", title, seen, whole, spans, most)


def normal(seen: Results, usual: float, begin: float, end: float) -> list[bool]:
    """For each second, whether everything was normal from then on for one window."""
    tenants = seen.stream(*TENANTS)
    found, at = [], begin
    while at + WINDOW_S <= end:
        inside = tenants & seen.between(at, at + WINDOW_S)
        good = seen.rate(seen.good & tenants, at, at + WINDOW_S)
        fast = seen.p_ms(inside & seen.good, 0.99) if (inside & seen.good).any() else 1e9
        share = (inside & seen.good).sum() / max(1, inside.sum())
        found.append(bool(good >= 0.95 * usual and fast <= 250.0 and share >= 0.99))
        at += 1.0
    return found


def recovery_s(windows: list[bool]) -> int | None:
    """After how many seconds everything was normal and stayed so for a while; None if never."""
    for at in range(len(windows) - SUSTAINED_S + 1):
        if all(windows[at : at + SUSTAINED_S]):
            return at
    return None


def _unwell_pct(windows: list[bool]) -> float:
    return round(100 * windows.count(False) / max(1, len(windows)), 1)
