"""The network paths between computers: how long a message takes, and whether it arrives.

A healthy path delays each message independently, so that messages overtake each other. A fault
applies to all paths that it covers: a cut loses all messages, a loss some of them, others
duplicate, delay or scatter them; a request may also arrive after its sender stopped waiting. A path
caches the sum of its faults until one is added or lifted, so that a message on a healthy path costs
one look-up.

Asks, answers, store calls and streams all pass here; nothing else connects two hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import msgspec

from holdfast.sim.randomness import stream

if TYPE_CHECKING:
    from holdfast.sim.cell import Host

# The least delay and the spread within one computer, within a region, and between regions.
LOCAL_US = (20, 60)
REGION_US = (200, 2_000)
WORLD_US = (40_000, 60_000)
# Longer than any of our components waits for an answer.
LATE_US = (30_000_000, 120_000_000)
_PERMILLE = 1_000


class PathFault(msgspec.Struct, frozen=True):
    """One fault on the paths from some hosts to others; None means all other hosts."""

    kind: str
    sources: frozenset[str] | None
    targets: frozenset[str] | None
    amount: int = 0

    def covers(self, source: str, target: str) -> bool:
        # A computer reaches itself, and hosts that are cut off together reach each other.
        if source == target:
            return False
        sources, targets = self.sources, self.targets
        if sources is None:
            return targets is None or (target in targets and source not in targets)
        if targets is None:
            return source in sources and target not in sources
        return source in sources and target in targets


class Trouble(msgspec.Struct):
    """The sum of all faults on one path."""

    cut: bool = False
    loss_permille: int = 0
    duplicate_permille: int = 0
    delay_us: int = 0
    scatter_us: int = 0
    late_permille: int = 0

    def add(self, fault: PathFault) -> None:
        match fault.kind:
            case "cut":
                self.cut = True
            case "loss":
                self.loss_permille = max(self.loss_permille, fault.amount)
            case "duplicate":
                self.duplicate_permille = max(self.duplicate_permille, fault.amount)
            case "late":
                self.late_permille = max(self.late_permille, fault.amount)
            case "delay":
                self.delay_us += fault.amount * 1000
            case _:
                self.scatter_us = max(self.scatter_us, fault.amount * 1000)


class Path:
    """The path from one host to another."""

    __slots__ = ("least_us", "random", "source", "spread_us", "target", "trouble")

    def __init__(self, source: str, target: str, delays: tuple[int, int], rng: Random) -> None:
        self.source = source
        self.target = target
        self.least_us, self.spread_us = delays
        self.random = rng.random
        self.trouble: Trouble | None = None

    def delay_us(self) -> int:
        """How long one message takes without faults: mostly short, sometimes long."""
        draw = self.random()
        return self.least_us + int(self.spread_us * draw * draw * draw)

    @property
    def cut(self) -> bool:
        return self.trouble is not None and self.trouble.cut


class Network:
    """All paths of a world and the faults on them."""

    def __init__(self, seed: int, injected: Callable[[str], None]) -> None:
        self._seed = seed
        self._injected = injected
        self._rngs: dict[str, Random] = {}
        self._paths: list[Path] = []
        self._faults: dict[int, PathFault] = {}
        self._fault_count = 0
        self._delays: dict[tuple[str, str], tuple[int, int]] = {}

    def set_delay(self, a: str, b: str, least_us: int, spread_us: int) -> None:
        """Set the delay between two regions. Call it before any message is sent."""
        self._delays[a, b] = self._delays[b, a] = (least_us, spread_us)

    def path(self, source: Host, target: Host) -> Path:
        """The path between two hosts, created at first use."""
        path = source.paths.get(target.name)
        if path is None:
            path = self._new_path(source, target)
            source.paths[target.name] = path
        return path

    def _new_path(self, source: Host, target: Host) -> Path:
        if source is target:
            delays = LOCAL_US
        else:
            usual = REGION_US if source.region == target.region else WORLD_US
            delays = self._delays.get((source.region, target.region), usual)
        # One stream per sender: what one host sends does not shift the delays of another.
        rng = self._rngs.get(source.name)
        if rng is None:
            rng = self._rngs[source.name] = stream(self._seed, f"network/{source.name}")
        path = Path(source.name, target.name, delays, rng)
        self._paths.append(path)
        self._update(path)
        return path

    def lay(self, fault: PathFault) -> Callable[[], None]:
        """Put a fault in force; the returned function lifts it."""
        self._fault_count += 1
        number = self._fault_count
        self._faults[number] = fault
        self._update_all(fault)

        def lift() -> None:
            del self._faults[number]
            self._update_all(fault)

        return lift

    def _update_all(self, fault: PathFault) -> None:
        for path in self._paths:
            if fault.covers(path.source, path.target):
                self._update(path)

    def _update(self, path: Path) -> None:
        trouble = None
        for fault in self._faults.values():
            if fault.covers(path.source, path.target):
                trouble = trouble or Trouble()
                trouble.add(fault)
        path.trouble = trouble

    def arrivals(self, path: Path, trouble: Trouble, sent_us: int) -> tuple[int, ...]:
        """When copies of one message arrive on a path with faults: never, once or twice.

        A cut is checked on arrival, not here: it also strikes messages that are under way.
        """
        if trouble.loss_permille and path.random() * _PERMILLE < trouble.loss_permille:
            self._injected("loss")
            return ()
        first = sent_us + self._rough_delay_us(path, trouble)
        if trouble.duplicate_permille and path.random() * _PERMILLE < trouble.duplicate_permille:
            self._injected("duplicate")
            return (first, sent_us + self._rough_delay_us(path, trouble))
        return (first,)

    def late_copy(self, path: Path, trouble: Trouble, sent_us: int) -> int | None:
        """When a copy of a request arrives that was held for longer than any time-out.

        A paused server or a proxy holds it; its sender has received no answer, or the answer to
        another copy, and no longer waits.
        """
        if not trouble.late_permille or path.random() * _PERMILLE >= trouble.late_permille:
            return None
        self._injected("late")
        least_us, most_us = LATE_US
        return sent_us + least_us + int(path.random() * (most_us - least_us))

    @staticmethod
    def _rough_delay_us(path: Path, trouble: Trouble) -> int:
        delay_us = path.delay_us() + trouble.delay_us
        if trouble.scatter_us:
            delay_us += int(path.random() * trouble.scatter_us)
        return delay_us
