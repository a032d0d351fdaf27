"""Revocations: how the authority completes, keeps and creates them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.commit.context import PlaneSettings
from holdfast.model.access import identity as who
from holdfast.model.access.credential_life import revocation_name
from holdfast.model.kinds.access import Revocation, RevocationSpec
from holdfast.model.kinds.tenant import PriorityClass
from holdfast.model.meta import ObjectMeta, OwnerReference
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Patch, PatchType, Remove, Update
from tests.furnished import ANN, GARBAGE, Furnished
from tests.plane import ADMIN, NODES, SCHEDULER, WORKLOADS, refused

SERVER = who.server("one")
DAY_MS = 86_400_000
NODE_KEY = "objects/revocations/system.node.node-b"


def revocation(user: str = "ann", **spec: Any) -> Revocation:
    made = RevocationSpec(user=user, **spec)
    return Revocation(ObjectMeta(name=revocation_name(user)), spec=made)


def test_the_moment_is_the_authoritys_and_so_is_the_end() -> None:
    """It can be held against the moment at which a certificate was issued."""
    it = Furnished()
    made = it.yes(ADMIN, Create(revocation()))
    assert made.spec.before == it.plane.at()
    assert made.spec.expires == it.plane.at() + timedelta(days=366)


def test_what_is_revoked_again_is_so_until_the_later_moment() -> None:
    it = Furnished()
    made = it.yes(ADMIN, Create(revocation()))
    it.plane.elapsed_ms += 60_000
    body = {"spec": {"before": None, "reason": "again"}}
    again = Patch("revocations", "", made.name, PatchType.MERGE, body)
    after = it.yes(ADMIN, again)
    assert after.spec.before == it.plane.at() > made.spec.before
    assert after.spec.expires > made.spec.expires
    earlier = msgspec.structs.replace(after.spec, before=made.spec.before)
    refused(it.ask(ADMIN, Update(msgspec.structs.replace(after, spec=earlier))), Reason.INVALID)


def test_what_is_not_issued_yet_cannot_be_revoked() -> None:
    it = Furnished()
    later = it.plane.at(3_600)
    refusal = refused(it.ask(ADMIN, Create(revocation(before=later))), Reason.NOT_ALLOWED)
    assert refusal.details["field"] == "spec.before"


@pytest.mark.parametrize("identity", [ANN, SCHEDULER, WORKLOADS, NODES, SERVER, who.agent("a")])
def test_only_operators_revoke(identity: who.Identity) -> None:
    it = Furnished()
    answer = it.ask(identity, Create(revocation("bob")))
    assert answer.reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED)


def test_a_node_that_is_deleted_takes_its_certificates_along() -> None:
    """In the same transaction, or it could come back by the certificate that it has."""
    it = Furnished()
    it.plane.node("node-b")
    before = it.plane.store.revision
    it.yes(ADMIN, Remove("nodes", "", "node-b"))
    made = it.plane.read(NODE_KEY)
    assert (made.spec.user, made.spec.before) == ("system:node:node-b", it.plane.at())
    assert it.plane.store.get(NODE_KEY).modified == before + 1 == it.plane.store.revision
    # It joins again and is deleted again.
    it.plane.elapsed_ms += 1_000
    it.plane.node("node-b")
    it.yes(ADMIN, Remove("nodes", "", "node-b"))
    after = it.plane.read(NODE_KEY)
    assert (after.spec.before, after.metadata.uid) == (it.plane.at(), made.metadata.uid)


def test_a_node_that_cannot_be_deleted_keeps_its_certificates() -> None:
    it = Furnished()
    it.running()
    refused(it.ask(ADMIN, Remove("nodes", "", "node-a")), Reason.NOT_ALLOWED)
    assert it.plane.read("objects/revocations/system.node.node-a") is None


@pytest.mark.parametrize("user", ["ann", "admin", "system:scheduler:one"])
def test_a_revocation_cannot_be_deleted_early(user: str) -> None:
    """Not by an administrator either, until every credential that it ended has expired."""
    it = Furnished()
    operator = who.Identity(name="ann", groups=(who.OPERATORS,))
    made = it.yes(operator, Create(revocation(user)))
    for identity in (operator, ADMIN):
        refusal = refused(
            it.ask(identity, Remove("revocations", "", made.name)), Reason.NOT_ALLOWED
        )
        assert refusal.details["user"] == user
        assert "issue a new token or certificate" in refusal.message
    it.plane.elapsed_ms += (366 + 60) * 86_400_000 + 10_000
    it.yes(ADMIN, Remove("revocations", "", made.name))


def test_a_revocation_outlives_the_owners_that_it_names() -> None:
    """Or deleting those would make it a leak, which a collector may take away."""
    it = Furnished()
    owner = it.yes(ADMIN, Create(PriorityClass(ObjectMeta(name="owner"))))
    named = OwnerReference(
        api_version="holdfast.dev/v1", kind="PriorityClass", name="owner", uid=owner.metadata.uid
    )
    metadata = ObjectMeta(name=revocation_name("bob"), owner_references=(named,))
    made = it.yes(ADMIN, Create(Revocation(metadata, spec=RevocationSpec(user="bob"))))
    it.yes(ADMIN, Remove("priorityclasses", "", "owner"))
    refused(it.ask(SERVER, Remove("revocations", "", made.name)), Reason.NOT_ALLOWED)
    assert it.plane.get(made) is not None


def test_a_revocation_outlives_the_longest_credential_also_when_lives_grow() -> None:
    it = Furnished(settings=PlaneSettings(certificate_life_ms=DAY_MS, token_life_ms=3 * DAY_MS))
    made = it.yes(ADMIN, Create(revocation()))
    assert made.spec.expires == it.plane.at() + timedelta(days=3)
    gone = Remove("revocations", "", made.name, made.metadata.uid)
    it.plane.settings = PlaneSettings(certificate_life_ms=900 * DAY_MS, token_life_ms=DAY_MS)
    it.plane.elapsed_ms += (3 + 60) * DAY_MS + 10_000
    it.plane.authority = it.plane.new_authority()
    refused(it.ask(SERVER, gone), Reason.NOT_ALLOWED)


def test_a_revocation_is_removed_when_all_that_it_ended_has_expired() -> None:
    """By a server, and by no other client before that."""
    it = Furnished()
    made = it.yes(ADMIN, Create(revocation()))
    gone = Remove("revocations", "", made.name, made.metadata.uid)
    refused(it.ask(SERVER, gone), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += (366 + 60) * 86_400_000 + 10_000
    answer = it.ask(GARBAGE, gone)
    assert answer.reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED)
    it.yes(SERVER, gone)
    assert it.plane.get(made) is None
