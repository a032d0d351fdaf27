"""Time zones as this machine knows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.host.component.time_zones import zones

SUMMER, WINTER = datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "name, summer_h, winter_h",
    [
        ("UTC", 0, 0),
        ("Europe/Berlin", 2, 1),
        ("America/New_York", -4, -5),
        ("Asia/Kolkata", 5.5, 5.5),
    ],
)
def test_a_zone_says_how_far_its_clocks_are_ahead(
    name: str, summer_h: float, winter_h: float
) -> None:
    """In summer and in winter."""
    ahead = zones(name)
    if ahead is None:
        pytest.skip(f"this machine has no data on {name}")
    assert ahead(SUMMER) == timedelta(hours=summer_h)
    assert ahead(WINTER) == timedelta(hours=winter_h)


@pytest.mark.parametrize("name", ["Mars/Olympus", "Europe", "../../etc/passwd", "/etc/passwd", ""])
def test_what_is_no_zone_is_not_known(name: str) -> None:
    """Neither a directory of the database nor a file somewhere else."""
    assert zones(name) is None
