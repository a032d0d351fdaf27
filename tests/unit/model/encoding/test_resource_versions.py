"""Versions: which revision they stand for, how much of it, and what is none."""

from __future__ import annotations

import pytest

from holdfast.model.encoding.resource_versions import (
    VERSION_MAX,
    Version,
    complete_revision,
    complete_version,
    object_revision,
    object_version,
    parse_version,
)
from holdfast.model.errors import Invalid, InvariantBroken

REVISIONS = (1, 2, 7, 10**6, VERSION_MAX // 2)


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_version_says_its_revision_and_how_much_of_it_was_seen(revision: int) -> None:
    """[C8, INV10]"""
    one, whole = object_version(revision), complete_version(revision)
    assert parse_version(one) == Version(revision, is_complete=False)
    assert parse_version(whole) == Version(revision, is_complete=True)
    assert object_revision(one) == complete_revision(whole) == revision


def test_versions_grow_with_their_revisions_and_with_what_was_seen() -> None:
    """Clients may compare them as numbers. [INV10]"""
    versions = [
        f(revision) for revision in range(1, 20) for f in (object_version, complete_version)
    ]
    assert [int(version) for version in versions] == sorted({int(version) for version in versions})


@pytest.mark.parametrize("revision", REVISIONS)
def test_neither_sort_of_version_is_taken_for_the_other(revision: int) -> None:
    """[INV10]"""
    with pytest.raises(Invalid, match="not the version of an object"):
        object_revision(complete_version(revision))
    with pytest.raises(Invalid, match="not the version of a list"):
        complete_revision(object_version(revision))


def test_zero_means_any_state_and_is_the_version_of_nothing() -> None:
    """[C8]"""
    assert parse_version("0").is_any
    assert parse_version("000").is_any
    assert not parse_version("1").is_any
    assert not parse_version("2").is_any
    # The empty store, before its first transaction, can be listed too.
    assert complete_revision(complete_version(0)) == 0
    for misuse in (object_revision, complete_revision):
        with pytest.raises(Invalid):
            misuse("0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-1",
        "-2",
        "+2",
        "2 ",
        "1.0",
        "1e3",
        "0x10",
        "1_000",
        "abc",
        "uncommitted",
        "٤",
        "²",
        "2\n",
        "\0",
        str(VERSION_MAX + 1),
        "9" * 21,
        "9" * 100_000,
    ],
)
def test_what_is_no_number_of_64_bits_is_no_version(text: str) -> None:
    """The error names the field, a bounded piece of the value, and the rule. [A2]"""
    with pytest.raises(Invalid, match="whole number") as refused:
        parse_version(text, "metadata.resourceVersion")
    (error,) = refused.value.errors
    assert error.path == "metadata.resourceVersion"
    assert len(str(error)) < 300


def test_no_revision_is_made_up() -> None:
    """What was never written has no version; to give it one would be a bug of ours. [A2]"""
    for revision in (0, -1):
        with pytest.raises(InvariantBroken):
            object_version(revision)
    with pytest.raises(InvariantBroken):
        complete_version(-1)
