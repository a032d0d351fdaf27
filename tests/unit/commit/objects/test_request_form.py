"""The form of requests: nothing that a caller sends becomes a wrong key or an unreadable record."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any

import msgspec
import pytest

from holdfast.commit.objects.request_form import (
    COUNT_MAX,
    MANAGERS_MAX,
    RULES,
    SECONDS_MAX,
    clip,
)
from holdfast.model import requests as ask
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.lifecycle import State
from holdfast.model.meta import INT_MAX, ManagedFields, ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import REQUESTS, NodeAction, PatchType
from holdfast.model.validation.names import DOTTED_MAX
from holdfast.model.validation.text import OPERATION_ID_MAX, SENTENCE_MAX
from tests.furnished import ANN, Furnished
from tests.plane import ADMIN, NODES, SCHEDULER, accepted, refused

BAD_NAMES = ("a/b", "../acme", "a\nb", "a\0b", "\ud800", "\U0010ffff", "x" * (DOTTED_MAX + 1))


def with_target(request: Any, **changes: Any) -> Any:
    changed = msgspec.structs.replace(request.target, **changes)
    return msgspec.structs.replace(request, target=changed)


def requests_with(it: Furnished, bad: str) -> list[tuple[Identity, Any]]:
    """A request for each way in which a name can become a key."""
    replica = it.pending()
    bind, term = it.bind(replica), it.term(SCHEDULER)
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    hold = ask.HoldCapacity("acme", owner, Intent.RECOVERY, (), it.plane.at(60), term)
    preempt = it.preempt(replica)
    replace = msgspec.structs.replace
    return [
        (SCHEDULER, with_target(bind, namespace=bad)),
        (SCHEDULER, with_target(bind, name=bad)),
        (SCHEDULER, replace(bind, node=bad)),
        (SCHEDULER, replace(bind, policy=bad)),
        (SCHEDULER, replace(bind, reservation=bad)),
        (SCHEDULER, ask.BindTogether((bind, replace(bind, node=bad)))),
        (SCHEDULER, replace(it.reserve(replica), gang=bad)),
        (SCHEDULER, replace(hold, namespace=bad)),
        (SCHEDULER, replace(hold, owner=replace(owner, name=bad))),
        (SCHEDULER, replace(hold, claims=(Claim(node=bad),))),
        (SCHEDULER, ask.CommitGang("acme", bad, "u", term)),
        (SCHEDULER, ask.DropReservation(bad, "r", "u", "why", term)),
        (SCHEDULER, replace(preempt, victims=(with_target(bind, name=bad).target,))),
        (SCHEDULER, replace(preempt, members=(ask.PromisedPlace(bind.target, bad, "u"),))),
        (
            SCHEDULER,
            replace(
                preempt,
                members=(ask.PromisedPlace(with_target(bind, name=bad).target, "node-a", "u"),),
            ),
        ),
        (who.agent("node-a"), ask.RegisterNode(Node(ObjectMeta(name=bad)))),
        (NODES, ask.JudgeNode(bad, "u", NodeAction.MARK, term)),
        (NODES, ask.JudgeNode("node-a", "u", NodeAction.SUSPECT, term, approval=bad)),
        (ADMIN, ask.Create(Tenant(ObjectMeta(name=bad)))),
        (ADMIN, ask.Update(Tenant(ObjectMeta(name="a", namespace=bad)))),
        (ADMIN, ask.Patch("tenants", "", bad, PatchType.MERGE, {})),
        (ADMIN, ask.Remove("workloads", bad, "web")),
        (ADMIN, ask.Remove("workloads", "acme", bad)),
    ]


@pytest.mark.parametrize("bad", BAD_NAMES)
def test_a_name_that_is_no_name_is_refused_before_anything_is_read(bad: str) -> None:
    """With a slash in it, it would be the key of another object."""
    it = Furnished()
    wanted = requests_with(it, bad)
    it.plane.authority = it.plane.new_authority()
    before = len(it.plane.transactions)
    for identity, request in wanted:
        refused(it.plane.ask(identity, request), Reason.INVALID)
    assert len(it.plane.transactions) == before


@pytest.mark.parametrize("bad", ["x" * (OPERATION_ID_MAX + 1), "a\nb", "\ud800"])
def test_an_operation_id_has_a_form_and_a_bound(bad: str) -> None:
    """It is kept on the object, so it must not be a book. [A2]"""
    it = Furnished()
    refused(it.ask(ADMIN, ask.Create(Tenant(ObjectMeta(name="t")), operation=bad)), Reason.INVALID)
    fits = ask.Create(Tenant(ObjectMeta(name="t")), operation="x" * OPERATION_ID_MAX)
    it.yes(ADMIN, fits)


@pytest.mark.parametrize(
    "field, bad",
    [
        ("snapshot_revision", -1),
        ("snapshot_revision", INT_MAX + 1),
        ("snapshot_age_ms", -1),
        ("node_revision", -1),
        ("deadline", datetime(2030, 1, 1)),  # noqa: DTZ001
    ],
)
def test_numbers_and_moments_that_could_not_be_read_again_are_refused(field: str, bad: Any) -> None:
    """A record that no reader can decode would stop every server at its next look."""
    it = Furnished()
    replica = it.pending()
    request = msgspec.structs.replace(it.bind(replica), **{field: bad})
    refused(it.ask(SCHEDULER, request), Reason.INVALID)
    assert it.get(replica).status.state is State.PENDING


@pytest.mark.parametrize("grace", [-1, SECONDS_MAX + 1])
def test_a_users_grace_period_cannot_spoil_an_object(grace: int) -> None:
    it = Furnished()
    refused(
        it.ask(ANN, ask.Remove("workloads", "acme", "web", grace_seconds=grace)), Reason.INVALID
    )
    it.yes(ANN, ask.Remove("workloads", "acme", "web", grace_seconds=SECONDS_MAX))
    assert it.get(it.web).metadata.deletion_grace_period_seconds == SECONDS_MAX


@pytest.mark.parametrize("bad", [-1, COUNT_MAX + 1])
def test_a_gang_of_impossible_size_is_refused(bad: int) -> None:
    it = Furnished()
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    term = it.term(SCHEDULER)
    gang = ask.HoldCapacity("acme", owner, Intent.GANG, (), it.plane.at(60), term, bad)
    refused(it.ask(SCHEDULER, gang), Reason.INVALID)


def test_a_caller_whose_name_is_not_text_is_unauthenticated() -> None:
    it = Furnished()
    for name in ("ann\n", "\ud800", "x" * 300):
        tenant = ask.Create(Tenant(ObjectMeta(name="t")))
        refused(it.ask(Identity(name=name), tenant), Reason.UNAUTHENTICATED)


def test_each_rule_is_about_a_field_that_some_request_has() -> None:
    """A rule under a wrong name would look at nothing."""
    fields = {field for kind in REQUESTS for field in kind.__struct_fields__}
    assert set(RULES) <= fields


COMPARED = "only compared with what is stored"
CLIPPED = "a sentence, which is cut to its bound where it is stored"
LATER = "its handler says what is wrong with it"
VALIDATED = "a part of an object, which is validated as such"
# Fields without a rule of form, and why each may be anything of its type.
FREE = {
    **dict.fromkeys(("uid", "node_uid", "resource_version", "installation"), COMPARED),
    **dict.fromkeys(("number", "mark", "seen_epoch", "seen_renewals", "incarnation"), COMPARED),
    **dict.fromkeys(("seen", "to", "running"), COMPARED),
    **dict.fromkeys(("reason", "evidence", "word"), CLIPPED),
    **dict.fromkeys(("plural", "subresource", "body", "manager", "key", "value"), LATER),
    **dict.fromkeys(("devices", "process", "pending", "holds"), VALIDATED),
    **dict.fromkeys(("address", "instance"), VALIDATED),
    "version": f"{COMPARED}; a lease's is {VALIDATED}",
    "record": "made by the server that sends it to itself",
}


def test_every_field_of_a_request_has_a_rule_or_a_reason() -> None:
    """Flags and words of an enum need none. A field that is forgotten could become a wrong key."""
    fields = {
        field.name
        for kind in REQUESTS
        for field in msgspec.structs.fields(kind)
        if not (isinstance(field.type, type) and issubclass(field.type, bool | Enum))
    }
    assert fields - set(RULES) == set(FREE)


def test_a_sentence_is_cut_where_it_is_too_long() -> None:
    assert clip("short") == "short"
    assert clip("x" * SENTENCE_MAX) == "x" * SENTENCE_MAX
    assert clip("x" * 5_000) == "x" * (SENTENCE_MAX - 3) + "..."


def test_a_flood_of_field_managers_is_refused_before_anything_is_read() -> None:
    """The server keeps them itself, so no client needs many."""
    it = Furnished()
    for count, is_good in ((MANAGERS_MAX, True), (MANAGERS_MAX + 1, False)):
        flood = tuple(ManagedFields(manager=f"m{number}") for number in range(count))
        meta = ObjectMeta(name=f"t{count}", managed_fields=flood)
        answer = it.ask(ADMIN, ask.Create(Tenant(meta)))
        if is_good:
            assert accepted(answer).metadata.managed_fields != flood
        else:
            assert "managedFields" in refused(answer, Reason.INVALID).message
