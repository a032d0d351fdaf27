"""One writer per field: the table is complete, and the commit keeps to it cell by cell."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from holdfast.commit.objects.field_writers import WRITERS, shared_with_people
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import Quota
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Condition, ConditionStatus, Object, ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.registry import KINDS, kind_of
from holdfast.model.requests import Accepted, Create, Update
from tests.furnished import AGENT, ANN, Furnished, every
from tests.plane import ADMIN, SCHEDULER, refused

CALLERS: dict[Actor, Identity] = {
    Actor.SCHEDULER: SCHEDULER,
    Actor.AGENT: AGENT,
    Actor.USER: ANN,
    Actor.OPERATOR: ADMIN,
    Actor.AUTHORITY: who.server("a"),
    **{
        actor: who.controller(actor.value.partition(":")[2])
        for actor in Actor
        if actor.value.startswith("controller:")
    },
}


def test_every_kind_has_its_writers_and_every_part_of_a_status_one_writer() -> None:
    """[A1, A9]"""
    assert set(WRITERS) == {kind.struct for kind in KINDS}
    for kind in KINDS:
        fields = {field.name: field for field in msgspec.structs.fields(kind.struct)}
        writers = WRITERS[kind.struct]
        assert kind.status == ("status" in fields), kind.plural
        if "status" not in fields:
            assert not writers.status
            assert not writers.conditions
            continue
        parts = set(type(fields["status"].default).__struct_fields__) - {"conditions"}
        # What is not listed moves by requests of its own: replicas, reservations, nodes. What is
        # computed is filled in when it is read.
        assert set(writers.status) <= parts, kind.plural
        parts -= set(kind.computed)
        if kind.struct not in (Replica, Reservation, Node):
            assert set(writers.status) == parts, kind.plural


def test_what_moves_by_requests_of_its_own_has_no_writer() -> None:
    """[A9]"""
    for struct in (Replica, Reservation, Lease):
        assert not WRITERS[struct].status
    assert WRITERS[Reservation].spec == WRITERS[Lease].spec == ()
    assert not shared_with_people(Replica)
    assert shared_with_people(Workload)


def different(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case tuple():
            return (*value, "x")
        case dict():
            return {**value, "x": {"cpu": "1"}}
        case None:
            return None
        case msgspec.Struct():
            field = type(value).__struct_fields__[0]
            return msgspec.structs.replace(value, **{field: different(getattr(value, field))})
        case _:
            return value + timedelta(seconds=1)


def objects(it: Furnished) -> list[Any]:
    """One object of each kind with a status that a furnished plane has."""
    it.bound()
    it.reserved()
    it.plane.quota(hard={"cpu": "64"})
    found: dict[type[Object], Any] = {}
    for obj in every(it.plane, Object):
        if hasattr(obj, "status"):
            found.setdefault(type(obj), obj)
    assert len(found) >= 7
    return list(found.values())


def test_each_part_of_a_status_is_changed_by_its_writer_alone() -> None:
    """[A9, C6.7, INV6]"""
    it = Furnished()
    tried = 0
    for obj in objects(it):
        writers = WRITERS[type(obj)]
        for field in type(obj.status).__struct_fields__:
            value = getattr(obj.status, field)
            if field == "conditions" or value is None or isinstance(value, msgspec.Struct | tuple):
                continue
            if hasattr(type(value), "__members__") or field in kind_of(obj).computed:
                continue
            status = msgspec.structs.replace(obj.status, **{field: different(value)})
            wanted = Update(msgspec.structs.replace(obj, status=status), subresource="status")
            owner = writers.status.get(field)
            for actor, identity in CALLERS.items():
                answer = it.plane.ask(identity, msgspec.structs.replace(wanted, dry_run=True))
                allowed = owner is not None and owner in acts_as(identity)
                cell = (type(obj).__name__, field, actor.value, answer)
                assert isinstance(answer, Accepted) == allowed, cell
                tried += 1
    assert tried > 200


def test_each_condition_is_changed_by_its_writer_alone() -> None:
    """[A9, C6.7, INV6]"""
    it = Furnished()
    for obj in objects(it):
        kinds = (*WRITERS[type(obj)].conditions, "Invented")
        for kind in kinds:
            owner = WRITERS[type(obj)].conditions.get(kind)
            condition = Condition(type=kind, status=ConditionStatus.TRUE)
            status = msgspec.structs.replace(obj.status, conditions=(condition,))
            wanted = Update(
                msgspec.structs.replace(obj, status=status), subresource="status", dry_run=True
            )
            for identity in CALLERS.values():
                answer = it.plane.ask(identity, wanted)
                allowed = owner is not None and owner in acts_as(identity)
                cell = (type(obj).__name__, kind, identity.name, answer)
                assert isinstance(answer, Accepted) == allowed, cell


def test_an_agent_speaks_of_its_own_node_and_of_what_is_bound_to_it() -> None:
    """[C6.7, INV6]"""
    it = Furnished()
    node, bound, pending = it.get(it.node), it.bound(), it.pending()
    it.plane.node("node-b")
    pressure = Condition(type="Pressure", status=ConditionStatus.TRUE)
    ready = Condition(type="Ready", status=ConditionStatus.TRUE)

    def with_condition(obj: Any, condition: Condition) -> Update:
        status = msgspec.structs.replace(obj.status, conditions=(condition,))
        return Update(msgspec.structs.replace(obj, status=status), subresource="status")

    other = who.agent("node-b")
    refused(it.ask(other, with_condition(node, pressure)), Reason.MISSING)
    refused(it.ask(other, with_condition(bound, ready)), Reason.MISSING)
    refused(it.ask(AGENT, with_condition(pending, ready)), Reason.MISSING)
    it.yes(AGENT, with_condition(node, pressure))
    it.yes(AGENT, with_condition(bound, ready))


def test_one_writer_leaves_what_another_wrote() -> None:
    """Another writer may not drop a condition either. [A9, INV6]"""
    it = Furnished()
    web = it.get(it.web)
    mine = Condition(type="Available", status=ConditionStatus.TRUE)
    theirs = Condition(type="Progressing", status=ConditionStatus.TRUE)

    def writes(conditions: tuple[Condition, ...]) -> Update:
        now = it.get(it.web)
        status = msgspec.structs.replace(now.status, conditions=conditions)
        return Update(msgspec.structs.replace(now, status=status), subresource="status")

    it.yes(CALLERS[Actor.STATUS], writes((mine,)))
    it.yes(CALLERS[Actor.ROLLOUT], writes((mine, theirs)))
    refusal = refused(it.ask(CALLERS[Actor.STATUS], writes((mine,))), Reason.NOT_OWNER)
    assert refusal.details["field"] == "status.conditions[Progressing]"
    assert refusal.details["owners"] == "controller:rollout"
    assert web.metadata.uid == it.get(it.web).metadata.uid


def test_no_caller_creates_by_hand_what_only_the_commit_creates() -> None:
    """[A9, C6.3]"""
    it = Furnished()
    reserved = it.reserved()
    held = it.reservation(reserved.status.reservation)
    lease = it.plane.read("objects/leases/scheduler-one")
    for obj in (held, lease):
        renamed = msgspec.structs.replace(
            obj, metadata=msgspec.structs.replace(obj.metadata, name="another")
        )
        for identity in CALLERS.values():
            for request in (Create(renamed), Update(changed(obj))):
                answer = it.plane.ask(identity, request)
                assert not isinstance(answer, Accepted), (identity.name, request)


def changed(obj: Any) -> Any:
    metadata = msgspec.structs.replace(obj.metadata, labels={"x": "y"})
    return msgspec.structs.replace(obj, metadata=metadata)


def test_what_servers_fill_in_on_reading_comes_back_and_is_not_stored() -> None:
    """A client that changes a status it has read sends it whole. [A9]"""
    it = Furnished()
    quota = it.yes(ADMIN, Create(Quota(ObjectMeta(name="default", namespace="acme"))))
    read = msgspec.structs.replace(quota.status, used={"hard": {"cpu": "1"}}, used_revision=7)
    exhausted = Condition(type="Exhausted", status=ConditionStatus.TRUE)
    status = msgspec.structs.replace(read, conditions=(exhausted,))
    update = Update(msgspec.structs.replace(quota, status=status), subresource="status")
    after = it.yes(who.controller("quota"), update)
    assert [one.type for one in after.status.conditions] == ["Exhausted"]
    assert (after.status.used, after.status.used_revision) == ({}, 0)
