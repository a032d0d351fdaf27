"""The format of the plane is raised by one, once, by an operator, with a reason."""

from __future__ import annotations

import pytest

from holdfast.model import keys, plane_format
from holdfast.model.access.identity import OPERATORS, Identity
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.plane_format import FORMAT, PlaneFormat
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Create, RaiseFormat
from tests.furnished import ANN, Furnished
from tests.plane import refused

OLGA = Identity(name="olga", groups=(OPERATORS,))
NEXT = RaiseFormat(FORMAT + 1, "all parts run the next version")


@pytest.fixture
def it(monkeypatch: pytest.MonkeyPatch) -> Furnished:
    """A plane of this version, served by one of the next version."""
    furnished = Furnished()
    monkeypatch.setattr(plane_format, "FORMAT", FORMAT + 1)
    return furnished


def format_of(it: Furnished) -> int:
    found: PlaneFormat = it.plane.read(keys.plane_format())
    return found.format


def test_an_operator_raises_it_once_and_it_is_in_the_audit(it: Furnished) -> None:
    """[A8]"""
    assert isinstance(it.ask(OLGA, NEXT), Accepted)
    assert format_of(it) == FORMAT + 1
    (said,) = it.plane.read(keys.audit_stamp()).mutations
    assert (said.who, said.verb, said.reason) == ("olga", "RaiseFormat", NEXT.word)
    refused(it.ask(OLGA, NEXT), Reason.STALE_OBJECT)
    assert format_of(it) == FORMAT + 1


def test_an_older_server_writes_nothing_from_then_on(
    it: Furnished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it was running all the time."""
    older = it.plane.authority
    it.plane.authority = it.plane.new_authority()
    assert isinstance(it.ask(OLGA, NEXT), Accepted)
    it.plane.authority = older
    monkeypatch.setattr(plane_format, "FORMAT", FORMAT)
    answer = it.plane.ask(OLGA, Create(Tenant(ObjectMeta(name="late"))))
    assert isinstance(answer, Unavailable)
    assert f"format {FORMAT + 1}" in answer.message


def test_what_does_not_follow_is_unknown_or_has_no_reason_is_refused(it: Furnished) -> None:
    refused(it.ask(OLGA, RaiseFormat(FORMAT, "again")), Reason.STALE_OBJECT)
    refused(it.ask(OLGA, RaiseFormat(FORMAT + 2, "further")), Reason.INVALID)
    refused(it.ask(OLGA, RaiseFormat(FORMAT + 1, " ")), Reason.INVALID)
    assert format_of(it) == FORMAT


def test_only_operators_may(it: Furnished) -> None:
    refused(it.ask(ANN, NEXT), Reason.NOT_ALLOWED)
    assert format_of(it) == FORMAT
