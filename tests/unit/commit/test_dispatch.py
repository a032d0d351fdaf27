"""Dispatch: one request, one decision, one answer."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from holdfast.model import requests as ask
from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.kinds.tenant import Tenant, TenantSpec
from holdfast.model.machine import Answer, Answered, Asked, Txn
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import REQUESTS, Accepted, Create, Patch, PatchType, Remove, Update
from tests.furnished import Furnished
from tests.plane import ADMIN, SCHEDULER, accepted, refused


def tenant(name: str = "t", **spec: Any) -> Tenant:
    return Tenant(ObjectMeta(name=name), spec=TenantSpec(**spec))


def version_of(it: Furnished, name: str = "t") -> str:
    record = it.plane.store.get(f"objects/tenants/{name}")
    assert record is not None
    return object_version(record.modified)


def test_every_request_of_the_authority_is_handled() -> None:
    made = [
        value
        for value in vars(ask).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and "operation" in value.__struct_fields__
    ]
    assert set(made) <= set(REQUESTS)
    assert len(made) >= 21
    assert set(REQUESTS) == set(get_args(ask.Request))


def test_what_is_no_request_is_refused() -> None:
    it = Furnished()
    for nonsense in (None, "bind", 7, tenant(), ask.Forward(ADMIN, Create(tenant()))):
        refused(it.ask(ADMIN, nonsense), Reason.INVALID)


def test_what_does_not_exist_in_this_api_is_missing() -> None:
    it = Furnished()
    refused(it.ask(ADMIN, Remove("pods", "", "x")), Reason.MISSING)
    refused(it.ask(ADMIN, Patch("pods", "", "x", PatchType.MERGE, {})), Reason.MISSING)


def test_an_answer_has_the_version_that_the_object_really_has() -> None:
    """So that the next write can rest on it. [A2, C2]"""
    it = Furnished()
    made = accepted(it.ask(ADMIN, Create(tenant())))
    assert made.metadata.resource_version == version_of(it)
    it.plane.tenant("other")
    unchanged = accepted(it.ask(ADMIN, Update(made)))
    assert unchanged.metadata.resource_version == version_of(it)
    wanted = msgspec.structs.replace(unchanged, spec=TenantSpec(display_name="T"))
    changed = accepted(it.ask(ADMIN, Update(wanted)))
    assert changed.metadata.resource_version == version_of(it)
    refused(it.ask(ADMIN, Update(wanted)), Reason.STALE_OBJECT)


def test_an_unchanged_object_keeps_its_version_in_a_group_that_writes_others() -> None:
    """[A2]"""
    it = Furnished()
    made = accepted(it.ask(ADMIN, Create(tenant())))
    answers = it.plane.ask_all(
        (ADMIN, Update(made)), (ADMIN, Create(tenant("u"))), (ADMIN, Update(made))
    )
    versions = [accepted(answer).metadata.resource_version for answer in answers]
    assert versions == [version_of(it), version_of(it, "u"), version_of(it)]
    assert version_of(it) != version_of(it, "u")


def test_what_an_earlier_request_of_the_group_wrote_has_the_version_of_the_group() -> None:
    """[A2]"""
    it = Furnished()
    it.plane.tenant("warm")
    made = tenant(display_name="T")
    answers = it.plane.ask_all(
        (ADMIN, Create(tenant("warmer"))),
        (ADMIN, Create(made)),
        (ADMIN, Patch("tenants", "", "t", PatchType.MERGE, {"spec": {"displayName": "T"}})),
    )
    assert all(isinstance(answer, Accepted) for answer in answers)
    assert accepted(answers[2]).metadata.resource_version == version_of(it)


def test_a_dry_run_says_what_would_be_and_writes_nothing() -> None:
    it = Furnished()
    before = it.plane.store.revision
    would = accepted(it.ask(ADMIN, Create(tenant(), dry_run=True)))
    assert (would.name, would.metadata.resource_version) == ("t", "")
    assert would.metadata.uid
    assert it.plane.store.revision == before
    made = accepted(it.ask(ADMIN, Create(tenant())))
    before = it.plane.store.revision
    wanted = msgspec.structs.replace(made, spec=TenantSpec(display_name="T"))
    changed = accepted(it.ask(ADMIN, Update(wanted, dry_run=True)))
    assert changed.spec.display_name == "T"
    assert changed.metadata.resource_version == made.metadata.resource_version
    accepted(it.ask(ADMIN, Remove("tenants", "", "t", dry_run=True)))
    refused(it.ask(ADMIN, Create(tenant(), dry_run=True)), Reason.EXISTS)
    assert it.plane.store.revision == before


def test_no_other_request_of_the_group_sees_a_dry_run() -> None:
    it = Furnished()
    dry, real = it.plane.ask_all((ADMIN, Create(tenant(), dry_run=True)), (ADMIN, Create(tenant())))
    accepted(dry)
    accepted(real)


def test_newcomers_do_not_keep_the_first_from_being_decided() -> None:
    """Each has something new to read, and one arrives with every reading."""
    it = Furnished()
    authority = it.plane.new_authority()
    work: list[Any] = []
    answers: dict[int, Any] = {}
    for call in range(1, 200):
        asked = Asked(call, ADMIN, Create(tenant(f"t{call}")))
        stimuli, work = [asked, *work], []
        for stimulus in stimuli:
            for effect in authority.step(stimulus, it.plane.now):
                if isinstance(effect, Txn):
                    outcome = it.plane.store.txn(effect.transaction, token=effect.token)
                    work.append(Answered(effect.call, outcome))
                elif isinstance(effect, Answer):
                    answers[effect.call] = effect.body
        assert not answers or 1 in answers
    assert isinstance(answers[1], Accepted)
    assert len(answers) > 150


def test_a_decision_that_names_many_records_reads_them_together() -> None:
    """On a server that knows nothing yet, too: no number of them stops it."""
    it = Furnished()
    nodes = [it.plane.node(f"n{i}") for i in range(40)]
    replicas = [it.pending() for _ in nodes]
    binds = tuple(it.bind(r, n) for r, n in zip(replicas, nodes, strict=True))
    it.plane.authority = it.plane.new_authority()
    before = len(it.plane.transactions)
    answer = it.ask(SCHEDULER, ask.BindTogether(binds))
    assert len(answer.objects) == 40
    assert len(it.plane.transactions) - before < 10
