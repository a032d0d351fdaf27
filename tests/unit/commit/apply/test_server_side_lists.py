"""Server-side apply of lists, sets and maps: each item has owners of its own."""

from __future__ import annotations

from holdfast.commit.apply.shapes import shape_of
from holdfast.model.kinds.tenant import Quota
from tests.unit.commit.owned_object import NODE, Live, Tree, env, workload


def test_items_of_a_list_belong_to_the_managers_that_added_them() -> None:
    """Two managers each own some of the variables, and neither disturbs the other. [A9]"""
    live = Live()
    live.apply("a", workload(**env(A="1", B="2")))
    live.apply("b", workload(**env(C="3")))
    assert live.tree == workload(**env(A="1", B="2", C="3"))
    live.apply("a", workload(**env(B="2")))
    assert live.tree == workload(**env(B="2", C="3"))
    live.apply("b", workload())
    assert live.tree == workload(**env(B="2"))


def test_an_item_keeps_its_keys_while_a_part_of_it_has_an_owner() -> None:
    live = Live()
    port = {"name": "http", "port": 80, "protocol": "UDP"}
    live.apply("a", workload(template={"ports": [port]}))
    live.update("hand", workload(template={"ports": [{**port, "port": 81}]}))
    live.apply("a", workload())
    assert live.tree == workload(template={"ports": [{"name": "http", "port": 81}]})


def test_applied_items_come_in_their_order_and_others_stay_where_they_are() -> None:
    """The order of variables matters to those that refer to earlier ones."""
    live = Live()
    live.apply("a", workload(**env(A="1", B="2", C="3")))
    live.apply("b", workload(**env(X="1", C="3", Y="2")))
    assert live.tree == workload(**env(A="1", B="2", X="1", C="3", Y="2"))
    live.apply("a", workload(**env(C="3", A="1", B="2")))
    assert live.tree == workload(**env(C="3", A="1", X="1", B="2", Y="2"))
    before = live.tree
    live.apply("a", workload(**env(C="3", A="1", B="2")))
    assert live.tree is before


def test_a_plain_list_has_one_owner_and_is_replaced_as_a_whole() -> None:
    live = Live()
    live.apply("a", workload(template={"command": ["a", "b"]}))
    assert ".spec.template.command" in live.refuse("b", workload(template={"command": ["a"]}))
    live.apply("b", workload(template={"command": ["a"]}), force=True)
    assert live.tree == workload(template={"command": ["a"]})
    assert live.fields("a") is None


def test_a_selector_is_taken_whole() -> None:
    """Half of one manager's reference and half of another's would name a third secret."""
    live = Live()

    def config(name: str) -> Tree:
        secret = {"name": "s", "key": name}
        return workload(template={"env": [{"name": "A", "secret": secret}]})

    live.apply("a", config("k"))
    assert '.env[name="A"].secret' in live.refuse("b", config("l"))
    assert live.fields("a")["f:spec"]["f:template"]["f:env"]['k:{"name":"A"}']["f:secret"] == {}


def test_members_of_a_set_are_owned_one_by_one() -> None:
    live = Live()
    first, second = workload(), workload()
    first["metadata"]["finalizers"] = ["x/one", "x/two"]
    second["metadata"]["finalizers"] = ["x/two", "x/three"]
    live.apply("a", first)
    live.apply("b", second)
    assert live.tree is not None
    assert live.tree["metadata"]["finalizers"] == ["x/one", "x/two", "x/three"]
    assert live.fields("a")["f:metadata"]["f:finalizers"] == {'v:"x/one"': {}, 'v:"x/two"': {}}
    live.apply("a", workload())
    assert live.tree["metadata"]["finalizers"] == ["x/two", "x/three"]


def test_owner_references_are_distinguished_by_uid() -> None:
    live = Live()
    a, b = workload(), workload()
    reference = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "name": "w"}
    a["metadata"]["ownerReferences"] = [{**reference, "uid": "1"}]
    b["metadata"]["ownerReferences"] = [{**reference, "uid": "2"}]
    live.apply("a", a)
    live.apply("b", b)
    assert live.tree is not None
    assert [r["uid"] for r in live.tree["metadata"]["ownerReferences"]] == ["1", "2"]


def test_keys_with_defaults_distinguish_items_whether_spelled_out_or_not() -> None:
    live = Live(NODE)
    live.apply("a", {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "gpu"}]}})
    again = {"key": "gpu", "effect": "NoSchedule", "value": "x"}
    live.apply("b", {"metadata": {"name": "n"}, "spec": {"taints": [again]}})
    assert live.tree is not None
    assert live.tree["spec"]["taints"] == [{"key": "gpu", "value": "x"}]


def test_an_item_that_is_applied_among_new_ones_keeps_what_others_gave_it() -> None:
    live = Live()
    live.apply("a", workload(template={"ports": [{"name": "c", "port": 80, "protocol": "UDP"}]}))
    live.apply("b", workload(template={"ports": [{"name": "x"}, {"name": "y"}, {"name": "c"}]}))
    assert live.tree is not None
    assert live.tree["spec"]["template"]["ports"] == [
        {"name": "x"},
        {"name": "y"},
        {"name": "c", "port": 80, "protocol": "UDP"},
    ]


def test_an_entry_of_a_map_stays_while_a_part_of_it_has_an_owner() -> None:
    live = Live(shape_of(Quota))
    used = {"hard": {"cpu": "1", "memory": "2"}, "reclaimable": {"cpu": "1"}}
    live.apply("a", {"status": {"used": used}}, subresource="status")
    changed = {"hard": {"cpu": "1", "memory": "3"}, "reclaimable": {"cpu": "1"}}
    live.update("hand", {"status": {"used": changed}}, subresource="status")
    live.apply("a", {"status": {}}, subresource="status")
    assert live.tree == {"status": {"used": {"hard": {"memory": "3"}}}}
