"""The storms of `bench/load`: five times the peak between two calm periods, and the goodput."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bench.harness import figure
from bench.load_pictures import plot_goodput, plot_latency
from bench.load_plane import (
    AFTER_S,
    CALM_S,
    SETTLE_S,
    STEADY,
    STORM_S,
    TENANTS,
    Plane,
    costs,
    peak,
    ratio,
    streams,
)
from bench.load_plot import Span
from bench.load_results import Results
from bench.run import cpu_s

OVERLOAD = 5.0
# A client waits no longer than this; a later answer is no goodput.
USEFUL_MS = 1_000.0


class CpuClock:
    """The CPU time of a process over time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: list[tuple[float, float]] = []
        self.began = 0.0

    def watch(self, seconds: float) -> Callable[[float], Any]:
        """Take a sample twice a second for this long."""

        async def look(began: float) -> None:
            while time.monotonic() < began + seconds:
                self._seen.append((time.monotonic(), cpu_s(self._pid)))
                await asyncio.sleep(0.5)

        return look

    def between(self, begin_s: float, end_s: float) -> float:
        """CPU seconds in this period."""
        inside = [cpu for at, cpu in self._seen if begin_s <= at - self.began <= end_s]
        return inside[-1] - inside[0] if inside else 0.0


async def overload(plane: Plane, most: float) -> None:
    """Five times the peak between two calm periods; by clients that honour Retry-After, or not."""
    storm = Storm(*await _stormed(plane, most, is_polite=True), most)
    # The capacity of the machine during the storm lies between that of before and that of now.
    before, most = most, (most + await peak(plane)) / 2
    rude = Storm(*await _stormed(plane, most, is_polite=False), most)
    more = {
        "durability": "power",
        "peak_per_s": round(most),
        "peak_per_s_before": round(before),
        **storm.costs(),
    }
    figure(
        "load.goodput_pct",
        100 * storm.goodput / most,
        "% of the peak",
        peer="the same with clients that ignore Retry-After",
        peer_value=100 * rude.goodput / most,
        goal=">= 80",
        offered=OVERLOAD,
        codes=storm.codes(),
        codes_rude=rude.codes(),
        **more,
    )
    figure(
        "load.lease_p99_ms",
        storm.lease_p99_ms(),
        "ms",
        peer="the same with clients that ignore Retry-After",
        peer_value=rude.lease_p99_ms(),
        goal="<= 250",
        served_pct=storm.leases_served_pct(),
        served_pct_rude=rude.leases_served_pct(),
        calm_p99_ms=round(storm.seen.p_ms(storm.leases & storm.calm, 0.99), 1),
        **more,
    )
    figure(
        "load.reject_p99_ms",
        storm.reject_p99_ms(),
        "ms from when it was sent",
        peer="the same with clients that ignore Retry-After",
        peer_value=rude.reject_p99_ms(),
        goal="<= 100",
        **more,
    )
    lease_ms, reject_ms = storm.lease_p99_ms(), storm.reject_p99_ms()
    ratio("load.lease_p99", lease_ms, most, services=625, goal_ms=250, **more)
    ratio("load.reject_p99", reject_ms, most, services=250, goal_ms=100, **more)
    for name, one in (("overload", storm), ("overload-rude", rude)):
        title = f"{OVERLOAD:g} times the peak" + (", no client backs off" if one is rude else "")
        spans = (Span(f"{OVERLOAD:g}x", storm.begin, storm.end),)
        plot_latency(f"{name}-latency", title, one.seen, storm.whole, spans)
        plot_goodput(f"{name}-goodput", title, one.seen, storm.whole, spans, most)


async def _stormed(
    plane: Plane, most: float, *, is_polite: bool
) -> tuple[Results, CpuClock, float]:
    share = most / len(TENANTS)
    calm, storm = STEADY * share, OVERLOAD * share
    rates = ((0.0, calm), (CALM_S, storm), (CALM_S + STORM_S, calm))
    clock = CpuClock(plane.pid)
    everybody = streams(plane, lambda _: rates, is_polite=is_polite)
    seen, spent = await plane.run(everybody, Storm.whole, clock.watch(Storm.whole))
    clock.began = seen.began
    return seen, clock, spent


class Storm:
    """The results of one storm between two calm periods."""

    begin, end = CALM_S, CALM_S + STORM_S
    whole = CALM_S + STORM_S + AFTER_S

    def __init__(self, seen: Results, clock: CpuClock, spent: float, most: float) -> None:
        self.seen, self._clock, self._spent, self._most = seen, clock, spent, most
        self.tenants, self.leases = seen.stream(*TENANTS), seen.kind("lease")
        self.calm = seen.between(1.0, self.begin)
        self.inside = seen.between(self.begin + SETTLE_S, self.end)

    @property
    def goodput(self) -> float:
        """Good answers per second that came in time after the request was sent."""
        took_ms = 1e3 * (self.seen.done - self.seen.sent)
        useful = self.seen.good & (took_ms <= USEFUL_MS) & self.tenants
        return self.seen.rate(useful, self.begin + SETTLE_S, self.end)

    def codes(self) -> dict[str, int]:
        return self.seen.codes(self.tenants & self.inside)

    def lease_p99_ms(self) -> float:
        return self.seen.p_ms(self.leases & self.inside, 0.99)

    def leases_served_pct(self) -> float:
        asked = self.leases & self.inside
        return round(100 * float((asked & self.seen.good).sum()) / max(1, int(asked.sum())), 2)

    def reject_p99_ms(self) -> float:
        refused = self.tenants & self.inside & self.seen.refused
        took_ms = 1e3 * (self.seen.done - self.seen.sent)[refused]
        return _quantile(took_ms, 0.99) if len(took_ms) else 0.0

    def costs(self) -> dict[str, Any]:
        """The server's CPU time for an answer, in the calm and in the storm."""
        calm, storm = (1.0, self.begin), (self.begin + SETTLE_S, self.end)
        each = [
            round(1e6 * self._clock.between(*it) / max(1, self.seen.done_in(*it)))
            for it in (calm, storm)
        ]
        more = {"server_cpu_us_calm": each[0], "server_cpu_us_storm": each[1]}
        return more | costs(self.seen, self._spent)


def _quantile(values: Any, share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])
