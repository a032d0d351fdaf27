"""Operations: accepted ones are remembered long enough and no longer, and only for their caller."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from holdfast.commit.ages import Ages
from holdfast.commit.context import PlaneSettings
from holdfast.commit.operations import Replayed, digest, recall
from holdfast.correct.controller import operation as operation_id
from holdfast.model import keys
from holdfast.model.kinds.secret import Secret
from holdfast.model.lifecycle import State
from holdfast.model.meta import API_VERSION, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import (
    Accepted,
    Create,
    ForgetOperations,
    Move,
    Patch,
    PatchType,
    Remove,
    Update,
)
from tests.furnished import ANN, GARBAGE, Furnished, every
from tests.plane import ADMIN, REPAIR, SCHEDULER, WORKLOADS, accepted, refused, target

SETTINGS = PlaneSettings()
CALENDARS = (-40 * 86_400_000, -300_000, 300_000, 86_400_000)


def kept(count: int, every_s: float) -> ObjectMeta:
    """The metadata after this many operations, one after another."""
    it = Furnished()
    made = it.yes(ANN, Create(secret()))
    for number in range(count):
        it.yes(ANN, Update(holding(number), operation=f"op-{number}"))
        it.plane.elapsed_ms += int(every_s * 1000)
    metadata: ObjectMeta = it.get(made).metadata
    return metadata


def secret(name: str = "s", **more: Any) -> Secret:
    return Secret(ObjectMeta(name=name, namespace="acme", **more))


def holding(number: int) -> Secret:
    return msgspec.structs.replace(secret(), data={"k": base64.b64encode(b"%d" % number).decode()})


def test_at_least_eight_are_kept_however_old_they_are() -> None:
    """[A2, C2]"""
    assert [op.id for op in kept(30, 3_600).operations] == [f"op-{n}" for n in range(22, 30)]


def test_within_ten_minutes_all_are_kept() -> None:
    """[A2, C2]"""
    assert [op.id for op in kept(20, 30).operations] == [f"op-{n}" for n in range(20)]
    # The twenty-first comes 600 s after the first, which has then been kept for ten minutes.
    assert len(kept(21, 30).operations) == 21
    assert kept(22, 30).operations[0].id == "op-1"


def test_a_chatty_client_does_not_make_an_object_grow() -> None:
    """[A2]"""
    assert len(kept(100, 0.1).operations) == SETTINGS.operations_max


def test_an_operation_without_an_id_is_not_kept() -> None:
    it = Furnished()
    made = it.yes(ANN, Create(secret(), operation="make"))
    it.yes(ANN, Update(holding(1)))
    metadata = it.get(made).metadata
    assert [past.id for past in metadata.operations] == ["make"]
    assert recall(metadata, "", "2:mark") is None


def test_an_operation_gets_a_revision_by_which_it_was_accepted_with_the_next_write() -> None:
    """Also one of another store, as after a move to it. [C2]"""
    it = Furnished()
    made = it.yes(ANN, Create(secret(), operation="make"))
    for number in range(3):
        it.yes(ANN, Update(holding(number), operation=f"op-{number}"))
    revisions = [past.revision for past in it.get(made).metadata.operations]
    assert revisions == [*sorted(revisions[:-1]), 0]
    assert 0 < revisions[0] < revisions[1] < revisions[2] < it.plane.store.revision

    def move_to_another_store(tree: dict[str, Any]) -> None:
        tree["metadata"]["operations"][0]["revision"] = 10**9

    it.plane.damage(keys.key_of(made), move_to_another_store)
    before = it.plane.store.revision
    it.yes(ANN, Update(holding(3), operation="op-3"))
    assert it.get(made).metadata.operations[0].revision == before


@contextmanager
def decided_elsewhere(it: Furnished, ahead_ms: int) -> Iterator[None]:
    """What is asked meanwhile, another server decides by itself, whose calendar is wrong."""
    plane, usual = it.plane, it.plane.authority
    plane.authority, plane.ahead_ms = plane.new_authority(), ahead_ms
    yield
    plane.authority, plane.ahead_ms = usual, 0


@pytest.fixture
def long_held() -> Furnished:
    """A plane whose usual authority has held the lease for an hour."""
    it = Furnished()
    ages = it.plane.authority.ages = Ages()
    ages.begin(it.plane.now)
    it.plane.elapsed_ms += 3_600_000
    ages.observe(it.plane.now)
    return it


@pytest.mark.parametrize("ahead_ms", CALENDARS)
def test_a_server_with_a_wrong_calendar_lets_no_object_forget_early(
    long_held: Furnished, ahead_ms: int
) -> None:
    """It could not reach the holder of the lease, and decided by itself. [C2, INV3]"""
    it = long_held
    made = it.yes(ANN, Create(secret()))
    first = Update(holding(0), operation="op-0")
    with decided_elsewhere(it, ahead_ms):
        it.yes(ANN, first)
    for number in range(1, SETTINGS.operations_kept + 2):
        it.yes(ANN, Update(holding(number), operation=f"op-{number}"))
    there = it.get(made)
    assert it.ask(ANN, first).replayed
    assert it.get(made) == there


@pytest.mark.parametrize("ahead_ms", CALENDARS)
def test_a_server_with_a_wrong_calendar_lets_no_operation_be_forgotten_early(
    long_held: Furnished, ahead_ms: int
) -> None:
    """[C2, INV3, A2]"""
    it = long_held
    gone = Remove("secrets", "acme", "s", operation="gone")
    it.yes(ANN, Create(secret()))
    with decided_elsewhere(it, ahead_ms):
        it.yes(ANN, gone)
    again = it.yes(ANN, Create(secret()))
    request = ForgetOperations(("ann/gone",), it.term(GARBAGE))
    it.yes(GARBAGE, request)
    assert it.ask(ANN, gone).replayed
    assert it.get(again) is not None, "a copy that comes late takes no effect once more"
    it.plane.elapsed_ms += SETTINGS.operations_kept_ms + SETTINGS.skew_ms
    it.yes(GARBAGE, request)
    assert "ann/gone" not in operations(it)


def test_a_server_that_starts_forgets_nothing_before_it_has_waited_itself() -> None:
    """It has seen no revision yet, and knows of none how old it is. [C2, INV3]"""
    it = Furnished()
    it.yes(ANN, Create(secret()))
    it.yes(ANN, Remove("secrets", "acme", "s", operation="gone"))
    it.plane.elapsed_ms += 3_600_000
    it.plane.authority = it.plane.new_authority()
    request = ForgetOperations(("ann/gone",), it.term(GARBAGE))
    it.yes(GARBAGE, request)
    assert operations(it) == ["ann/gone"]


def test_the_same_id_is_the_same_request_or_a_mistake() -> None:
    """[A2]"""
    metadata = kept(3, 1)
    mark = metadata.operations[1].digest
    found = recall(metadata, "op-1", mark)
    assert isinstance(found, Replayed)
    assert found.operation.id == "op-1"
    other = recall(metadata, "op-1", "2:another")
    assert isinstance(other, Refusal)
    assert other.reason is Reason.OPERATION_REUSED
    assert recall(metadata, "op-9", mark) is None


def test_different_requests_have_different_digests() -> None:
    one = Create(Secret(ObjectMeta(name="a", namespace="acme")))
    two = Create(Secret(ObjectMeta(name="b", namespace="acme")))
    assert digest(one) == digest(Create(Secret(ObjectMeta(name="a", namespace="acme"))))
    assert digest(one) != digest(two)
    assert operation_id("me", "u", 3, "bind") == "me/u/3/bind"


def test_a_repeated_create_update_patch_and_delete_take_effect_once() -> None:
    """[C2, E5, INV3]"""
    it = Furnished()
    made = it.yes(ANN, Create(secret(), operation="make"))
    changed = msgspec.structs.replace(secret(), data={"k": "dg=="})
    patch = Patch(
        "secrets", "acme", "s", PatchType.MERGE, {"data": {"p": "dg=="}}, operation="patch"
    )
    requests = [
        Create(secret(), operation="make"),
        Update(changed, operation="change"),
        patch,
    ]
    for request in requests:
        answer = it.ask(ANN, request)
        assert isinstance(answer, Accepted)
        before = it.plane.store.revision
        again = it.ask(ANN, request)
        assert again.replayed
        assert it.plane.store.revision == before
    assert it.get(made).data == {"k": "dg==", "p": "dg=="}
    gone = Remove("secrets", "acme", "s", operation="gone")
    it.yes(ANN, gone)
    assert it.ask(ANN, gone).replayed
    # A new object of that name is not deleted by the old request.
    it.yes(ANN, Create(secret(), operation="make-again"))
    assert it.ask(ANN, gone).replayed
    assert it.get(made) is not None


def test_a_generated_name_is_given_once_for_one_operation() -> None:
    """[C2, INV3]"""
    it = Furnished()
    request = Create(secret("", generate_name="s-"), operation="one")
    first = it.yes(ANN, request)
    assert first.name.startswith("s-")
    assert len(first.name) == len("s-") + 5
    assert it.ask(ANN, request).replayed
    it.yes(ANN, Create(secret("", generate_name="s-"), operation="two"))
    assert len(every(it.plane, Secret)) == 2


def test_one_callers_ids_are_not_anothers() -> None:
    """No caller can use up the ids that another is about to use."""
    it = Furnished()
    mine = Create(secret("", generate_name="s-"), operation="next")
    theirs = Create(Secret(ObjectMeta(generate_name="s-", namespace="globex")), operation="next")
    it.yes(ANN, mine)
    it.yes(ADMIN, theirs)
    assert len(every(it.plane, Secret)) == 2


def test_a_refusal_is_decided_again() -> None:
    """The state may have changed."""
    it = Furnished()
    request = Create(Secret(ObjectMeta(name="s", namespace="initech")), operation="early")
    refused(it.ask(ADMIN, request), Reason.MISSING)
    it.plane.tenant("initech")
    accepted(it.ask(ADMIN, request))


def test_an_update_that_changes_nothing_leaves_its_object_and_is_not_made_later() -> None:
    """It was accepted, so a copy must not undo a later change by another client. [C2, INV3]"""
    it = Furnished()
    made = it.yes(ANN, Create(secret()))
    version = it.plane.store.get(keys.key_of(made)).modified
    it.yes(ANN, Update(secret(), operation="nothing"))
    assert it.plane.store.get(keys.key_of(made)).modified == version
    it.yes(ANN, Update(holding(1)))
    there = it.get(made)
    assert it.ask(ANN, Update(secret(), operation="nothing")).replayed
    assert it.get(made) == there


def test_an_update_that_states_its_version_needs_no_record_of_its_own() -> None:
    """Its version keeps a copy from taking effect. [C2, INV3]"""
    it = Furnished()
    made = it.yes(ANN, Create(secret()))
    labelled = msgspec.structs.replace(made.metadata, labels={"l": "a"})
    request = Update(msgspec.structs.replace(made, metadata=labelled), operation="mine")
    assert made.metadata.resource_version
    it.yes(ANN, request)
    assert operations(it) == []
    assert it.ask(ANN, request).replayed


MERGED = {"data": {"k": "dg=="}}
UNVERSIONED = [
    Update(holding(1), operation="mine"),
    Patch("secrets", "acme", "s", PatchType.MERGE, MERGED, operation="mine"),
    Patch(
        *("secrets", "acme", "s", PatchType.JSON),
        [{"op": "add", "path": "/data", "value": {"k": "dg=="}}],
        operation="mine",
    ),
    Patch(
        *("secrets", "acme", "s", PatchType.APPLY),
        {"apiVersion": API_VERSION, "kind": "Secret", "metadata": {"name": "s"}, **MERGED},
        manager="m",
        force=True,
        operation="mine",
    ),
    Remove("secrets", "acme", "s", operation="mine"),
]


@pytest.mark.parametrize("request_", UNVERSIONED, ids=lambda it: type(it).__name__)
def test_what_was_done_to_an_object_is_not_done_to_the_next_one_of_its_name(request_: Any) -> None:
    """[C2, INV3]"""
    it = Furnished()
    it.yes(ANN, Create(secret()))
    it.yes(ANN, request_)
    it.ask(ANN, Remove("secrets", "acme", "s"))
    again = it.yes(ANN, Create(secret()))
    there = it.get(again)
    assert it.ask(ANN, request_).replayed
    assert it.get(again) == there


def test_a_patch_is_made_once_however_many_others_come_after_it() -> None:
    """An object remembers a limited number of operations. [C2, INV3]"""
    it = Furnished()
    made = it.yes(ANN, Create(secret()))
    first = Update(holding(0), operation="op-0")
    it.yes(ANN, first)
    for number in range(1, SETTINGS.operations_max + 2):
        it.yes(ANN, Update(holding(number), operation=f"op-{number}"))
    there = it.get(made)
    assert "op-0" not in [past.id for past in there.metadata.operations]
    assert it.ask(ANN, first).replayed
    assert it.get(made) == there


@pytest.mark.parametrize("is_running", [True, False])
def test_a_deletion_of_work_is_not_done_to_the_next_of_its_name(is_running: bool) -> None:
    """Also when it stopped the work first, and its object went with the proof of that. [INV3]"""
    it = Furnished()
    first = it.plane.replica(it.web)
    gone = Remove("replicas", "acme", first.name, operation="gone")
    if is_running:
        bound = it.yes(SCHEDULER, it.bind(first))
        it.yes(ANN, gone)
        it.moved(it.get(bound), State.RELEASED)
    else:
        it.yes(ANN, gone)
        term = it.term(WORKLOADS)
        it.yes(WORKLOADS, Move(target(it.get(first)), State.RELEASED, term=term))
    assert it.get(first) is None
    it.yes(ADMIN, Remove("workloads", "acme", "web"))
    web = it.get(it.web)
    metadata = msgspec.structs.replace(web.metadata, finalizers=())
    it.yes(WORKLOADS, Update(msgspec.structs.replace(web, metadata=metadata)))
    again = it.plane.replica(it.plane.workload(replicas=8))
    assert again.name == first.name
    assert it.ask(ANN, gone).replayed
    assert it.get(again).metadata.deletion_timestamp is None


def test_a_replica_that_is_gone_at_once_is_remembered_as_deleted() -> None:
    """[C2]"""
    it = Furnished()
    released = it.released()
    request = Remove("replicas", "acme", released.name, operation="gone")
    it.yes(WORKLOADS, request)
    assert it.get(released) is None
    assert it.ask(WORKLOADS, request).replayed


def operations(it: Furnished) -> list[str]:
    found = it.plane.store.range("operations/", "operations0").records
    return [record.key.removeprefix("operations/") for record in found]


def test_operations_are_forgotten_after_their_time_and_not_before() -> None:
    """Otherwise every delete would stay in the store for good. [A2]"""
    it = Furnished()
    it.yes(ANN, Create(secret()))
    it.yes(ANN, Remove("secrets", "acme", "s", operation="gone"))
    assert operations(it) == ["ann/gone"]
    request = ForgetOperations(("ann/gone", "ann/never"), it.term(GARBAGE))
    it.plane.elapsed_ms += it.plane.settings.operations_kept_ms + it.plane.settings.skew_ms - 1
    it.yes(GARBAGE, request)
    assert operations(it) == ["ann/gone"]
    it.plane.elapsed_ms += 1
    it.yes(GARBAGE, request)
    assert operations(it) == []


@pytest.mark.parametrize("identity", [ADMIN, REPAIR, ANN])
def test_only_the_collector_forgets(identity: Any) -> None:
    """[C6.7]"""
    it = Furnished()
    term = it.term(GARBAGE)
    refused(it.ask(identity, ForgetOperations((), term)), Reason.NOT_OWNER)
    stale = msgspec.structs.replace(term, epoch=term.epoch + 1)
    refused(it.ask(GARBAGE, ForgetOperations((), stale)), Reason.STALE_EPOCH)
