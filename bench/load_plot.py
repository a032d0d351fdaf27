"""Curves over time as SVG, written without a library: panels below each other, one time axis.

A picture of a load has to show three things that no single figure does: that it lasts, what comes
before and after, and who pays. Lines, ticks and a legend are not worth a dependency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP, BOTTOM = 860, 200, 64, 190, 46, 44, 44
# Distinguishable without colours too: each curve has its own dash pattern.
COLOURS = ("#0b62a4", "#c4501b", "#2e7d32", "#7b3fa0", "#a07400", "#00838f", "#ad1457", "#555555")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "", "7 3", "2 3", "9 3 2 3")
_TICKS = 6


class Curve(msgspec.Struct, frozen=True):
    """One line."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    faint: bool = False


class Panel(msgspec.Struct, frozen=True):
    """One system of axes. `limit` is a line that should not be crossed."""

    title: str
    unit: str
    curves: Sequence[Curve]
    is_log: bool = False
    limit: float | None = None


class Span(msgspec.Struct, frozen=True):
    """A period that is shaded in all panels."""

    name: str
    begin: float
    end: float


def draw(
    path: Path, title: str, panels: Sequence[Panel], seconds: float, spans: Sequence[Span] = ()
) -> None:
    """Write one picture."""
    height = TOP + len(panels) * (PANEL + GAP) - GAP + BOTTOM
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for at, panel in enumerate(panels):
        parts += _Axes(panel, TOP + at * (PANEL + GAP), seconds).drawn(spans, named=not at)
    parts += [
        (
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 8}" text-anchor="middle">'
            "seconds</text>"
        ),
        "</svg>",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


class _Axes:
    """The mapping of one panel from values to coordinates."""

    def __init__(self, panel: Panel, top: float, seconds: float) -> None:
        self._panel, self._top, self._seconds = panel, top, seconds
        values = [y for curve in panel.curves for y in curve.ys if math.isfinite(y)]
        values += [panel.limit] if panel.limit is not None else []
        highest = max(values, default=1.0)
        if panel.is_log:
            self._low = math.floor(math.log10(max(0.1, min(values, default=1.0))))
            self._high: float = max(self._low + 1, math.ceil(math.log10(max(highest, 1.0))))
        else:
            step = _nice(highest / _TICKS)
            self._step, self._low = step, 0
            self._high = max(1, math.ceil(highest / step)) * step

    def _x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self._seconds

    def _y(self, value: float) -> float:
        at = math.log10(max(value, 10.0**self._low)) if self._panel.is_log else value
        share = (at - self._low) / (self._high - self._low)
        return self._top + PANEL * (1 - min(1.0, max(0.0, share)))

    def drawn(self, spans: Sequence[Span], *, named: bool) -> list[str]:
        parts = [part for span in spans for part in self._span(span, named)]
        parts += [*self._grid(), *self._limit()]
        for number, curve in enumerate(self._panel.curves):
            parts += self._curve(number, curve)
        words = escape(f"{self._panel.title} ({self._panel.unit})")
        head = f'<text x="{LEFT}" y="{self._top - 6}" font-weight="bold">{words}</text>'
        frame = (
            f'<rect x="{LEFT}" y="{self._top}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL}" '
            'fill="none" stroke="#333333"/>'
        )
        return [*parts, frame, head]

    def _span(self, span: Span, named: bool) -> list[str]:
        x, width = self._x(span.begin), self._x(span.end) - self._x(span.begin)
        parts = [
            (
                f'<rect x="{x:.1f}" y="{self._top}" width="{width:.1f}" height="{PANEL}" '
                'fill="#f3ead6"/>'
            )
        ]
        if named:
            parts.append(
                f'<text x="{x + 4:.1f}" y="{self._top + 13}" fill="#7a5c00">'
                f"{escape(span.name)}</text>"
            )
        return parts

    def _grid(self) -> list[str]:
        if self._panel.is_log:
            ticks = [10.0**power for power in range(int(self._low), int(self._high) + 1)]
        else:
            ticks = [self._step * n for n in range(round(self._high / self._step) + 1)]
        parts = []
        for value in ticks:
            y = self._y(value)
            parts += [
                (
                    f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                    'stroke="#dddddd"/>'
                ),
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>',
            ]
        step = _nice(self._seconds / 10)
        for n in range(int(self._seconds / step) + 1):
            x, y = self._x(n * step), self._top + PANEL + 14
            parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{n * step:g}</text>')
        return parts

    def _limit(self) -> list[str]:
        limit = self._panel.limit
        if limit is None:
            return []
        y = self._y(limit)
        return [
            (
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                'stroke="#b00020" stroke-dasharray="4 4"/>'
            ),
            (
                f'<text x="{WIDTH - RIGHT - 4}" y="{y - 4:.1f}" text-anchor="end" fill="#b00020">'
                f"{limit:g}</text>"
            ),
        ]

    def _curve(self, number: int, curve: Curve) -> list[str]:
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        style = f'stroke="{colour}" stroke-width="{1 if curve.faint else 1.8}"'
        style += f' stroke-dasharray="{dash}"' if dash else ""
        points = " ".join(
            f"{self._x(x):.1f},{self._y(y):.1f}"
            for x, y in zip(curve.xs, curve.ys, strict=True)
            if math.isfinite(y)
        )
        x, y = WIDTH - RIGHT + 10, self._top + 10 + 16 * number
        return [
            f'<polyline points="{points}" fill="none" {style}/>',
            f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" {style}/>',
            f'<text x="{x + 30}" y="{y + 4}">{escape(curve.name)}</text>',
        ]


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, … that is not smaller."""
    power = 10.0 ** math.floor(math.log10(max(step, 1e-9)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)
