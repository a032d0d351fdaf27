"""Addresses keep their list, and newcomers fill what is free."""

from __future__ import annotations

import pytest

from holdfast.correct import endpoints
from holdfast.correct.endpoints import split_lists
from holdfast.model.kinds.endpoints import Endpoint, Endpoints, list_name, list_of
from holdfast.model.meta import ObjectMeta


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "ENDPOINTS_MAX", 2)


def entries(names: str) -> list[Endpoint]:
    return [Endpoint(it) for it in names]


def shared(known: dict[int, str], names: str) -> dict[int, str]:
    lists = {
        number: Endpoints(metadata=ObjectMeta(name="web"), endpoints=tuple(entries(of)))
        for number, of in known.items()
    }
    out = split_lists(lists, entries(names))
    return {number: "".join(it.replica for it in of) for number, of in out.items()}


@pytest.mark.parametrize(
    "known, names, out",
    [
        ({}, "", {}),
        ({0: "a"}, "", {0: ""}),
        ({}, "ab", {0: "ab"}),
        ({}, "abcde", {0: "ab", 1: "cd", 2: "e"}),
        ({0: "ab", 1: "cd"}, "bcd", {0: "b", 1: "cd"}),
        ({0: "ab", 1: "cd"}, "abd", {0: "ab", 1: "d"}),
        ({0: "ab", 1: "cd"}, "ab", {0: "ab", 1: ""}),
        ({0: "b", 1: "cd"}, "abcde", {0: "ab", 1: "cd", 2: "e"}),
        ({1: "cd"}, "abcd", {0: "ab", 1: "cd"}),
    ],
)
def test_listed_addresses_stay_and_new_ones_take_the_first_free_place(
    known: dict[int, str], names: str, out: dict[int, str]
) -> None:
    assert shared(known, names) == out
    # Once it is written it stays so.
    assert shared(out, names) == out


def test_lists_are_named_after_their_workload() -> None:
    for number in (0, 1, 17):
        assert list_of(list_name("web-1", number)) == ("web-1", number)
