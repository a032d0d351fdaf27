"""The results of the generator of `bench/load` as arrays, and the statistics over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bench.load_generator import HELD_BACK, REFUSED

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


class Results:
    """One run. Times are seconds since its start, latencies milliseconds from when due."""

    def __init__(self, path: Path, streams: list[str]) -> None:
        with np.load(path) as file:
            report: dict[str, Any] = msgspec.json.decode(bytes(file["report"]))
            self.began: float = report["began"]
            self.cpu_s: float = report["cpu_s"]
            self.took_s: float = report["took_s"]
            # The start and end of each pause of the generator itself.
            self.pauses: list[tuple[float, float]] = [tuple(it) for it in report["pauses"]]
            self.intents: list[dict[str, int] | None] = report["intents"]
            self.kinds: list[str] = report["kinds"]
            self.streams = streams
            self.due: Array = file["due"] - self.began
            self.done: Array = file["done"] - self.began
            self.sent: Array = file["sent"] - self.began
            self.code: Array = file["code"]
            self._kind: Array = file["kind"]
            self._stream: Array = file["stream"]
        self.latency_ms: Array = 1e3 * (self.done - self.due)

    def __len__(self) -> int:
        return len(self.due)

    @property
    def good(self) -> Mask:
        found: Mask = (self.code >= 200) & (self.code < 300)
        return found

    @property
    def refused(self) -> Mask:
        """Refused because of overload."""
        found: Mask = self.code == REFUSED
        return found

    @property
    def held_back(self) -> Mask:
        """Never sent, as all its clients were backing off or busy."""
        found: Mask = self.code == HELD_BACK
        return found

    def kind(self, *names: str) -> Mask:
        wanted = [self.kinds.index(name) for name in names if name in self.kinds]
        found: Mask = np.isin(self._kind, wanted)
        return found

    def stream(self, *names: str) -> Mask:
        found: Mask = np.isin(self._stream, [self.streams.index(name) for name in names])
        return found

    def between(self, begin_s: float, end_s: float) -> Mask:
        """Due in this period."""
        found: Mask = (self.due >= begin_s) & (self.due < end_s)
        return found

    def p_ms(self, mask: Mask, share: float) -> float:
        """The latency that this share of the requests did not exceed."""
        chosen = self.latency_ms[mask]
        return float(np.quantile(chosen, share)) if len(chosen) else float("nan")

    def rate(self, mask: Mask, begin_s: float, end_s: float) -> float:
        """How many per second were done in this period."""
        done = self.done[mask]
        return float(np.count_nonzero((done >= begin_s) & (done < end_s))) / (end_s - begin_s)

    def done_in(self, begin_s: float, end_s: float) -> int:
        """How many were answered in this period, whatever the answer."""
        answered = (self.code >= 100) & (self.done >= begin_s) & (self.done < end_s)
        return int(np.count_nonzero(answered))

    def codes(self, mask: Mask) -> dict[str, int]:
        """How often each code was answered."""
        found, counts = np.unique(self.code[mask], return_counts=True)
        return {str(code): int(count) for code, count in zip(found, counts, strict=True)}

    def per_second(
        self, mask: Mask, seconds: float, *, step_s: float = 0.5, by_due: bool = False
    ) -> tuple[list[float], list[float]]:
        """A curve: requests per second over time."""
        edges = np.arange(0.0, seconds + step_s / 2, step_s)
        counts, _ = np.histogram((self.due if by_due else self.done)[mask], edges)
        return [float(x) for x in edges[:-1]], [float(x) for x in counts / step_s]

    def latency(
        self, mask: Mask, seconds: float, share: float, *, step_s: float = 0.5
    ) -> tuple[list[float], list[float]]:
        """A curve: a share's latency in milliseconds, by when requests were due."""
        xs: list[float] = []
        ys: list[float] = []
        for begin in np.arange(0.0, seconds, step_s):
            chosen = mask & self.between(float(begin), float(begin + step_s))
            if chosen.any():
                xs.append(float(begin))
                ys.append(max(0.1, self.p_ms(chosen, share)))
        return xs, ys
