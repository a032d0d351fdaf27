"""The pictures of `bench/load`: latencies and goodput over time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bench.load_plane import TENANTS
from bench.load_plot import Curve, Panel, Span, draw
from bench.load_results import Results
from tests.live.part import ROOT

PLOTS = Path(os.environ.get("HOLDFAST_BENCH_PLOTS", ROOT / "build" / "load"))


def plot_latency(name: str, title: str, seen: Results, whole: float, spans: Sequence[Span]) -> None:
    panels = []
    for kind, limit, words in (
        ("lease", 250.0, "renewals, served"),
        ("write", 50.0, "writes, served"),
        ("read", 20.0, "reads, served"),
    ):
        mask = seen.kind(kind) & seen.good
        curves = [
            Curve(f"p{share:.0%}".rstrip("%"), *seen.latency(mask, whole, share))
            for share in (0.5, 0.99)
        ]
        panels.append(Panel(words, "ms from when due", curves, is_log=True, limit=limit))
    refused = seen.refused
    if refused.any():
        curves = [
            Curve(f"p{share:.0%}".rstrip("%"), *seen.latency(refused, whole, share))
            for share in (0.5, 0.99)
        ]
        panels.append(Panel("refused", "ms from when due", curves, is_log=True, limit=100.0))
    draw(PLOTS / f"{name}.svg", title, panels, whole, spans)


def plot_goodput(
    name: str, title: str, seen: Results, whole: float, spans: Sequence[Span], most: float
) -> None:
    tenants, leases = seen.stream(*TENANTS), seen.kind("lease")
    failed = tenants & ~seen.good & ~seen.refused & ~seen.held_back
    curves = [
        Curve("offered", *seen.per_second(tenants, whole, by_due=True), faint=True),
        Curve("served", *seen.per_second(tenants & seen.good, whole)),
        Curve("refused (429)", *seen.per_second(tenants & seen.refused, whole), faint=True),
        Curve(
            "not sent, backing off", *seen.per_second(tenants & seen.held_back, whole), faint=True
        ),
        Curve("failed otherwise", *seen.per_second(failed, whole), faint=True),
    ]
    renewals = [
        Curve("offered", *seen.per_second(leases, whole, step_s=1.0, by_due=True), faint=True),
        Curve("served", *seen.per_second(leases & seen.good, whole, step_s=1.0)),
    ]
    panels = (
        Panel("tenants; the line is the peak", "requests/s", curves, limit=round(most)),
        Panel("renewals", "requests/s", renewals),
    )
    draw(PLOTS / f"{name}.svg", title, panels, whole, spans)
