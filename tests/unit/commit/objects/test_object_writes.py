"""Create and update: names, versions, generations, and what belongs to the server alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.commit.objects.object_writes import SUFFIX_LENGTH
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import PriorityClass, Tenant, TenantSpec, TenantStatus
from holdfast.model.kinds.workload import Progress, Workload, WorkloadSpec, WorkloadStatus
from holdfast.model.meta import Condition, ConditionStatus, ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Patch, PatchType, Remove, Update
from tests.furnished import ANN, ANONYMOUS, BOB, GARBAGE, Furnished, every
from tests.plane import ADMIN, SCHEDULER, WORKLOADS, accepted, refused, template

STATUS = who.controller("status")


def workload(name: str = "api", namespace: str = "acme", **meta: Any) -> Workload:
    metadata = ObjectMeta(name=name, namespace=namespace, **meta)
    return Workload(metadata, spec=WorkloadSpec(template=template()))


def scaled(obj: Any, replicas: int) -> Any:
    return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, replicas=replicas))


def with_meta(obj: Any, **meta: Any) -> Any:
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, **meta))


# Creating ----------------------------------------------------------------------------------------


def test_what_only_the_server_sets_is_not_taken_from_the_client() -> None:
    """[A2, A9]"""
    it = Furnished()
    long_ago = datetime(1999, 1, 1, tzinfo=UTC)
    given = workload(
        uid="mine",
        generation=7,
        creation_timestamp=long_ago,
        deletion_timestamp=long_ago,
        deletion_grace_period_seconds=1,
        labels={"app": "api"},
        annotations={"note": "x"},
    )
    given = msgspec.structs.replace(given, status=WorkloadStatus(observed_generation=5))
    made = it.yes(ANN, Create(given))
    stored = it.get(made)
    assert stored.metadata.uid not in ("", "mine")
    assert (stored.metadata.generation, stored.metadata.creation_timestamp) == (1, it.plane.at())
    assert stored.metadata.deletion_timestamp is None
    assert stored.metadata.deletion_grace_period_seconds is None
    assert (stored.metadata.labels, stored.metadata.annotations["note"]) == ({"app": "api"}, "x")
    assert stored.status == WorkloadStatus()
    assert stored.metadata.managed_fields[0].manager == "ann"


def test_a_name_is_given_once_in_a_namespace() -> None:
    it = Furnished()
    first = it.yes(ANN, Create(workload()))
    refusal = refused(it.ask(ANN, Create(workload())), Reason.EXISTS)
    assert refusal.details == {"name": "api", "uid": first.metadata.uid}
    it.yes(BOB, Create(workload(namespace="globex")))


def test_a_generated_name_is_unique_and_fits() -> None:
    it = Furnished()
    prefix = "a-very-long-prefix-" * 2
    names = {
        it.yes(ANN, Create(Secret(ObjectMeta(generate_name=prefix, namespace="acme")))).name
        for _ in range(5)
    }
    assert len(names) == 5
    assert all(name.startswith(prefix) for name in names)
    assert all(len(name) == len(prefix) + SUFFIX_LENGTH for name in names)
    longest = "x" * 63
    made = it.yes(ANN, Create(Secret(ObjectMeta(generate_name=longest, namespace="acme"))))
    assert len(made.name) == 63
    refused(
        it.ask(ANN, Create(Secret(ObjectMeta(generate_name="No Name", namespace="acme")))),
        Reason.INVALID,
    )
    refused(it.ask(ANN, Create(Secret(ObjectMeta(namespace="acme")))), Reason.INVALID)


def test_two_creates_of_one_group_get_different_uids() -> None:
    it = Furnished()
    made = [
        accepted(answer)
        for answer in it.plane.ask_all(
            *((ADMIN, Create(Tenant(ObjectMeta(name=f"t{n}")))) for n in range(20))
        )
    ]
    uids = {obj.metadata.uid for obj in made}
    assert len(uids) == 20
    for uid in uids:
        assert [len(part) for part in uid.split("-")] == [8, 4, 4, 4, 12]
        assert (uid[14], uid[19] in "89ab") == ("4", True)


def test_a_cluster_scoped_object_has_no_namespace_whatever_is_sent() -> None:
    it = Furnished()
    made = it.yes(ADMIN, Create(Tenant(ObjectMeta(name="t", namespace="acme"))))
    assert made.namespace == ""
    assert it.plane.read("objects/tenants/t") is not None


# Updating ----------------------------------------------------------------------------------------


def test_the_generation_counts_changes_of_what_is_wanted_only() -> None:
    """[A2]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload()))
    labelled = it.yes(ANN, Update(with_meta(made, labels={"a": "b"}, resource_version="")))
    assert labelled.metadata.generation == 1
    grown = it.yes(ANN, Update(scaled(labelled, 3)))
    assert grown.metadata.generation == 2
    status = msgspec.structs.replace(grown.status, progress=Progress(desired=3))
    seen = msgspec.structs.replace(grown, status=status)
    after = it.yes(STATUS, Update(seen, subresource="status"))
    assert after.metadata.generation == 2
    forged = it.yes(ANN, Update(with_meta(scaled(after, 4), generation=99)))
    assert forged.metadata.generation == 3


