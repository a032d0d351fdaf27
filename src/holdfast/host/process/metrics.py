"""Counters and histograms in the text format of Prometheus.

Written by hand (docs/adr/0043-metrics.md): the format is a page long, and the counters are updated
thousands of times a second on one event loop, so they need no locks and no registry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0)
# A counter with more label sets than this has labels that clients choose, which is a bug.
SERIES_MAX = 5_000

Labels = tuple[str, ...]
Readings = Callable[[], Iterable[tuple[Labels, float]]]


class Counter:
    """A counter by labels."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Labels = ()) -> None:
        self.name, self.text, self._labels = name, text, labels
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, by: float = 1.0) -> None:
        values = self._values
        if labels in values:
            values[labels] += by
        elif len(values) < SERIES_MAX:
            values[labels] = by

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0.0)

    def lines(self) -> Iterable[str]:
        for labels, value in self._values.items():
            yield f"{self.name}{_braced(self._labels, labels)} {_number(value)}"


class Gauge:
    """A value that is computed when it is read."""

    kind = "gauge"

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self.name, self.text, self._read = name, text, read

    def lines(self) -> Iterable[str]:
        yield f"{self.name} {_number(self._read())}"


class Gauges:
    """Values by labels that are computed when they are read; also for counters kept elsewhere."""

    def __init__(self, name: str, text: str, labels: Labels, read: Readings, kind: str) -> None:
        self.name, self.text, self.kind = name, text, kind
        self._labels, self._read = labels, read

    def lines(self) -> Iterable[str]:
        for labels, value in islice(self._read(), SERIES_MAX):
            yield f"{self.name}{_braced(self._labels, labels)} {_number(value)}"


class Histogram:
    """The distribution of durations or sizes, in buckets, by labels."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Labels = ()) -> None:
        self.name, self.text, self._labels = name, text, labels
        self._bounds = tuple(bounds)
        # For each label set: the buckets, the one above all bounds, and the sum.
        self._series: dict[Labels, list[float]] = {}

    def observe(self, value: float, *labels: str) -> None:
        series = self._series.get(labels)
        if series is None:
            if len(self._series) >= SERIES_MAX:
                return
            series = self._series[labels] = [0.0] * (len(self._bounds) + 2)
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def count(self, *labels: str) -> int:
        return int(sum(self._series.get(labels, [0.0])[:-1]))

    def lines(self) -> Iterable[str]:
        for labels, series in self._series.items():
            total = 0.0
            for bound, count in zip((*self._bounds, float("inf")), series, strict=False):
                total += count
                names, values = (*self._labels, "le"), (*labels, _bound(bound))
                yield f"{self.name}_bucket{_braced(names, values)} {_number(total)}"
            braced = _braced(self._labels, labels)
            yield f"{self.name}_sum{braced} {_number(series[-1])}"
            yield f"{self.name}_count{braced} {_number(total)}"


Metric = Counter | Gauge | Gauges | Histogram


class Metrics:
    """All metrics of one server."""

    def __init__(self) -> None:
        self._all: list[Metric] = []
        by = ("verb", "resource", "code")
        self.requests = self._counter("requests_total", "Requests answered.", by)
        self.latency = self._histogram(
            "request_seconds", "Time to answer, without watches.", LATENCY_S, ("verb", "resource")
        )
        self.txns = self._counter("store_txns_total", "Transactions by outcome.", ("outcome",))
        self.txn_latency = self._histogram("store_txn_seconds", "Time of a transaction.", LATENCY_S)
        self.group = self._histogram(
            "store_txn_writes", "Records written by one committed transaction.", SIZES
        )
        self.conflicts = self._counter(
            "store_conflicts_total", "Transactions with writes whose compares were stale."
        )
        self.changes = self._counter("store_changes_total", "Changes that the hub has read.")
        self.forwarded = self._counter(
            "forwarded_total", "Requests forwarded to the authority's server.", ("outcome",)
        )
        self.forwards_taken = self._counter(
            "forwards_taken_total", "Requests accepted from other servers."
        )

    def counter(self, name: str, text: str, labels: Labels = ()) -> Counter:
        """Add a counter of a part of the server."""
        return self._counter(name, text, labels)

    def histogram(
        self, name: str, text: str, bounds: Sequence[float], labels: Labels = ()
    ) -> Histogram:
        """Add a histogram of a part of the server."""
        return self._histogram(name, text, bounds, labels)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a value that is computed when it is read."""
        self._all.append(Gauge(f"holdfast_{name}", text, read))

    def gauges(
        self, name: str, text: str, labels: Labels, read: Readings, kind: str = "gauge"
    ) -> None:
        """Add values by labels that are computed when they are read."""
        self._all.append(Gauges(f"holdfast_{name}", text, labels, read, kind))

    def text(self) -> str:
        """Return all metrics in the format of Prometheus."""
        lines: list[str] = []
        for metric in self._all:
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
            lines += metric.lines()
        return "\n".join(lines) + "\n"

    def _counter(self, name: str, text: str, labels: Labels = ()) -> Counter:
        counter = Counter(f"holdfast_{name}", text, labels)
        self._all.append(counter)
        return counter

    def _histogram(
        self, name: str, text: str, bounds: Sequence[float], labels: Labels = ()
    ) -> Histogram:
        histogram = Histogram(f"holdfast_{name}", text, bounds, labels)
        self._all.append(histogram)
        return histogram


def _braced(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = ",".join(f'{n}="{_escaped(v)}"' for n, v in zip(names, values, strict=True))
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else f"{bound:g}"
