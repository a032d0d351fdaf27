"""Streams of random numbers by purpose."""

from __future__ import annotations

import subprocess
import sys

from holdfast.sim.randomness import between, pick, stream, waiting_time


def test_a_stream_depends_on_seed_and_purpose_only() -> None:
    """Adding a stream or drawing from one does not shift another. [N6]"""
    alone = [stream(7, "network").random() for _ in range(1)]
    other = stream(7, "plan")
    other.random()
    assert [stream(7, "network").random()] == alone
    assert stream(7, "plan").random() != alone[0]
    assert stream(8, "network").random() != alone[0]


def test_a_stream_is_the_same_in_a_process_with_another_hash_seed() -> None:
    """A stream does not depend on Python's own hash. [N6]"""
    program = "from holdfast.sim.randomness import stream; print(stream(3, 'x').random())"
    drawn = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert drawn == {f"{stream(3, 'x').random()}\n"}


def test_between_reaches_both_ends_and_nothing_beyond() -> None:
    """An amount drawn for a fault stays within its hazard. [N6]"""
    rng = stream(1, "between")
    assert {between(rng, -2, 2) for _ in range(500)} == {-2, -1, 0, 1, 2}


def test_pick_reaches_every_option() -> None:
    """No target of a hazard is out of reach. [N6]"""
    rng = stream(1, "pick")
    assert {pick(rng, "abc") for _ in range(200)} == {"a", "b", "c"}


def test_waiting_times_have_the_mean_that_was_asked_for() -> None:
    """Faults strike at the rate of their hazard. [N6]"""
    rng = stream(1, "waiting")
    mean = sum(waiting_time(rng, 10.0) for _ in range(20_000)) / 20_000
    assert 9.5 < mean < 10.5
