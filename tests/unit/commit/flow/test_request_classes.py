"""The class of a request, and whose share it uses."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.commit.flow.request_classes import (
    Flow,
    RequestClass,
    RequestPurpose,
    classify,
    purpose_of,
)
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import HeartbeatQuery, Renew
from holdfast.model.requests import (
    AcquireLease,
    Create,
    JudgeNode,
    NodeAction,
    RenewLease,
    RetireLease,
    Term,
)

ANN = Identity("ann", groups=("tenant:acme",), tenants=("acme",))
ROOT = Identity("root", groups=(who.ADMINS,))


@pytest.mark.parametrize(
    "identity, purpose, expected",
    [
        (
            who.agent("n1"),
            RequestPurpose.LIFELINE,
            (RequestClass.LIFELINE, "agents", "system:node:n1"),
        ),
        (who.agent("n1"), RequestPurpose.WRITE, (RequestClass.SYSTEM, "agents", "system:node:n1")),
        (who.agent("n1"), RequestPurpose.SWEEP, (RequestClass.SYSTEM, "agents", "system:node:n1")),
        (
            who.scheduler("main"),
            RequestPurpose.LIFELINE,
            (RequestClass.LIFELINE, "schedulers", "system:scheduler:main"),
        ),
        (
            who.controller("nodes"),
            RequestPurpose.READ,
            (RequestClass.SYSTEM, "controllers", "system:controller:nodes"),
        ),
        (ROOT, RequestPurpose.WRITE, (RequestClass.OPERATOR, "operators", "root")),
        (ROOT, RequestPurpose.LIFELINE, (RequestClass.OPERATOR, "operators", "root")),
        (ROOT, RequestPurpose.SWEEP, (RequestClass.BACKGROUND, "operators", "root")),
        (ANN, RequestPurpose.READ, (RequestClass.TENANT, "acme", "ann")),
        (ANN, RequestPurpose.SWEEP, (RequestClass.BACKGROUND, "acme", "ann")),
        (ANN, RequestPurpose.LIFELINE, (RequestClass.TENANT, "acme", "ann")),
        (Identity(who.ANONYMOUS), RequestPurpose.READ, (RequestClass.BACKGROUND, "anonymous", "")),
        (
            Identity("system:nobody-known"),
            RequestPurpose.LIFELINE,
            (RequestClass.BACKGROUND, "anonymous", ""),
        ),
    ],
)
def test_the_class_follows_from_the_caller_and_the_purpose(
    identity: Identity, purpose: RequestPurpose, expected: tuple[RequestClass, str, str]
) -> None:
    """No caller can raise its class: the same request of a person never has a component's. [E6]"""
    assert classify(identity, purpose) == Flow(*expected)


@pytest.mark.parametrize("tenants", [(), ("acme", "other"), ("*",)])
def test_a_user_of_no_single_tenant_has_a_share_of_their_own(
    tenants: tuple[str, ...],
) -> None:
    """Otherwise a user could use up the share of a tenant of their choice. [G1]"""
    found = classify(Identity("bob", tenants=tenants), RequestPurpose.READ)
    assert found == Flow(RequestClass.TENANT, "user:bob", "bob")


@pytest.mark.parametrize(
    "body, expected",
    [
        (Renew("n1", "u", 1), RequestPurpose.LIFELINE),
        (HeartbeatQuery(), RequestPurpose.LIFELINE),
        (AcquireLease("scheduler:main", 1_000), RequestPurpose.LIFELINE),
        (RenewLease(Term("scheduler:main", 1)), RequestPurpose.LIFELINE),
        (
            JudgeNode("n1", "u", NodeAction.SUSPECT, Term("controller:nodes", 1)),
            RequestPurpose.LIFELINE,
        ),
        (RetireLease("scheduler:old", 1, 1), RequestPurpose.WRITE),
        (Create(Tenant(ObjectMeta(name="acme"))), RequestPurpose.WRITE),
        (object(), RequestPurpose.READ),
    ],
)
def test_what_a_typed_request_does_is_read_off_its_type(
    body: Any, expected: RequestPurpose
) -> None:
    """Leases, renewals and fencing come first; tidying up old leases does not. [E6]"""
    assert purpose_of(body) is expected
