"""Each request of a machine as an HTTP call, and what its answer means to the machine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.host.api import status_objects
from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.request_calls import PROMPT, api_call, is_batched
from holdfast.model.access import identity as who
from holdfast.model.encoding.wire import encode
from holdfast.model.errors import FieldError, InvariantBroken, Missing, OutcomeUnknown, Unavailable
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.region import Region
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport, Renew, Renewed
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    Create,
    Forward,
    JudgeNode,
    NodeAction,
    Patch,
    PatchType,
    Propagation,
    ReleaseLease,
    Remove,
    RenewLease,
    RetireLease,
    Term,
    Update,
)
from holdfast.observe.watch_events import Follow

ME = who.controller("status")
GROUP = "/apis/holdfast.dev/v1"
REGION = Region(ObjectMeta(name="eu", resource_version="14"))


def refused(refusal: Refusal) -> HttpAnswer:
    """Return a refusal of a server."""
    code, body, headers = status_objects.of(refusal)
    return HttpAnswer(code, body, headers[status_objects.REASON_HEADER])


@pytest.mark.parametrize(
    "body, method, path, query",
    [
        (Get("replicas", "a", "default"), "GET", "/namespaces/default/replicas/a", {}),
        (Renew("n1", "u", 1), "POST", "/nodes/n1/renewals", {}),
        (HeartbeatQuery(), "GET", "/heartbeats", {}),
        (Create(REGION), "POST", "/regions", {"fieldManager": ME.name}),
        (Update(REGION, "status", "me"), "PUT", "/regions/eu/status", {"fieldManager": "me"}),
        (
            Patch("regions", "", "eu", PatchType.APPLY, {}, force=True, dry_run=True),
            "PATCH",
            "/regions/eu",
            {"fieldManager": ME.name, "force": "true", "dryRun": "All"},
        ),
        (Remove("regions", "", "e/u", dry_run=True), "DELETE", "/regions/e%2Fu", {"dryRun": "All"}),
    ],
)
def test_a_question_goes_to_its_path(
    body: Any, method: str, path: str, query: dict[str, str]
) -> None:
    made = api_call(ME, body)
    assert (made.method, made.path) == (method, GROUP + path)
    assert {k: v for k, v in made.query.items() if k != "fieldValidation"} == query


def test_writes_carry_their_operation_and_their_preconditions() -> None:
    """[E5]"""
    made = api_call(ME, Create(REGION, operation="op-1"))
    assert made.headers["X-Holdfast-Operation"] == "op-1"
    assert made.query["fieldValidation"] == "Strict"
    # A status is sent with its object, of which a newer component knows more than the server.
    assert api_call(ME, Update(REGION, "status")).query["fieldValidation"] == "Ignore"
    assert api_call(ME, Update(REGION)).query["fieldValidation"] == "Strict"
    removal = Remove(
        "regions", "", "eu", "uid-1", "14", Propagation.FOREGROUND, force=True, operation="op-2"
    )
    made = api_call(ME, removal)
    assert made.body is not None
    assert msgspec.json.decode(made.body) == {
        "propagationPolicy": "Foreground",
        "preconditions": {"uid": "uid-1", "resourceVersion": "14"},
        "gracePeriodSeconds": 0,
    }
    assert made.headers["X-Holdfast-Operation"] == "op-2"
    long = who.agent("n" * 200)
    assert len(api_call(long, Create(REGION)).query["fieldManager"]) == 128


@pytest.mark.parametrize("body", [Follow("nodes"), Forward(ME, Get("nodes", "n1")), "hello", None])
def test_what_no_server_could_be_asked_is_a_bug(body: Any) -> None:
    """Nor a request on behalf of others, which only servers may make."""
    assert not is_batched(body)
    with pytest.raises(InvariantBroken):
        api_call(ME, body)
    assert is_batched(RetireLease("s", 1, 1))


@pytest.mark.parametrize(
    "body",
    [
        AcquireLease("s", 1_000),
        RenewLease(Term("s", 1)),
        ReleaseLease(Term("s", 1)),
        JudgeNode("n1", "u", NodeAction.MARK, Term("s", 1)),
    ],
)
def test_leases_and_judgements_travel_alone_on_a_path_that_servers_serve_first(body: Any) -> None:
    """A lease must not expire behind a hundred binds. [E6]"""
    assert isinstance(body, PROMPT)
    assert not is_batched(body)
    made = api_call(ME, body)
    assert (made.method, made.path) == ("POST", f"{GROUP}/terms")
    yes = HttpAnswer(200, b'{"code":200,"revision":7,"replayed":false,"objects":[]}')
    assert made.read(yes) == Accepted(7, ())
    no = Refusal(Reason.STALE_EPOCH, "another process holds it")
    assert made.read(refused(no)).reason is Reason.STALE_EPOCH
    assert isinstance(made.read(HttpAnswer(200, b"hello")), OutcomeUnknown)
    assert isinstance(made.read(HttpAnswer(429, b"{}", "TooManyRequests")), Unavailable)


def test_creates_travel_with_others_unless_they_say_more_than_their_form_can() -> None:
    """A dry run must never arrive as a create."""
    assert is_batched(Create(REGION, operation="op-1"))
    assert not is_batched(Create(REGION, dry_run=True))
    assert not is_batched(Create(REGION, manager="me"))


def test_a_read_finds_the_object_or_that_there_is_none() -> None:
    read = api_call(ME, Get("regions", "eu")).read
    assert read(HttpAnswer(200, encode(REGION))) == GetResult(REGION, 7)
    assert read(HttpAnswer(404, b"{}", Missing.code)) == GetResult(None, 0)
    # A proxy in between knows nothing of our objects.
    assert isinstance(read(HttpAnswer(404, b"{}")), Refusal)
    assert isinstance(read(HttpAnswer(404, b"<html>")), Missing)
    for broken in (HttpAnswer(200, b"<html>"), HttpAnswer(502, b""), HttpAnswer(503, b"{}")):
        assert isinstance(read(broken), Unavailable)


def test_a_write_is_accepted_refused_or_in_doubt() -> None:
    """[N1.1]"""
    read = api_call(ME, Create(REGION)).read
    assert read(HttpAnswer(201, encode(REGION))) == Accepted(7, (REGION,))
    assert read(HttpAnswer(200, b'{"kind":"Status","status":"Success"}')) == Accepted(0)
    for doubt in (
        HttpAnswer(200, b"<html>"),
        HttpAnswer(500, b"{}"),
        HttpAnswer(504, b"{}", "OutcomeUnknown"),
    ):
        assert isinstance(read(doubt), OutcomeUnknown)
    for never in (HttpAnswer(429, b"{}", "TooManyRequests"), HttpAnswer(503, b"{}", "Unavailable")):
        assert isinstance(read(never), Unavailable)


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(Reason.STALE_EPOCH, "epoch 3, not 2", {"epoch": "3", "scope": "s"}),
        Refusal(Reason.NODE_FULL, "node n1 is full", {"node": "n1"}),
        Refusal(Reason.MISSING, "there is no such replica"),
        Refusal(Reason.UNAUTHENTICATED, "nobody is known here"),
        Refusal(Reason.INVALID, "two things", {}, (FieldError("spec.x", "", "must be y"),)),
    ],
)
def test_a_refusal_arrives_as_the_authority_made_it(refusal: Refusal) -> None:
    """A component never parses a message."""
    assert api_call(ME, Create(REGION)).read(refused(refusal)) == refusal


@pytest.mark.parametrize(
    "code, reason",
    [(400, Reason.INVALID), (401, Reason.UNAUTHENTICATED), (403, Reason.NOT_ALLOWED)],
)
def test_a_refusal_without_our_reason_is_sorted_by_its_code(code: int, reason: Reason) -> None:
    verdict = api_call(ME, Create(REGION)).read(HttpAnswer(code, b'{"message":"no"}'))
    assert verdict == Refusal(reason, "no")


def test_renewals_and_heartbeats_are_read_as_they_were_said() -> None:
    renewed = Renewed("n1", "u", 2, NodePhase.READY, 0, FenceTiming())
    read = api_call(ME, Renew("n1", "u", 2)).read
    assert read(HttpAnswer(200, msgspec.json.encode(renewed))) == renewed
    assert isinstance(read(HttpAnswer(200, b"{}")), OutcomeUnknown)
    heard = HeartbeatReport("one", 5, {"n1": 3}, FenceTiming())
    read = api_call(ME, HeartbeatQuery()).read
    assert read(HttpAnswer(200, msgspec.json.encode(heard))) == heard
    assert isinstance(read(HttpAnswer(200, b"{}")), Unavailable)
    assert isinstance(read(HttpAnswer(403, b'{"message":"no"}', "NotAllowed")), Refusal)


def test_no_retry_is_advised_for_a_record_that_only_a_person_can_mend() -> None:
    """A client like kubectl repeats whatever has a Retry-After. [E5]"""
    for code, is_told in ((None, True), (Reason.RECORD_UNREADABLE, False)):
        number, _, headers = status_objects.of(Unavailable("no", code=code))
        assert (number, "Retry-After" in headers) == (503, is_told)
