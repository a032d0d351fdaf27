"""Revocations as the authority completes, keeps and makes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.model import identity as who
from holdfast.model.kinds.revocation import Revocation, RevocationSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Patch, PatchType, Remove, Update
from holdfast.model.revocations import revocation_name
from tests.furnished import ANN, GARBAGE, Furnished
from tests.plane import ADMIN, NODES, SCHEDULER, WORKLOADS, refused

SERVER = who.server("one")
NODE_KEY = "objects/revocations/system.node.node-b"


def revocation(user: str = "ann", **spec: Any) -> Revocation:
    made = RevocationSpec(user=user, **spec)
    return Revocation(ObjectMeta(name=revocation_name(user)), spec=made)


def test_the_moment_is_the_authoritys_and_so_is_the_end() -> None:
    """It can be held against the moment at which a certificate was issued. [B5]"""
    it = Furnished()
    made = it.yes(ADMIN, Create(revocation()))
    assert made.spec.before == it.plane.at()
    assert made.spec.expires == it.plane.at() + timedelta(days=366)


def test_what_is_revoked_again_is_so_until_the_later_moment() -> None:
    """[B5]"""
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
    """[B4]"""
    it = Furnished()
    later = it.plane.at(3_600)
    refusal = refused(it.ask(ADMIN, Create(revocation(before=later))), Reason.NOT_ALLOWED)
    assert refusal.details["field"] == "spec.before"


@pytest.mark.parametrize("identity", [ANN, SCHEDULER, WORKLOADS, NODES, SERVER, who.agent("a")])
def test_only_operators_revoke(identity: who.Identity) -> None:
    """[A9, C6.7]"""
    it = Furnished()
    answer = it.ask(identity, Create(revocation("bob")))
    assert answer.reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED)


def test_a_node_that_is_deleted_takes_its_certificates_along() -> None:
    """In the same transaction, or it could come back by the certificate that it has. [C6.8]"""
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
    """[C6.8]"""
    it = Furnished()
    it.running()
    refused(it.ask(ADMIN, Remove("nodes", "", "node-a")), Reason.NOT_ALLOWED)
    assert it.plane.read("objects/revocations/system.node.node-a") is None


def test_only_who_could_have_given_it_gives_back_what_was_revoked() -> None:
    """Or an operator who was an administrator would be one again. [B5, C6.8]"""
    it = Furnished()
    it.plane.node("node-b")
    operator = who.Identity(name="ann", groups=(who.OPERATORS,))
    for user in ("ann", "admin", "system:scheduler:one"):
        made = it.yes(operator, Create(revocation(user)))
        refusal = refused(
            it.ask(operator, Remove("revocations", "", made.name)), Reason.NOT_ALLOWED
        )
        assert refusal.details == {"missing": f"impersonate users {user}"}
        it.yes(ADMIN, Remove("revocations", "", made.name))
    it.yes(operator, Remove("nodes", "", "node-b"))
    it.yes(operator, Remove("revocations", "", "system.node.node-b"))


def test_a_revocation_goes_when_all_that_it_ended_has_ended() -> None:
    """By a server, and by nobody before that but an operator. [I5]"""
    it = Furnished()
    made = it.yes(ADMIN, Create(revocation()))
    gone = Remove("revocations", "", made.name, made.metadata.uid)
    refused(it.ask(SERVER, gone), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += 366 * 86_400_000 + 10_000
    answer = it.ask(GARBAGE, gone)
    assert answer.reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED)
    it.yes(SERVER, gone)
    assert it.plane.get(made) is None
