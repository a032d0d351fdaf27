"""The retry storm with real processes: etcd stands still for a minute below two hundred agents.

HOLDFAST_STORM_LONG=1, as `make storm-long` sets it, runs this. Agents are hollow (`bench/hollow`):
everything up to the runtime is what ships, and their work is pretended. What they and all others
ask is counted where it arrives, by the metrics of the server.

Honest limit: watches are reported, not judged. A server that cannot confirm its view refuses the
lists of resyncs with 503 in a stall, and agents ask for them about twice as often as usual then.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from bench.control_plane import Hollow, Observed
from holdfast.model.kinds.node import NodePhase
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import workload
from tests.live.process_plane import plane_on_etcd
from tests.live.whole_plane import WholePlane

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("HOLDFAST_STORM_LONG"), reason="takes minutes: make storm-long runs it"
    ),
]
AGENTS = 200
REPLICAS = 60
CALM_S, STALL_S, WITHIN_S, AFTER_S = 40, 60, 60, 30
# One round of renewals: by then every client has met the stall. What was asked last in it, and once
# again, is answered and therefore counted in the next one.
ROUND_S = 10
FIRST_ROUND_S = 2 * ROUND_S
# Looks are a second apart, and later on a busy machine.
LOOK_S = 2
_COUNT = re.compile(r"^holdfast_requests_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$", re.MULTILINE)
# Watches end when a client leaves, and the counting client counts itself.
_REPORTS = 'resource="requests"'
_UNCOUNTED = ('verb="watch"', 'verb="connect"', 'resource="other"')


class Counts:
    """How many requests the server has answered, second by second."""

    def __init__(self, plane: WholePlane) -> None:
        self._plane = plane
        self.seconds: list[tuple[float, float]] = []
        self._reports = 0.0
        self.reports_before: float | None = None
        # By their labels, to show which clients asked.
        self.each: list[dict[str, float]] = []
        self.renewals: list[float] = []

    def _first_reports(self, reports: float) -> float:
        """Work that has stopped itself is reported once each: that is no repetition."""
        if self.reports_before is None:
            self._reports = reports
            return 0.0
        return min(float(REPLICAS), reports - self.reports_before)

    def begin_stall(self) -> None:
        self.reports_before = self._reports

    def renewed(self, seconds: int) -> float:
        """How many renewals were acknowledged lately."""
        return self.renewals[-1] - self.renewals[-1 - seconds]

    def are_served(self, usual: float) -> bool:
        """Whether the agents are let run on as they used to be."""
        return self.renewed(ROUND_S + 2) >= usual

    async def take(self) -> None:
        """Look once a second until it is cancelled."""
        connector = aiohttp.TCPConnector(ssl=self._plane.access.context())
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                url = f"{self._plane.access_urls[0]}/metrics"
                async with session.get(url) as response:
                    text = await response.text()
                found = [(it["labels"], float(it["count"])) for it in _COUNT.finditer(text)]
                count = sum(n for of, n in found if not any(it in of for it in _UNCOUNTED))
                count -= self._first_reports(sum(n for of, n in found if _REPORTS in of))
                self.seconds.append((time.monotonic(), count))
                self.each.append(dict(found))
                renewed = (n for of, n in found if "renewals" in of and 'code="200"' in of)
                self.renewals.append(sum(renewed))
                await asyncio.sleep(1.0)

    def rate(self, begin: float, end: float) -> float:
        """Requests a second in this time; on a busy machine looks come when they can."""
        times, counts = zip(*self.seconds, strict=True)
        first, last = np.interp((begin, end), times, counts)
        return float(last - first) / (end - begin)

    def most(self, begin: float, end: float) -> dict[str, float]:
        """Who asked most in this time."""
        inside = [
            it for (at, _), it in zip(self.seconds, self.each, strict=True) if begin <= at <= end
        ]
        more = {of: n - inside[0].get(of, 0.0) for of, n in inside[-1].items()} if inside else {}
        return dict(sorted(more.items(), key=lambda it: -it[1])[:8])

    @property
    def longest_gap_s(self) -> float:
        return max(b[0] - a[0] for a, b in pairwise(self.seconds))


def service() -> Any:
    template = {
        "command": ["sleep", "600"],
        "resources": {"cpu": "100m", "memory": "16Mi"},
        "graceSeconds": 0,
    }
    return workload("web", replicas=REPLICAS, template=template)


def test_a_plane_is_well_soon_after_its_store_stood_still_for_a_minute(tmp_path: Path) -> None:
    """And meanwhile, beyond the first round, no client asks more often. [E5, E6, I1, SC14]"""

    async def story() -> None:
        with EtcdCluster(tmp_path / "etcd") as cluster:
            async with (
                WholePlane(tmp_path, (), plane=plane_on_etcd(cluster, 1), fence=()) as plane,
                Observed(plane) as observed,
            ):
                hollow = Hollow(plane, "hollow", "--count", str(AGENTS), "--pause-ms", "50")
                try:
                    await hollow.ready(180.0)
                    await _storm(plane, observed, cluster)
                finally:
                    hollow.kill()

    asyncio.run(story())


async def _storm(plane: WholePlane, observed: Observed, cluster: EtcdCluster) -> None:
    await plane.client.create(service())
    await observed.until(lambda: len(observed.ready) == REPLICAS, 120.0)
    counts = Counts(plane)
    counting = asyncio.create_task(counts.take())
    try:
        await asyncio.sleep(CALM_S)
        doubts = len(observed.doubts)
        usual_renewals = counts.renewed(ROUND_S)
        counts.begin_stall()
        stopped = time.monotonic()
        cluster.pause(0)
        await asyncio.sleep(STALL_S)
        cluster.resume(0)
        went = well = time.monotonic()
        while time.monotonic() < went + WITHIN_S + AFTER_S:
            await asyncio.sleep(1.0)
            if not is_well(observed) or not counts.are_served(usual_renewals):
                well = time.monotonic()
    finally:
        counting.cancel()
    usual = counts.rate(stopped - CALM_S + ROUND_S, stopped)
    # What waited is answered all at once when the store goes on; no look may be half of that.
    windows = range(FIRST_ROUND_S, STALL_S - ROUND_S - LOOK_S)
    worst, when = max((counts.rate(stopped + at, stopped + at + ROUND_S), at) for at in windows)
    after = counts.rate(went + WITHIN_S, time.monotonic())
    print(
        f"usual {usual:.1f}/s, during the stall at most {worst:.1f}/s ({when} s after it began), "
        f"after it {after:.1f}/s, "
        f"well after {well - went:.1f} s, {len(observed.doubts) - doubts} doubts, "
        f"looks at most {counts.longest_gap_s:.1f} s apart"
    )
    for begin in (-ROUND_S, 0, when, STALL_S - ROUND_S):
        print(f"from {begin} s on: {counts.most(stopped + begin, stopped + begin + ROUND_S)}")
    assert worst < 1.1 * usual + 1.0
    assert after < 1.1 * usual + 1.0
    # No longer than the stall itself was.
    assert well - went <= went - stopped
    assert not [it for it in observed.doubts if it[1] in (NodePhase.FENCED, NodePhase.LOST)]


def is_well(observed: Observed) -> bool:
    phases = observed.phases.values()
    return len(observed.ready) == REPLICAS and all(it is NodePhase.READY for it in phases)