def test_an_unchanged_write_writes_nothing() -> None:
    """[A2]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload()))
    it.term(STATUS)
    before = it.plane.store.revision
    for identity, request in (
        (ANN, Update(made)),
        (ANN, Update(with_meta(made, uid="", resource_version="", managed_fields=()))),
        (ANN, Patch("workloads", "acme", "api", PatchType.MERGE, {})),
        (ANN, Patch("workloads", "acme", "api", PatchType.MERGE, {"spec": {"replicas": 1}})),
        (STATUS, Update(made, subresource="status")),
    ):
        answer = accepted(it.ask(identity, request))
        assert answer.metadata.resource_version == made.metadata.resource_version
    assert it.plane.store.revision == before


def test_of_two_writers_on_one_version_one_wins() -> None:
    """[C2]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload()))
    it.yes(ANN, Update(scaled(made, 3)))
    refusal = refused(it.ask(ADMIN, Update(scaled(made, 5))), Reason.STALE_OBJECT)
    stored = it.plane.store.get("objects/workloads/acme/api")
    assert stored is not None
    assert refusal.details == {"resourceVersion": object_version(stored.modified)}
    it.yes(ADMIN, Update(with_meta(scaled(made, 5), resource_version="")))


def test_a_version_that_a_group_has_moved_is_stale_for_the_next_in_it() -> None:
    """[C2]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload()))
    # One that knows nothing has to read first, and meanwhile the second joins the group.
    it.plane.authority = it.plane.new_authority()
    first, second = it.plane.ask_all(
        (ANN, Update(scaled(made, 3))), (ADMIN, Update(scaled(made, 5)))
    )
    accepted(first)
    refusal = refused(second, Reason.STALE_OBJECT)
    assert refusal.details == {"resourceVersion": "uncommitted"}


def test_a_uid_names_the_very_object() -> None:
    it = Furnished()
    made = it.yes(ANN, Create(workload()))
    refused(
        it.ask(ANN, Update(with_meta(scaled(made, 2), uid="another", resource_version=""))),
        Reason.STALE_OBJECT,
    )


def test_an_update_of_nothing_is_missing() -> None:
    it = Furnished()
    refused(it.ask(ANN, Update(workload("none"))), Reason.MISSING)


def test_spec_and_status_are_written_apart() -> None:
    """A status write changes no spec, and the other way round. [A4, A9]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload()))
    progress = WorkloadStatus(progress=Progress(desired=9))
    both = msgspec.structs.replace(with_meta(scaled(made, 9), labels={"x": "y"}), status=progress)
    by_user = it.yes(ANN, Update(both))
    assert (by_user.spec.replicas, by_user.status) == (9, WorkloadStatus())
    again = msgspec.structs.replace(scaled(by_user, 1), status=progress)
    by_controller = it.yes(STATUS, Update(again, subresource="status"))
    assert (by_controller.spec.replicas, by_controller.status) == (9, progress)
    assert by_controller.metadata.labels == {"x": "y"}


def test_a_kind_without_a_status_has_none_to_write() -> None:
    """That must be a no, and not the end of the server."""
    it = Furnished()
    for subresource in ("status", "scale", "nonsense"):
        obj = PriorityClass(ObjectMeta(name="high"))
        refused(it.ask(ADMIN, Update(obj, subresource=subresource)), Reason.MISSING)
        patch = Patch("priorityclasses", "", "high", PatchType.MERGE, {}, subresource)
        refused(it.ask(ADMIN, patch), Reason.MISSING)


