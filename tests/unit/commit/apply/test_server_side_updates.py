"""Ownership after writes that are not applies."""

from __future__ import annotations

from copy import deepcopy

from tests.unit.commit.owned_object import Live, Tree, env, workload


def test_a_created_object_belongs_to_its_creator_as_far_as_it_says_something() -> None:
    """Nulls and empty defaults say nothing; any other default that is spelled out does. [A9]"""
    live = Live()
    live.update("hand", workload({}, replicas=1, latencyTargetMs=None, template={"image": ""}))
    assert live.fields("hand", "Update") == {
        "f:spec": {".": {}, "f:replicas": {}, "f:template": {}}
    }


def test_a_manager_no_longer_owns_what_it_removed_itself() -> None:
    live = Live()
    live.update("hand", workload({"x": "1", "y": "2"}))
    live.update("hand", workload({"y": "2"}))
    assert live.fields("hand", "Update") == {"f:metadata": {"f:labels": {"f:y": {}}}}


def test_an_update_owns_what_it_changed_and_takes_it_from_all_others() -> None:
    """[A9]"""
    live = Live()
    live.apply("a", workload({"x": "1"}, replicas=2, **env(A="1", B="2")))
    live.update("hand", workload({"x": "2"}, replicas=2, **env(A="1", C="3")))
    variable: Tree = {".": {}, "f:name": {}, "f:value": {}}
    assert live.fields("a") == {
        "f:spec": {"f:replicas": {}, "f:template": {"f:env": {'k:{"name":"A"}': variable}}}
    }
    assert live.fields("hand", "Update") == {
        "f:metadata": {"f:labels": {"f:x": {}}},
        "f:spec": {"f:template": {"f:env": {'k:{"name":"C"}': variable}}},
    }


def test_an_update_that_changes_nothing_changes_no_entry() -> None:
    """[C2]"""
    live = Live()
    live.apply("a", workload(replicas=2))
    before = live.owners
    live.update("hand", deepcopy(workload(replicas=2)))
    assert live.owners is before


def test_an_update_adds_to_what_its_manager_owned_and_moves_its_time() -> None:
    live = Live()
    live.update("hand", workload(replicas=2))
    first = live.owners[0].time
    live.update("hand", workload(replicas=3))
    assert live.owners[0].time == live.now != first
    live.update("other", workload(replicas=3, type="Job"))
    hand = next(e for e in live.owners if e.manager == "hand")
    live.update("hand", workload({"x": "1"}, replicas=3, type="Job"))
    assert live.fields("hand", "Update")["f:spec"] == {".": {}, "f:replicas": {}}
    assert next(e for e in live.owners if e.manager == "hand").time != hand.time


def test_a_manager_that_loses_a_field_keeps_the_time_of_its_entry() -> None:
    live = Live()
    live.apply("a", workload({"x": "1"}, replicas=2))
    time = live.owners[0].time
    live.update("hand", workload({"x": "1"}, replicas=3))
    assert live.owners[0].time == time
    assert live.fields("a") == {"f:metadata": {"f:labels": {"f:x": {}}}}


def test_fields_below_a_removed_item_lose_their_owners() -> None:
    """Also fields that hold their default, which no tree shows."""
    live = Live()
    live.apply("a", workload(template={"ports": [{"name": "http", "port": 0, "protocol": "TCP"}]}))
    assert live.tree == workload(template={"ports": [{"name": "http"}]})
    live.update("hand", workload(template={}))
    assert live.fields("a") is None


def test_the_same_name_owns_apart_by_operation_and_subresource() -> None:
    live = Live()
    live.apply("m", workload(replicas=2))
    live.update("m", {**workload(replicas=2), "status": {"observedGeneration": 1}},
                subresource="status")  # fmt: skip
    live.update("m", {**workload(replicas=3), "status": {"observedGeneration": 1}})
    assert [(e.operation, e.subresource) for e in live.owners] == [
        ("Update", "status"),
        ("Update", ""),
    ]


def test_entries_are_in_the_order_of_kubernetes_appliers_first_then_by_time() -> None:
    live = Live()
    live.update("z", workload({"z": "1"}))
    live.update("y", workload({"z": "1", "y": "1"}))
    live.apply("b", workload({"b": "1"}))
    live.apply("a", workload({"a": "1"}))
    assert [e.manager for e in live.owners] == ["b", "a", "z", "y"]


def test_the_oldest_updaters_are_remembered_together() -> None:
    """Eleven hands make ten entries, and no field loses its owner."""
    live = Live()
    labels: Tree = {}
    for index in range(25):
        labels = {**labels, f"l{index}": "x"}
        live.update(f"hand-{index}", workload(labels))
        assert len(live.owners) == min(index + 1, 10)
    ancient = live.owners[0]
    assert ancient.manager == "ancient-changes"
    assert [e.manager for e in live.owners[1:]] == [f"hand-{i}" for i in range(16, 25)]
    owned = [key for e in live.owners for key in e.fields_v1["f:metadata"]["f:labels"]]
    assert sorted(owned) == sorted(f"f:l{i}" for i in range(25))
