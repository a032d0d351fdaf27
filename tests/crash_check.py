"""Histories of the embedded store on a recorded disk, and what must hold after every power failure.

`record` drives the engine through groups, deletions, compactions, checkpoints and restarts, and
notes at which point of the disk's trace each group was acknowledged. `crash_states` fails the power
at each point. `check` opens what is left with the very same engine: every acknowledged transaction
is there, none is there in part, and no revision goes back.

`python -m tests.crash_check --states 200000` is the long run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from holdfast.model.errors import HoldfastError
from holdfast.model.transaction import (
    Committed,
    Compare,
    Delete,
    Fate,
    NotApplied,
    Put,
    TokenApplied,
    Transaction,
)
from holdfast.store.contract import KEY_END, TransactionToken
from holdfast.store.sqlite.committed import record as to_record
from holdfast.store.sqlite.engine import SqliteEngine
from holdfast.store.sqlite.rows import read_values
from holdfast.store.sqlite.writes import Answer, AskFate, CommitWrite, Compact, Request
from tests.crash_vfs import WAYS, Disk, Find, Image, Operation, RecordingVfs
from tests.store_model import Model

# Memory-backed where there is such a folder: what is tested is the order of writes, not the disk.
SCRATCH = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
DATABASE = "store.db"


class SmallEngine(SqliteEngine):
    """The engine with small bounds, so that short histories meet checkpoints and sweeps."""

    checkpoint_pages: ClassVar[int] = 24
    sweep_rows_max: ClassVar[int] = 5

    # How long the disk's trace is now; set by the recorder.
    position: Callable[[], int] | None = None
    # Where in the trace this life's last group was acknowledged, if not at its end.
    acknowledged_early: int | None = None


@dataclass(frozen=True)
class Acknowledgement:
    """From this point of the trace on, this is promised."""

    position: int
    revision: int
    compacted: int
    tokens: int


@dataclass(frozen=True)
class UsedToken:
    """A token, the revision that it was answered with, and whether that revision is its own."""

    issued_at: int
    token: TransactionToken
    revision: int
    has_effect: bool


@dataclass
class History:
    """What was done, and what a store must remember of it."""

    seed: int
    model: Model = field(default_factory=lambda: Model(revision=0))
    trace: list[Operation] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(
        default_factory=lambda: [Acknowledgement(0, 0, 0, 0)]
    )
    # Where each group began, and the revision it could reach: nothing beyond can be on the disk.
    beginnings: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    tokens: list[UsedToken] = field(default_factory=list)

    def promised_at(self, position: int) -> Acknowledgement:
        place = bisect_right(self.acknowledgements, position, key=lambda a: a.position)
        return self.acknowledgements[place - 1]

    def possible_at(self, position: int) -> int:
        place = bisect_right(self.beginnings, position, key=lambda b: b[0])
        return self.beginnings[place - 1][1]


class _Recorder:
    """Drives one engine after another over one recorded disk."""

    def __init__(self, seed: int, folder: Path, kind: type[SmallEngine]) -> None:
        self.history = History(seed)
        self.rng = random.Random(seed)
        self.path = folder / DATABASE
        self.kind = kind
        self.vfs = RecordingVfs(f"recording-{seed}-{id(self)}")
        self.history.trace = self.vfs.trace
        self.engine = self.open()

    def open(self) -> SmallEngine:
        engine = self.kind.open(self.path, vfs=self.vfs.name, clock=lambda: 0.0)
        engine.position = lambda: len(self.vfs.trace)
        return engine

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.08:
            self.restart()
        elif chance < 0.18 and self.history.model.revision > self.history.model.compacted:
            model = self.history.model
            self.group([Compact(self.rng.randint(model.compacted + 1, model.revision))])
        elif chance < 0.22:
            # Nothing to do but to sweep.
            self.group([])
        else:
            self.group([self.write() for _ in range(self.rng.choice((1, 1, 2, 3, 8)))])

    def restart(self) -> None:
        if self.rng.random() < 0.5:
            # As if the process had been killed: the log is left as it is.
            self.engine.failure = "killed"
        self.engine.close()
        self.engine = self.open()

    def write(self) -> CommitWrite:
        rng = self.rng
        keys = rng.sample([f"k{i}" for i in range(12)], rng.choice((1, 1, 1, 2, 5)))
        sizes = (0, 10, 400, 1500, 1500, 9000)
        writes = tuple(
            Delete(key) if rng.random() < 0.2 else Put(key, rng.randbytes(rng.choice(sizes)))
            for key in keys
        )
        # Some compares are stale, or become so within the group.
        compares = tuple(Compare(k, self.history.model.modified(k)) for k in keys[:1])
        if rng.random() < 0.3:
            compares = ()
        token = self.engine.tokens.issue() if rng.random() < 0.4 else None
        return CommitWrite(Transaction(compares, writes), token)

    def group(self, requests: list[Request]) -> None:
        history, model = self.history, self.history.model
        possible = model.revision + len(requests)
        history.beginnings.append((len(self.vfs.trace), possible))
        self.engine.acknowledged_early = None
        answers = self.engine.run(requests).answers
        if self.engine.failure is not None:
            raise AssertionError(self.engine.failure)
        position = self.engine.acknowledged_early
        self.take_over(requests, answers, len(self.vfs.trace) if position is None else position)
        self.engine.keep_house()

    def take_over(self, requests: list[Request], answers: list[Answer], position: int) -> None:
        history, model = self.history, self.history.model
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(request, Compact):
                model.compacted = request.revision
            elif isinstance(request, CommitWrite) and isinstance(answer, Committed):
                has_effect = model.has_effect(request.transaction)
                if has_effect:
                    model.write(request.transaction, answer.revision)
                if request.token is not None:
                    begun_at = history.beginnings[-1][0]
                    history.tokens.append(
                        UsedToken(begun_at, request.token, answer.revision, has_effect)
                    )
        history.acknowledgements.append(
            Acknowledgement(position, model.revision, model.compacted, len(history.tokens))
        )


def record(seed: int, *, steps: int = 40, kind: type[SmallEngine] = SmallEngine) -> History:
    """One history on a fresh store."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-crash-", dir=SCRATCH))
    try:
        recorder = _Recorder(seed, folder, kind)
        for _ in range(steps):
            recorder.step()
        recorder.engine.close()
        recorder.vfs.unregister()
        return recorder.history
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class CrashState:
    """A disk after a power failure, and how it came about."""

    seed: int
    position: int
    way: str
    draw: int
    image: Image

    def __str__(self) -> str:
        return f"history {self.seed}, operation {self.position}, {self.way!r}, draw {self.draw}"


