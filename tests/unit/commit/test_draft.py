"""Reading is comparing: what a draft reads and writes, and what becomes of it in a group."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.commit.draft import UNCOMMITTED, CommitGroup, Draft, NotLoaded, SeenRecords, for_each
from holdfast.commit.record_encoding import encode
from holdfast.model.errors import RecordsDisagree, agree
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.transaction import ABSENT, Compare, Delete, Put, Record

A, B, C = (f"objects/tenants/{name}" for name in "abc")


def tenant(name: str, uid: str = "") -> Tenant:
    return Tenant(ObjectMeta(name=name, uid=uid))


def record(key: str, modified: int, created: int = 1, uid: str = "") -> Record:
    return Record(key, encode(tenant(key[-1], uid)), created, modified)


def view() -> SeenRecords:
    """A view that has seen a at revision 5 and the absence of b, and knows nothing of c."""
    seen = SeenRecords()
    seen.learn(A, record(A, 5))
    seen.learn(B, None)
    return seen


def test_what_is_read_is_compared_absences_too() -> None:
    """[C4]"""
    group = CommitGroup(view())
    draft = Draft(group)
    assert draft.read(A) == tenant("a")
    assert draft.read(B) is None
    draft.accept()
    assert group.transaction().compares == (Compare(A, 5), Compare(B, ABSENT))
    assert group.transaction().writes == ()


def test_what_is_not_known_must_be_loaded_first() -> None:
    draft = Draft(CommitGroup(view()))
    with pytest.raises(NotLoaded) as needed:
        draft.read(C)
    assert needed.value.missing == (C,)
    with pytest.raises(NotLoaded) as together:
        draft.load(A, C, "objects/tenants/d")
    assert together.value.missing == (C, "objects/tenants/d")
    draft.load(A, B)


def test_many_are_loaded_together_and_in_order() -> None:
    """A request that names many records costs one reading, not one for each."""
    draft = Draft(CommitGroup(view()))
    with pytest.raises(NotLoaded) as needed:
        for_each([C, A, "objects/tenants/d", C], draft.read)
    assert needed.value.missing == (C, "objects/tenants/d")
    assert for_each([B, A], draft.read) == [None, tenant("a")]


def test_what_a_half_written_draft_says_of_the_books_counts_for_nothing() -> None:
    """The one before could not be looked at to its end, so all are looked at again."""
    draft = Draft(CommitGroup(view()))

    def look(key: str) -> None:
        if key == "wrong":
            agree(draft.read(A) is not None, "a was given back twice")
        draft.delete(A)
        draft.read(key)

    with pytest.raises(NotLoaded):
        for_each([C, "wrong"], look)
    with pytest.raises(RecordsDisagree):
        for_each([B, "wrong"], look)


def test_nothing_is_written_blindly() -> None:
    """A write compares what was there, whether the decision looked or not. [C2]"""
    group = CommitGroup(view())
    draft = Draft(group)
    draft.write(B, tenant("b"))
    draft.delete(A)
    draft.accept()
    made = group.transaction()
    assert made.compares == (Compare(B, ABSENT), Compare(A, 5))
    assert made.writes == (Put(B, encode(tenant("b"))), Delete(A))
    with pytest.raises(NotLoaded):
        Draft(group).write(C, tenant("c"))


def test_a_later_draft_sees_what_an_accepted_one_wrote() -> None:
    """[C2]"""
    group = CommitGroup(view())
    first = Draft(group)
    first.write(B, tenant("b"))
    assert first.read(B) == tenant("b")
    assert Draft(group).read(B) is None
    first.accept()
    second = Draft(group)
    assert second.read(B) == tenant("b")
    assert second.revision(B) == UNCOMMITTED
    assert second.revision(A) == 5
    second.write(B, tenant("b", uid="2"))
    second.accept()
    assert group.transaction().compares == (Compare(B, ABSENT), Compare(A, 5))
    assert group.transaction().writes == (Put(B, encode(tenant("b", uid="2"))),)


def test_a_refused_draft_leaves_its_compares_and_nothing_else() -> None:
    """So a refusal too rests on what the store confirms. [C3]"""
    group = CommitGroup(view())
    draft = Draft(group)
    draft.read(A)
    draft.write(B, tenant("b"))
    draft.refuse()
    assert group.transaction().compares == (Compare(A, 5), Compare(B, ABSENT))
    assert group.transaction().writes == ()
    assert Draft(group).read(B) is None


def test_what_a_group_found_stays_what_it_found() -> None:
    """A name that is deleted and given again in one group is another object."""
    group = CommitGroup(view())
    draft = Draft(group)
    draft.delete(A)
    draft.accept()
    again = Draft(group)
    again.write(A, tenant("a", uid="new"))
    assert again.read(A) == tenant("a", uid="new")
    assert again.found(A) == tenant("a")
    assert (again.base(A), again.base(B)) == (5, ABSENT)


def test_a_draft_weighs_what_the_group_would_compare_with_it() -> None:
    group = CommitGroup(view())
    first = Draft(group)
    first.read(A)
    assert first.weight() == 1
    first.accept()
    second = Draft(group)
    second.read(A)
    assert second.weight() == 1
    second.read(B)
    assert second.weight() == 2


def value_of(seen: SeenRecords, key: str) -> Any:
    found = seen.get(key)
    assert found is not None
    return seen.value(key, found)


def test_an_older_record_never_replaces_a_newer() -> None:
    seen = view()
    seen.learn(A, record(A, 4, uid="older"))
    found = seen.get(A)
    assert found is not None
    assert (found.modified, value_of(seen, A)) == (5, tenant("a"))
    seen.learn(A, record(A, 6, uid="newer"))
    assert value_of(seen, A).metadata.uid == "newer"
    seen.learn(A, None)
    assert value_of(seen, A) is None
    seen.learn(A, record(A, 7))
    assert value_of(seen, A) == tenant("a")


def test_an_own_write_is_known_without_reading_it() -> None:
    seen = view()
    for key, made in ((A, tenant("a", uid="2")), (B, tenant("b"))):
        seen.record_write(key, made, encode(made), 9)
        # Nothing is decoded for it: the struct itself is cached.
        assert value_of(seen, key) is made
    a, b = seen.get(A), seen.get(B)
    assert a is not None
    assert b is not None
    assert (a.modified, a.created) == (9, 1)
    assert (b.modified, b.created) == (9, 9)
    seen.record_write(A, None, None, 10)
    assert seen.get(A).modified == ABSENT  # type: ignore[union-attr]
    assert value_of(seen, A) is None
    seen.forget(A)
    assert seen.get(A) is None


def test_a_supposed_absence_is_compared_and_never_hides_what_is_known() -> None:
    """[C4]"""
    group = CommitGroup(view())
    draft = Draft(group)
    draft.suppose_absent(A, C)
    assert draft.read(A) == tenant("a")
    draft.write(C, tenant("c"))
    draft.accept()
    assert group.transaction().compares == (Compare(A, 5), Compare(C, ABSENT))
    later = Draft(group)
    later.suppose_absent(C)
    assert later.read(C) == tenant("c")


def at_hand(seen: SeenRecords) -> list[Any]:
    """The structs that need no decoding."""
    return [found.value for key in (A, B, C) if (found := seen.get(key)) is not None]


def test_a_struct_that_was_let_go_of_is_decoded_again() -> None:
    """Structs of the last few keys only are in memory, bytes of all of them."""
    seen = SeenRecords(values_max=2)
    made = [(key, tenant(key[-1], uid="1")) for key in (A, B, C)]
    for key, struct in made:
        seen.record_write(key, struct, encode(struct), 9)
    draft = Draft(CommitGroup(seen))
    assert at_hand(seen) == [None, made[1][1], made[2][1]]
    assert [draft.read(key) for key, _ in made] == [struct for _, struct in made]
    assert len([value for value in at_hand(seen) if value is not None]) == 2


def test_a_view_is_bounded_and_forgets_the_oldest() -> None:
    seen = SeenRecords(keys_max=2)
    for key in (A, B, C):
        seen.learn(key, None)
    assert seen.get(A) is None
    assert seen.get(B) is not None
    assert seen.get(C) is not None
