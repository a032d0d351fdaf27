"""Kinds as people type them."""

from __future__ import annotations

import pytest

from holdfast.cli.documents import kind_and_name, kind_named
from holdfast.cli.exit_codes import UsageError
from holdfast.model.registry import KINDS


def test_every_kind_has_all_its_names() -> None:
    """[A1]"""
    for kind in KINDS:
        names = (kind.name, kind.plural, kind.singular, *kind.short_names)
        assert {kind_named(name).plural for name in names} == {kind.plural}
    assert kind_named("workloads.holdfast.dev").plural == "workloads"


@pytest.mark.parametrize(
    "text, hint",
    [("worklaod", "did you mean workloads?"), ("x", "it must be one of workloads, replicas")],
)
def test_a_kind_that_is_none_is_reported_with_what_comes_near(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"KIND: unknown kind '{text}'; ") as caught:
        kind_named(text)
    assert hint in caught.value.message


def test_a_name_may_stand_behind_a_slash_and_then_nowhere_else() -> None:
    assert kind_and_name("wl/hello", "")[1] == "hello"
    assert kind_and_name("wl", "hello")[1] == "hello"
    with pytest.raises(UsageError, match="already contains a name"):
        kind_and_name("wl/hello", "other")
    with pytest.raises(UsageError, match="after the slash"):
        kind_and_name("wl/", "")
