"""When the format of a plane may be raised."""

from __future__ import annotations

import pytest

from holdfast.model.plane_format import InstalledPart, Upgrade, is_older


@pytest.mark.parametrize(
    "version, than, expected",
    [
        ("0.1.0", "0.2.0", True),
        ("0.9.1", "0.10.0", True),
        ("", "0.1.0", True),
        ("unknown", "0.1.0", True),
        ("0.2.0", "0.2.0", False),
        ("0.2.0", "0.1.0", False),
        ("0.2.0.dev3", "0.2.0", False),
        ("1.0", "1.0.1", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, than: str, expected: bool) -> None:
    """One that is not said was built before versions were said."""
    assert is_older(version, than) is expected


def upgrade(*parts: InstalledPart, current: int = 1, newest: int = 2) -> Upgrade:
    return Upgrade(current, newest, "0.2.0", (InstalledPart("server", "s1", "0.2.0"), *parts))


@pytest.mark.parametrize("part", ["server", "scheduler", "controller", "agent"])
@pytest.mark.parametrize("version", ["0.1.9", ""])
def test_a_part_of_an_older_version_that_lives_keeps_the_format(part: str, version: str) -> None:
    found = upgrade(InstalledPart(part, "it", version))
    assert f"{part} it ({version or 'unknown'})" in found.refusal()
    assert [it.name for it in found.older()] == ["it"]


def test_a_part_that_is_gone_or_newer_is_not_waited_for() -> None:
    gone, newer = (
        InstalledPart("agent", "a", "0.1.0", is_gone=True),
        InstalledPart("agent", "b", "0.3.0"),
    )
    assert upgrade(gone, newer).refusal() == ""


def test_a_format_that_is_the_newest_is_not_raised() -> None:
    assert "nothing to finish" in upgrade(current=2).refusal()


def test_of_many_older_parts_some_are_named() -> None:
    old = [InstalledPart("agent", f"n{number}", "0.1.0") for number in range(25)]
    assert "n9 (0.1.0) and 15 more" in upgrade(*old).refusal()
