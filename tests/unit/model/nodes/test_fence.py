"""The fencing inequality in numbers; its proof against drifting clocks is in tests/property."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.errors import Invalid
from holdfast.model.nodes.fence import FenceTiming, fence_after_min_ms, short_of_fence_ms


def test_the_defaults_are_safe() -> None:
    """42 s at opposite drifts of 200 ppm, 2 s to kill, 1 s of margin. [H5, INV2]"""
    assert fence_after_min_ms(FenceTiming()) == 42_017 + 2_001 + 1_000
    assert short_of_fence_ms(FenceTiming()) == 0


def test_with_perfect_clocks_the_times_just_add_up() -> None:
    timing = FenceTiming(1, 20, 300, 4_000, drift_ppm=0, margin_ms=50_000, fence_after_ms=54_320)
    assert fence_after_min_ms(timing) == 54_321
    assert short_of_fence_ms(timing) == 1


def test_every_time_and_the_drift_make_the_wait_longer() -> None:
    """Leaving one of them out of the sum would be unsafe. [INV2]"""
    before = fence_after_min_ms(FenceTiming())
    for field in FenceTiming.__struct_fields__:
        longer = msgspec.structs.replace(FenceTiming(), **{field: 40_000})
        grown = fence_after_min_ms(longer) - before
        assert grown > 0 if field != "fence_after_ms" else grown == 0


@pytest.mark.parametrize(
    "timing",
    [
        FenceTiming(drift_ppm=1_000_000),
        FenceTiming(drift_ppm=2_000_000),
        FenceTiming(ack_window_ms=-1),
        FenceTiming(grace_ms=-40_000),
    ],
)
def test_nonsense_is_refused_rather_than_called_safe(timing: FenceTiming) -> None:
    """All wrong fields are named. [INV2]"""
    with pytest.raises(Invalid) as refused:
        short_of_fence_ms(timing)
    assert len(refused.value.errors) == 1
