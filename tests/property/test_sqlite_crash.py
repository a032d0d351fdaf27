"""Power failures at every write of the embedded store; and that the check would notice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.sqlite import engine, schema
from tests.crash_check import (
    CrashState,
    History,
    SmallEngine,
    check,
    crash_states,
    record,
    scratch_folder,
    second_failures,
)
from tests.scale import scaled

HISTORIES = scaled(5, 12)
STATES_MIN = HISTORIES * 160


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as path:
        yield path


def sampled(history: History, share: float) -> Iterator[CrashState]:
    """Some of all states, the same ones each time."""
    rng = random.Random(history.seed)
    for state in crash_states(history, draws=1, rng=random.Random(history.seed)):
        if rng.random() < share:
            yield state


def first_wrong(history: History, folder: Path) -> str | None:
    for state in crash_states(history, draws=1, rng=random.Random(history.seed)):
        wrong = check(history, state, folder)
        if wrong is not None:
            return wrong
    return None


def test_no_power_failure_loses_or_tears_what_was_acknowledged(folder: Path) -> None:
    """Un-synced writes lost, torn and reordered at every operation [INV10, INV11, C2]."""
    count = 0
    for seed in range(1, 1 + HISTORIES):
        history = record(seed)
        for state in sampled(history, 0.06):
            wrong = check(history, state, folder)
            assert wrong is None, f"{state}: {wrong}"
            count += 1
    assert count >= STATES_MIN


def test_a_second_power_failure_while_recovering_loses_nothing_either(folder: Path) -> None:
    """Opening after a crash writes too, and may be cut short as well [INV11, C7.4]."""
    count = 0
    for seed in (21, 22, 23):
        history = record(seed, steps=25)
        rng = random.Random(seed)
        for first in sampled(history, 0.03):
            for state in second_failures(first, folder, count=4, rng=rng):
                wrong = check(history, state, folder)
                assert wrong is None, f"{state}: {wrong}"
                count += 1
    assert count >= 400


@pytest.mark.parametrize("level", ["NORMAL", "OFF"])
def test_a_store_that_does_not_sync_its_commits_is_caught(
    folder: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """A check that cannot fail proves nothing [INV11]."""
    settings = tuple(
        f"PRAGMA synchronous = {level}" if "synchronous" in setting else setting
        for setting in schema.SETTINGS
    )
    assert settings != schema.SETTINGS
    with monkeypatch.context() as patch:
        patch.setattr(schema, "SETTINGS", settings)
        history = record(1)
    wrong = first_wrong(history, folder)
    assert wrong is not None
    assert "is lost" in wrong or "damaged" in wrong


class EarlyAnswers(SmallEngine):
    """Acknowledges when it is about to commit."""

    def _commit(self) -> None:
        if self.position is not None:
            self.acknowledged_early = self.position()
        super()._commit()


def test_an_acknowledgement_before_the_commit_is_caught(folder: Path) -> None:
    """[INV11]"""
    wrong = first_wrong(record(1, kind=EarlyAnswers), folder)
    assert wrong is not None
    assert "is lost" in wrong


@pytest.mark.parametrize("table", ["current", "tokens"])
def test_a_transaction_committed_in_two_parts_is_caught(
    folder: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Log, pointers and tokens belong together [C2, INV3]."""
    insert = engine.insert

    def insert_apart(execute: Any, name: str, *rest: Any) -> None:
        if name == table:
            execute("COMMIT")
            execute("BEGIN IMMEDIATE")
        insert(execute, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "insert", insert_apart)
        history = record(1)
    wrong = first_wrong(history, folder)
    assert wrong is not None
    assert ("does not match" if table == "current" else "is lost") in wrong


def test_crash_states_differ_and_can_be_made_again() -> None:
    """Only SQLite's own random salts differ from run to run."""

    def states() -> list[CrashState]:
        return list(sampled(record(3), 0.05))

    def shapes(states: list[CrashState]) -> list[object]:
        return [(s.position, s.way, {n: len(c) for n, c in s.image.items()}) for s in states]

    first = states()
    assert shapes(first) == shapes(states())
    assert len({frozenset(s.image.items()) for s in first}) > len(first) / 4