@pytest.mark.parametrize("verb", ["create", "update", "patch", "status"])
@pytest.mark.parametrize("identity", [ANONYMOUS, Identity(name=""), BOB, who.agent("node-a")])
def test_a_caller_without_permission_learns_nothing(verb: str, identity: Identity) -> None:
    """Neither that an object exists, nor what is in it, nor whether it would be valid. [B3]"""
    it = Furnished()
    secret = Secret(ObjectMeta(name="s", namespace="acme"), data={"k": "dg=="})
    it.yes(ANN, Create(secret))
    invalid = Workload(ObjectMeta(name="NOT A NAME", namespace="acme"), spec=it.web.spec)
    requests = {
        "create": [Create(secret), Create(invalid)],
        "update": [Update(secret), Update(workload("none"))],
        "patch": [
            Patch("secrets", "acme", "s", PatchType.MERGE, {}),
            Patch("secrets", "acme", "none", PatchType.MERGE, {}),
        ],
        "status": [Update(it.get(it.web), subresource="status")],
    }
    known = identity.name not in ("", ANONYMOUS.name)
    for request in requests[verb]:
        refusal = refused(
            it.plane.ask(identity, request),
            Reason.NOT_ALLOWED if known else Reason.UNAUTHENTICATED,
        )
        assert "dg==" not in str(refusal)
        assert "exist" not in refusal.message


def test_an_update_that_leaves_out_the_systems_finalizers_keeps_them() -> None:
    """A client that writes from a file does not know of them, and does not mean to remove them."""
    it = Furnished()
    made = it.yes(ANN, Create(workload(finalizers=("example.com/mine",))))
    assert made.metadata.finalizers == ("holdfast.dev/replicas", "example.com/mine")
    from_file = workload(finalizers=("example.com/other",))
    after = it.yes(ANN, Update(scaled(from_file, 2)))
    assert after.metadata.finalizers == ("holdfast.dev/replicas", "example.com/other")
    before = it.plane.store.revision
    it.yes(ANN, Update(with_meta(scaled(workload(), 2), finalizers=("example.com/other",))))
    assert it.plane.store.revision == before


@pytest.mark.parametrize(
    "finalizer",
    ["holdfast.dev/release", "holdfast.dev/contents", "foregroundDeletion"],
)
def test_no_caller_sets_a_system_finalizer_where_it_does_not_belong(finalizer: str) -> None:
    """It would never be removed again. [I5]"""
    it = Furnished()
    refused(it.ask(ANN, Create(workload(finalizers=(finalizer,)))), Reason.NOT_ALLOWED)
    made = it.yes(ANN, Create(workload(finalizers=("holdfast.dev/replicas",))))
    more = with_meta(made, finalizers=(*made.metadata.finalizers, finalizer))
    refused(it.ask(ANN, Update(more)), Reason.NOT_ALLOWED)


def test_immutable_fields_and_invalid_changes_are_refused_with_their_paths() -> None:
    """[B4]"""
    it = Furnished()
    refusal = refused(
        it.ask(
            ADMIN,
            Update(
                msgspec.structs.replace(
                    it.get(it.node),
                    spec=msgspec.structs.replace(
                        it.get(it.node).spec, region="us-east", capacity={"cpu": "-1"}
                    ),
                )
            ),
        ),
        Reason.INVALID,
    )
    paths = {cause.path for cause in refusal.causes}
    assert {"spec.region", "spec.capacity[cpu]"} <= paths


def test_a_condition_is_validated_like_the_rest() -> None:
    it = Furnished()
    web = it.get(it.web)
    twice = tuple(Condition(type="Available", status=ConditionStatus.TRUE) for _ in range(2))
    status = msgspec.structs.replace(web.status, conditions=twice)
    refused(
        it.ask(STATUS, Update(msgspec.structs.replace(web, status=status), subresource="status")),
        Reason.INVALID,
    )


def test_a_deleted_object_goes_with_the_update_that_lets_it_go() -> None:
    """[A2]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload(finalizers=("example.com/mine",))))
    it.yes(ANN, Remove("workloads", "acme", "api"))
    dying = it.get(made)
    assert dying.metadata.deletion_timestamp == it.plane.at()
    kept = with_meta(dying, finalizers=("holdfast.dev/replicas",))
    it.yes(ANN, Update(kept))
    it.yes(WORKLOADS, Update(with_meta(it.get(made), finalizers=())))
    assert it.get(made) is None
    assert [w.name for w in every(it.plane, Workload)] == ["web"]


def test_a_tenants_phase_is_the_collectors_and_its_spec_the_operators() -> None:
    """[A9]"""
    it = Furnished()
    tenant = it.plane.read("objects/tenants/acme")
    gone = msgspec.structs.replace(tenant, status=TenantStatus(phase="Terminating"))  # type: ignore[arg-type]
    refused(it.ask(ADMIN, Update(gone, subresource="status")), Reason.NOT_OWNER)
    it.yes(GARBAGE, Update(gone, subresource="status"))
    spec = msgspec.structs.replace(it.get(tenant), spec=TenantSpec(suspended=True))
    refused(it.ask(GARBAGE, Update(spec)), Reason.NOT_OWNER)
    refused(it.ask(SCHEDULER, Update(spec)), Reason.NOT_OWNER)
    it.yes(ADMIN, Update(spec))
