"""What a newer version has written stays when this one rewrites the record."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.record_encoding import decode, encode
from holdfast.model import keys
from holdfast.model.encoding.unknown_fields import with_unknown
from holdfast.model.kinds.reservation import Claim, ReservationStatus
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Condition, ConditionStatus, Part
from holdfast.model.requests import Remove
from tests.furnished import ANN, Furnished
from tests.plane import Plane

LATER = {"laterField": {"seconds": [30]}}


class Inner(Part, frozen=True):
    size: int = 0


class Item(Part, frozen=True):
    name: str
    size: int = 0


class Outer(Part, frozen=True):
    label: str = ""
    inner: Inner = Inner()
    maybe: Inner | None = None
    items: tuple[Item, ...] = ()
    table: dict[str, Inner] = {}
    conditions: tuple[Condition, ...] = ()


def kept(old: dict[str, Any], new: Outer) -> Any:
    return msgspec.json.decode(with_unknown(Outer, msgspec.json.encode(old), encode(new)))


def test_a_field_stays_in_the_struct_that_it_stands_in() -> None:
    old = {"x": 1, "inner": {"size": 1, "y": 2}, "table": {"a": {"size": 1, "z": 3}}}
    new = Outer(label="new", inner=Inner(2), table={"a": Inner(4), "b": Inner(5)})
    assert kept(old, new) == {
        "label": "new",
        "x": 1,
        "inner": {"size": 2, "y": 2},
        "table": {"a": {"size": 4, "z": 3}, "b": {"size": 5}},
    }


def test_a_part_at_its_default_keeps_what_others_put_there_and_one_that_is_gone_does_not() -> None:
    old = {"inner": {"size": 1, "y": 2}, "maybe": {"size": 1, "y": 2}}
    assert kept(old, Outer()) == {"inner": {"y": 2}}


def test_elements_of_a_list_are_known_again_by_what_they_say_or_by_their_key() -> None:
    old = {"items": [{"name": "a", "x": 1}, {"name": "b", "size": 2, "x": 2}, {"name": "c"}]}
    new = Outer(items=(Item("new"), Item("b", 3), Item("a")))
    assert kept(old, new)["items"] == [
        {"name": "new"},
        {"name": "b", "size": 3, "x": 2},
        {"name": "a", "x": 1},
    ]


def test_elements_that_state_no_key_are_not_taken_for_each_other() -> None:
    """The claims of a recovery lane name no replica."""
    old = {"claims": [{"node": "a", "x": 1}, {"node": "b", "x": 2}]}
    new = ReservationStatus(claims=(Claim("c"), Claim("b")))
    after = with_unknown(ReservationStatus, msgspec.json.encode(old), encode(new))
    claims = msgspec.json.decode(after)["claims"]
    assert claims == [{"node": "c"}, {"node": "b", "x": 2}]


def test_a_condition_keeps_its_field_when_its_status_changes() -> None:
    old = {"conditions": [{"type": "Ready", "status": "True", "x": 1}]}
    new = Outer(conditions=(Condition("Ready", ConditionStatus.FALSE),))
    assert kept(old, new)["conditions"][0]["x"] == 1


def test_nothing_changes_where_nothing_is_unknown() -> None:
    old = encode(Outer(label="a", items=(Item("a"),)))
    new = encode(Outer(label="b"))
    assert with_unknown(Outer, old, new) is new


def _count(tree: Any) -> int:
    return msgspec.json.encode(tree).count(b"laterField")


@given(st.text(min_size=1, max_size=20))
def test_a_workload_keeps_all_of_them_over_any_change_of_a_label(label: str) -> None:
    it = Furnished()
    stored = msgspec.json.decode(encode(it.get(it.web)))
    stored["metadata"] = stored["metadata"] | LATER
    stored["spec"] = stored["spec"] | LATER
    stored["spec"]["template"] = stored["spec"]["template"] | LATER
    old = decode(keys.key_of(it.web), msgspec.json.encode(stored))
    metadata = msgspec.structs.replace(old.metadata, labels={"a": label})
    new = encode(msgspec.structs.replace(old, metadata=metadata))
    found = msgspec.json.decode(with_unknown(Workload, msgspec.json.encode(stored), new))
    assert _count(found) == 3
    assert found["metadata"]["labels"] == {"a": label}


def _later(plane: Plane, key: str) -> int:
    record = plane.store.get(key)
    return record.value.count(b"laterField") if record is not None else -1


@pytest.mark.parametrize("fresh", [True, False])
def test_a_decision_that_rewrites_a_record_keeps_them(fresh: bool) -> None:
    """Objects and ledgers, by a server that just started and by one that wrote them before."""
    it = Furnished()
    plane = it.plane
    bound = it.bound()
    ledger, replica = keys.node_ledger(it.node.name), keys.key_of(bound)
    plane.damage(ledger, lambda tree: tree.update(LATER))
    plane.damage(replica, lambda tree: tree["status"].update(LATER))
    if fresh:
        plane.authority = plane.new_authority()
    plane.damaged = False
    it.bound()
    assert _later(plane, ledger) == 1
    for _ in range(2):
        plane.ask(ANN, Remove("replicas", "acme", bound.name))
        assert _later(plane, replica) == 1


def test_another_object_of_the_same_name_begins_without_them() -> None:
    old = {"metadata": {"name": "a", "uid": "1"}, **LATER}
    new = b'{"metadata":{"name":"a","uid":"2"}}'
    assert with_unknown(Workload, msgspec.json.encode(old), new) is new