def crash_states(history: History, *, draws: int, rng: random.Random) -> Iterator[CrashState]:
    """Power failures after each operation: every certain way once, every random way so often."""
    disk = Disk()
    for position, operation in enumerate(history.trace, 1):
        disk.apply(operation)
        ways = WAYS if disk.open_choices() else ("kept",)
        for way in ways:
            for draw in range(1 if way in ("kept", "lost") else draws):
                image = disk.after_failure(way, rng)
                yield CrashState(history.seed, position, way, draw, image)


def second_failures(
    state: CrashState, folder: Path, *, count: int, rng: random.Random
) -> Iterator[CrashState]:
    """The power fails again while the store is being opened after the first time."""
    _lay_out(state.image, folder)
    vfs = RecordingVfs(f"recovering-{id(state)}")
    SmallEngine.open(folder / DATABASE, vfs=vfs.name, clock=lambda: 0.0).close()
    vfs.unregister()
    done = [operation for operation in vfs.trace if not isinstance(operation, Find)]
    positions = rng.choices(range(len(done)), k=count)
    disk = Disk()
    for name, content in state.image.items():
        # Also the files that opening has not come to yet.
        disk.apply(Find(name, content))
    for position, operation in enumerate(done):
        disk.apply(operation)
        for _ in range(positions.count(position)):
            way = rng.choice(WAYS)
            image = disk.after_failure(way, rng)
            how = f"{state.way}, then {way} at operation {position} of opening"
            yield CrashState(state.seed, state.position, how, state.draw, image)


def _lay_out(image: Image, folder: Path) -> None:
    for left in folder.iterdir():
        left.unlink()
    for name, content in image.items():
        (folder / name).write_bytes(content)


def check(history: History, state: CrashState, folder: Path) -> str | None:
    """What is wrong with a state, or None."""
    _lay_out(state.image, folder)
    try:
        engine = SmallEngine.open(folder / DATABASE, clock=lambda: 0.0)
    except HoldfastError as error:
        return f"does not open: {error}"
    try:
        return _check_open(history, state, engine)
    finally:
        engine.close()


def _check_open(history: History, state: CrashState, engine: SqliteEngine) -> str | None:
    promised = history.promised_at(state.position)
    revision = engine.view.revision
    if revision < promised.revision:
        return f"acknowledged revision {promised.revision} is lost, it is at {revision}"
    if revision > history.possible_at(state.position):
        return f"revision {revision} was never begun"
    if engine.view.compacted < promised.compacted:
        return f"compaction to {promised.compacted} is lost"
    for at in {revision, random.Random(revision).randint(engine.view.compacted, revision)}:
        found = engine.view.select("", KEY_END, limit=10_000, at=at).found
        values = read_values(engine.connection, engine.path, found.entries)
        records = tuple(to_record(pointer, values[pointer.id]) for pointer in found.entries)
        if records != history.model.records("", KEY_END, at):
            return f"revision {at} is not what was written"
    wrong = _check_tokens(history, state.position, engine)
    if wrong is not None:
        return wrong
    answer = engine.run([CommitWrite(Transaction((), (Put("after", b"crash"),)))]).answers[0]
    if answer != Committed(revision + 1):
        return f"the next write answered {answer}"
    return None


def _check_tokens(history: History, position: int, engine: SqliteEngine) -> str | None:
    """A token is there when it was promised, and exactly when its transaction is."""
    promised = history.promised_at(position).tokens
    for number, used in enumerate(history.tokens):
        if number < promised or (used.has_effect and used.issued_at <= position):
            is_there = number < promised or used.revision <= engine.view.revision
            expected: Fate = TokenApplied(used.revision) if is_there else NotApplied()
            fate = engine.run([AskFate(used.token)]).answers[0]
            if fate != expected:
                return f"token {used.token} of revision {used.revision} is lost: {fate}"
    return None


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-crash-", dir=SCRATCH))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--states", type=int, default=200_000)
    parser.add_argument("--first-seed", type=int, default=1_000)
    arguments = parser.parse_args()
    count, seed, began = 0, arguments.first_seed, time.monotonic()
    with scratch_folder() as folder:
        while count < arguments.states:
            history = record(seed, steps=60)
            rng = random.Random(seed)
            for first in crash_states(history, draws=3, rng=random.Random(seed)):
                again = rng.random() < 0.05
                more = second_failures(first, folder, count=4, rng=rng) if again else ()
                for state in (first, *more):
                    wrong = check(history, state, folder)
                    count += 1
                    if wrong is not None:
                        print(f"FAILED: {state}: {wrong}")
                        return 1
            took = time.monotonic() - began
            print(f"{count} states of {seed - arguments.first_seed + 1} histories, {took:.0f} s")
            seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
