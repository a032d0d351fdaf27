"""Requests and verdicts between servers: nothing is lost or misread."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.host.server.forwarding import (
    BODY_BYTES_MAX,
    decode_forward,
    decode_verdict,
    encode_forward,
    encode_verdict,
)
from holdfast.model.access.identity import Identity
from holdfast.model.errors import (
    Expired,
    FieldError,
    HoldfastError,
    Invalid,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import (
    REQUESTS,
    Accepted,
    Create,
    Forward,
    Patch,
    PatchType,
    Term,
    Update,
)
from tests.furnished import Furnished
from tests.unit.commit.test_authority_table import EXAMPLES

ANN = Identity("ann", ("devs", "tenant:acme"), ("acme",))


@pytest.mark.parametrize("request_type", REQUESTS, ids=lambda cls: cls.__name__)
def test_every_request_arrives_as_it_was_sent_and_its_verdict_too(request_type: type[Any]) -> None:
    it = Furnished()
    it.plane.quota(hard={"cpu": "64"})
    identity, request = EXAMPLES[request_type](it)
    forward = Forward(identity, request)
    line = encode_forward(forward)
    assert line.index(b"\n") == len(line) - 1
    arrived = decode_forward(line)
    assert arrived == forward
    assert type(arrived.request) is request_type
    verdict = it.plane.ask(arrived.identity, arrived.request)
    assert isinstance(verdict, Accepted), verdict
    assert decode_verdict(encode_verdict(verdict)) == verdict


@pytest.mark.parametrize("request_type", [Create, Update])
@pytest.mark.parametrize("before", [b'"spec":{', b'"metadata":{'])
def test_an_object_with_a_field_of_a_newer_version_is_left_to_the_server_that_knows_it(
    request_type: type[Any], before: bytes
) -> None:
    """The caller would not learn that a field was dropped."""
    workload = Workload(
        ObjectMeta(name="web", namespace="acme"),
        spec=WorkloadSpec(template=Template(command=("sleep", "1"))),
    )
    line = encode_forward(Forward(ANN, request_type(workload)))
    assert decode_forward(line).request.object == workload
    # A default that the other version writes and this one leaves out is nothing new.
    assert (
        decode_forward(line.replace(b'"spec":{', b'"spec":{"type":"Service",')).request.object
        == workload
    )
    newer = line.replace(before, before + b'"laterSeconds":30,')
    with pytest.raises(Invalid, match="Workload web has fields of a newer version"):
        decode_forward(newer)


def test_an_identity_arrives_with_its_groups_and_namespaces() -> None:
    request = Patch("workloads", "acme", "web", PatchType.JSON, [{"op": "test", "value": None}])
    assert decode_forward(encode_forward(Forward(ANN, request))) == Forward(ANN, request)


def test_a_refusal_keeps_its_reason_details_and_causes() -> None:
    causes = (FieldError("spec.replicas", "-1", "must be at least 0"),)
    refusal = Refusal(Reason.INVALID, "no\nsuch thing", {"field": "replicas"}, causes)
    line = encode_verdict(refusal)
    assert line.count(b"\n") == 1
    assert decode_verdict(line) == refusal


@pytest.mark.parametrize(
    "error, kind",
    [
        (Unavailable("full", code="Full"), Unavailable),
        (OutcomeUnknown("silence"), OutcomeUnknown),
        (Expired("gone"), OutcomeUnknown),
    ],
)
def test_only_what_surely_did_not_happen_is_called_unavailable(
    error: HoldfastError, kind: type[HoldfastError]
) -> None:
    """[N1.1]"""
    found = decode_verdict(encode_verdict(error))
    assert type(found) is kind
    assert (found.message, found.code) == (error.message, error.code)  # type: ignore[union-attr]


@pytest.mark.parametrize("line", [b"", b"{}", b'{"struct":"Maybe"}', b"\xff", b"[" * 100_000])
def test_an_unknown_verdict_may_be_a_yes(line: bytes) -> None:
    """[N1.1]"""
    assert isinstance(decode_verdict(line), OutcomeUnknown)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"identity":{"name":"ann"},"request":{"struct":"Teleport"}}',
        b'{"identity":{"name":"ann"},"request":{"struct":"Forward","request":{}}}',
        b'{"identity":{"name":"ann"},"request":{"struct":"Create","object":{"kind":"Moon"}}}',
        b'{"identity":{"name":7},"request":{"struct":"RenewLease","term":{"scope":"x","epoch":1}}}',
    ],
)
def test_what_is_no_request_is_invalid_and_a_forward_is_not_forwarded_again(line: bytes) -> None:
    with pytest.raises(Invalid):
        decode_forward(line)


@pytest.mark.parametrize(
    "request_",
    [
        Term("no-request", 1),
        Patch("workloads", "acme", "web", PatchType.MERGE, {"x": "y" * BODY_BYTES_MAX}),
        Patch("workloads", "acme", "web", PatchType.MERGE, {"x": "\ud800"}),
        Patch("workloads", "acme", "web", PatchType.MERGE, {"x": object()}),
    ],
    ids=["no request", "too large", "no text", "no JSON"],
)
def test_what_cannot_travel_surely_did_not_happen(request_: Any) -> None:
    """So it is decided where it was received."""
    with pytest.raises(Unavailable):
        encode_forward(Forward(ANN, request_))
