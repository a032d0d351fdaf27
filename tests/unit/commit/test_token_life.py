"""The plane limits the life of tokens, whatever their creators ask for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.commit.context import PlaneSettings
from holdfast.commit.objects.admission import CHANGES_ANNOTATION
from holdfast.model.kinds.access import Token, TokenPurpose, TokenSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Create, Remove, Update
from tests.furnished import GARBAGE, Furnished
from tests.plane import ADMIN, accepted, refused

HASH = "sha256:" + "0" * 64
WEEK_MS = 7 * 86_400_000


def token(expires: datetime | None, **spec: Any) -> Token:
    made = TokenSpec(hash=HASH, expires=expires, **{"user": "ann", **spec})
    return Token(ObjectMeta(name="t", namespace=SYSTEM_NAMESPACE), spec=made)


def furnished() -> Furnished:
    return Furnished(settings=PlaneSettings(token_life_ms=WEEK_MS))


@pytest.mark.parametrize("after_s", [None, 86_400.0 * 3_650, 86_400.0 * 7 + 1])
def test_a_token_ends_when_the_plane_says_at_the_latest(after_s: float | None) -> None:
    """And a warning says so to its creator."""
    it = furnished()
    asked = it.plane.at(after_s) if after_s is not None else None
    answer = it.ask(ADMIN, Create(token(asked)))
    made = accepted(answer)
    assert made.spec.expires == it.plane.at() + timedelta(days=7)
    assert "the longest life" in made.metadata.annotations[CHANGES_ANNOTATION]
    (warning,) = answer.warnings
    assert "the longest life" in warning


def test_a_shorter_life_is_left_as_it_is() -> None:
    it = furnished()
    ends = it.plane.at(3_600)
    made = it.yes(ADMIN, Create(token(ends)))
    assert (made.spec.expires, made.metadata.annotations) == (ends, {})


def test_a_join_token_lives_for_a_month_at_most_and_never_without_an_end() -> None:
    it = Furnished()
    join = {"purpose": TokenPurpose.JOIN, "user": "", "single_use": True}
    refused(it.ask(ADMIN, Create(token(None, **join))), Reason.INVALID)
    made = it.yes(ADMIN, Create(token(it.plane.at(86_400 * 300), **join)))
    assert made.spec.expires == it.plane.at() + timedelta(days=30)


def test_a_token_that_is_written_again_keeps_its_end() -> None:
    """A file without one does not mean to change it, and no writer can extend it."""
    it = furnished()
    made = it.yes(ADMIN, Create(token(None)))
    it.plane.elapsed_ms += 60_000
    for expires in (made.spec.expires, None):
        spec = msgspec.structs.replace(made.spec, expires=expires, revoked=expires is None)
        made = it.yes(ADMIN, Update(msgspec.structs.replace(made, spec=spec)))
        assert made.spec.expires == it.plane.at(-60) + timedelta(days=7)
    later = msgspec.structs.replace(made.spec, expires=it.plane.at(86_400 * 7))
    refused(it.ask(ADMIN, Update(msgspec.structs.replace(made, spec=later))), Reason.INVALID)


def test_a_token_whose_longest_life_is_over_is_collected() -> None:
    """Also when that was lowered after it was made: it counts nowhere any more."""
    it = Furnished()
    it.yes(ADMIN, Create(token(None)))
    gone = Remove("tokens", SYSTEM_NAMESPACE, "t")
    it.plane.elapsed_ms += WEEK_MS + 10_000
    refused(it.ask(GARBAGE, gone), Reason.NOT_ALLOWED)
    it.plane.settings = PlaneSettings(token_life_ms=WEEK_MS)
    it.plane.authority = it.plane.new_authority()
    it.yes(GARBAGE, gone)
