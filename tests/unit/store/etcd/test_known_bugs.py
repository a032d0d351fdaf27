"""The warnings about versions of etcd that lack known fixes."""

from __future__ import annotations

import pytest

from holdfast.store.etcd.known_bugs import KNOWN_BUGS, RECOMMENDED, reads_are_fresh, warnings_for

LOSES = "CAN LOSE ACKNOWLEDGED WRITES"


@pytest.mark.parametrize(
    "version, issues, loses",
    [
        ("3.4.20", {14370, 15220, 15271, 17529, 19179, 20418, 20547}, True),
        ("3.4.23", {15220, 15271, 17529, 19179, 20418, 20547}, False),
        ("3.4.43", set(), False),
        ("3.5.0", {13766, 14370, 15220, 15271, 17529, 19179, 20418, 20547}, True),
        ("3.5.2", {13766, 14370, 15220, 15271, 17529, 19179, 20418, 20547}, True),
        ("3.5.3", {14370, 15220, 15271, 17529, 19179, 20418, 20547}, True),
        ("3.5.8", {17529, 19179, 20418, 20547}, False),
        ("3.5.27", {20418}, False),
        ("3.6.0", {20418, 20547}, False),
        ("3.6.8", {20418}, False),
    ],
)
def test_each_missing_fix_is_named(version: str, issues: set[int], loses: bool) -> None:
    text = " ".join(warnings_for(version))
    assert {bug.issue for bug in KNOWN_BUGS if f"etcd#{bug.issue}" in text} == issues
    assert (LOSES in text) is loses
    # 3.4.43 has every fix we know of and is still older than what we recommend.
    assert "3.5.28" in text
    assert reads_are_fresh(version) is (20418 not in issues)


@pytest.mark.parametrize("version", ["3.5.28", "3.5.30", "3.6.9", "3.7.0", "4.0.0"])
def test_a_version_with_all_fixes_brings_no_warning(version: str) -> None:
    assert warnings_for(version) == ()
    assert reads_are_fresh(version)


def test_what_cannot_be_judged_is_not_trusted() -> None:
    """An unknown or ancient version gets a warning, and its reads are confirmed."""
    for version in ("", "unknown", "3.3.27"):
        assert len(warnings_for(version)) == 1
        assert not reads_are_fresh(version)


def test_what_we_recommend_has_every_fix() -> None:
    assert warnings_for(".".join(map(str, RECOMMENDED))) == ()
