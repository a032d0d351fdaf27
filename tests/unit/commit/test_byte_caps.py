"""Caps on what a tenant has written, and on the replicas that it asks for, decided at admission."""

from __future__ import annotations

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.commit.ledgers.recount import recount
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import ObjectCaps
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Remove, Update
from holdfast.store.contract import KEY_END
from tests.furnished import Furnished
from tests.plane import ADMIN, Plane, accepted, refused, template


def test_bytes_are_capped_for_new_objects_and_for_changes() -> None:
    """What grows beyond the cap is refused, what shrinks or goes never is. [B6]"""
    plane = Plane(settings=PlaneSettings(bytes_per_tenant_max=16_000))
    plane.tenant()
    large = {"a": "eHh4" * 1_000}

    def secret(name: str, data: dict[str, str]) -> Secret:
        return Secret(ObjectMeta(name=name, namespace="acme"), data=data)

    for number in range(3):
        plane.create(secret(f"s{number}", large))
    small = plane.create(secret("small", {}))
    refusal = refused(plane.ask(ADMIN, Create(secret("s3", large))), Reason.OBJECT_CAP)
    assert refusal.details["resource"] == "bytes"
    grown = msgspec.structs.replace(small, data=large)
    refused(plane.ask(ADMIN, Update(grown)), Reason.OBJECT_CAP)
    # Bytes may hide in annotations as well.
    noted = msgspec.structs.replace(small.metadata, annotations={"example.com/a": "x" * 9_000})
    refused(
        plane.ask(ADMIN, Update(msgspec.structs.replace(small, metadata=noted))), Reason.OBJECT_CAP
    )
    first = plane.read("objects/secrets/acme/s0")
    accepted(plane.ask(ADMIN, Update(msgspec.structs.replace(first, data={}))))
    accepted(plane.ask(ADMIN, Update(grown)))
    plane.settings = PlaneSettings(bytes_per_tenant_max=10)
    plane.authority = plane.new_authority()
    for name in ("s0", "s1", "s2", "small"):
        accepted(plane.ask(ADMIN, Remove("secrets", "acme", name)))
    assert recount(plane.store.range("", KEY_END).records) == []


def test_a_quota_states_its_own_cap_of_bytes() -> None:
    """[B6]"""
    it = Furnished()
    it.plane.quota("globex", objects=ObjectCaps(bytes=2_000))
    made = Secret(ObjectMeta(name="s", namespace="globex"), data={"a": "eHh4" * 500})
    refused(it.plane.ask(ADMIN, Create(made)), Reason.OBJECT_CAP)


def test_replicas_count_when_they_are_asked_for() -> None:
    """A million of them are refused before the first is born, also as a change. [B6]"""
    it = Furnished()
    it.plane.quota("globex", objects=ObjectCaps(replicas=10))
    web = it.plane.workload("web", "globex", replicas=6)
    spec = WorkloadSpec(template=template(), replicas=5)
    batch = Workload(ObjectMeta(name="more", namespace="globex"), spec=spec)
    refusal = refused(it.plane.ask(ADMIN, Create(batch)), Reason.OBJECT_CAP)
    assert refusal.details["resource"] == "replicas"
    it.updated(web, replicas=5)
    accepted(it.plane.ask(ADMIN, Create(batch)))
    web = it.plane.read("objects/workloads/globex/web")
    more = msgspec.structs.replace(web, spec=msgspec.structs.replace(web.spec, replicas=6))
    refused(it.plane.ask(ADMIN, Update(more)), Reason.OBJECT_CAP)
    million = Workload(
        ObjectMeta(name="million", namespace="acme"),
        spec=msgspec.structs.replace(spec, replicas=1_000_000),
    )
    refused(it.plane.ask(ADMIN, Create(million)), Reason.OBJECT_CAP)
