"""The fence timing of a server: what may be given, and what would not be safe."""

from __future__ import annotations

import argparse

import pytest

from holdfast.host.server.fence_options import check, timing_of
from holdfast.host.server.server_options import add_options
from holdfast.model.errors import Invalid
from holdfast.model.nodes.fence import FenceTiming, fence_after_min_ms, short_of_fence_ms


def timing(*arguments: str) -> FenceTiming:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return timing_of(parser.parse_args(arguments))


def test_nothing_said_is_the_usual_fence() -> None:
    """[H5]"""
    assert timing() == FenceTiming()


def test_the_shortest_safe_fence_is_taken_unless_another_is_given() -> None:
    """[H5, C6.4]"""
    found = timing("--self-stop-after", "6", "--stop-grace", "1.5", "--ack-window", "0.5")
    assert (found.self_stop_after_ms, found.grace_ms, found.ack_window_ms) == (6_000, 1_500, 500)
    assert found.fence_after_ms == fence_after_min_ms(found)
    assert short_of_fence_ms(found) == 0
    assert timing("--self-stop-after", "6", "--fence-after", "100").fence_after_ms == 100_000


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("--fence-after", "10"), "--fence-after: 10: must be at least 45.018 s"),
        (("--self-stop-after", "600", "--fence-after", "46"), "--fence-after: 46: must be at lea"),
        (("--self-stop-after", "0.1"), "--self-stop-after: 0.1: must be at least 0.5 s"),
        (("--stop-grace", "soon"), "--stop-grace: soon: must be a number of seconds"),
        (("--stop-grace=-1",), "--stop-grace: -1: must be a number of seconds"),
        (("--kill-bound", "nan"), "--kill-bound: nan: must be a number of seconds"),
        (("--ack-window", "inf"), "--ack-window: inf: must be a number of seconds"),
        (("--clock-drift-ppm", "1.5"), "--clock-drift-ppm: 1.5: must be a whole number"),
        (("--clock-drift-ppm", "9999999"), "--clock-drift-ppm: 9999999: must be a whole number"),
    ],
)
def test_what_is_not_safe_or_no_time_is_refused_in_a_sentence(
    arguments: tuple[str, ...], sentence: str
) -> None:
    """[H5]"""
    with pytest.raises(Invalid) as refused:
        timing(*arguments)
    assert str(refused.value).startswith(sentence)


def test_what_was_not_given_on_a_command_line_is_checked_as_well() -> None:
    """[C6.4]"""
    with pytest.raises(Invalid, match="--fence-after"):
        check(FenceTiming(fence_after_ms=1_000))
