"""One server under load: latencies, goodput at five times its peak, fairness, recovery.

One server process over TLS and one generator process (`load_generator`) share the cores. Ten
tenants patch, get and list their workloads, each under its own certificate; a hundred nodes and
some schedulers renew meanwhile. Requests fall due by the clock whatever the server does, and
latencies count from then. The peak is measured in the same run, with every connection always busy;
"five times" and "60 %" refer to it, and so does the service time that ratios are stated in. In a
storm each connection is a separate client, which honours the Retry-After of a refusal, as our
client and kubectl do; a second figure is for clients that ignore it. The stall is that of a real
etcd, which a signal stops for 30 s while clients with the shipped operation machine continue.

Curves of each part are written as SVG to HOLDFAST_BENCH_PLOTS (build/load by default).
HOLDFAST_BENCH_PARTS names what to measure (steady,overload,fairness,stall); HOLDFAST_BENCH_SHORT=1
is a quick look: a third of all times.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.api_rig import Rig
from bench.harness import figure
from bench.load_fairness import fairness
from bench.load_pictures import plot_latency
from bench.load_plane import SCALE, STEADY, TENANTS, Plane, costs, peak, ratio, streams
from bench.load_stall import stall
from bench.load_storm import overload
from bench.load_trace import Trace, causes

PARTS = ("steady", "overload", "fairness", "stall")
STEADY_S = 30.0 * SCALE
# Requests that take longer than this many service times are examined one by one.
SLOW_SERVICES = 50


async def steady(plane: Plane, most: float) -> None:
    """Latencies at 60 % of the peak."""
    rate = STEADY * most / len(TENANTS)
    trace = Trace(plane.pid)
    trace.start()
    seen, spent = await plane.run(streams(plane, lambda _: ((0.0, rate),)), STEADY_S)
    trace.stop()
    idle, _ = await plane.run(streams(plane, lambda _: ((0.0, 1.0),)), STEADY_S / 3)
    after = seen.between(1.0, STEADY_S)
    for kind, goal_ms, services in (("write", 50, 125), ("read", 20, 50)):
        figure(
            f"load.{kind}.p99_ms",
            seen.p_ms(seen.kind(kind) & after, 0.99),
            "ms",
            peer="the same at 10 requests a second",
            peer_value=idle.p_ms(idle.kind(kind), 0.99),
            goal=f"<= {goal_ms}",
            durability="power",
            median=round(seen.p_ms(seen.kind(kind) & after, 0.5), 2),
            offered_per_s=round(STEADY * most),
            codes=seen.codes(seen.kind(kind)),
            list_p99_ms=round(seen.p_ms(seen.kind("list") & after, 0.99), 1),
            lease_p99_ms=round(seen.p_ms(seen.kind("lease") & after, 0.99), 1),
            slow=causes(seen, seen.kind(kind) & after, trace, SLOW_SERVICES * 1_000 / most),
            **costs(seen, spent),
        )
        p99_ms = seen.p_ms(seen.kind(kind) & after, 0.99)
        ratio(f"load.{kind}.p99", p99_ms, most, services=services, goal_ms=goal_ms)
    plot_latency("steady", f"{STEADY:.0%} of the peak", seen, STEADY_S, ())


async def measure(folder: Path, parts: Sequence[str]) -> None:
    if set(parts) - {"stall"}:
        async with Rig(folder / "on-sqlite") as rig:
            plane = Plane(rig, folder)
            await plane.furnish()
            most = await peak(plane)
            for name, part in (("steady", steady), ("overload", overload), ("fairness", fairness)):
                if name in parts:
                    await part(plane, most)
    if "stall" in parts:
        await stall(folder)


def main() -> None:
    """Print every figure."""
    parts = os.environ.get("HOLDFAST_BENCH_PARTS", ",".join(PARTS)).split(",")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        asyncio.run(measure(Path(name), parts))


if __name__ == "__main__":
    main()
