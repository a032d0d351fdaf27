"""Server-side apply: who owns which field, who is asked, and what goes when its owner lets go."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.commit.apply import Applied, apply, updated
from holdfast.commit.clientside import LAST_APPLIED
from holdfast.commit.conflicts import Conflicts
from holdfast.commit.ownership import Entries, entries_sent
from holdfast.commit.shapes import shape_of
from holdfast.model.errors import Conflict, Invalid
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.quota import Quota
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import ManagedFields

WORKLOAD = shape_of(Workload)
NODE = shape_of(Node)
T0 = datetime(2026, 1, 1, tzinfo=UTC)

Tree = dict[str, Any]


class Live:
    """An object with its owners, as a server would keep it."""

    def __init__(self, shape: Any = WORKLOAD) -> None:
        self.tree: Tree | None = None
        self.owners: Entries = ()
        self.now = T0
        self.shape = shape

    def try_apply(self, manager: str, config: Tree, **more: Any) -> Applied | Conflicts:
        self.now += timedelta(minutes=1)
        before = deepcopy((self.tree, self.owners, config))
        result = apply(
            self.tree, self.owners, config, manager=manager, now=self.now, shape=self.shape, **more
        )
        assert (self.tree, self.owners, config) == before, "arguments must never change"
        return result

    def apply(self, manager: str, config: Tree, **more: Any) -> Tree:
        result = self.try_apply(manager, config, **more)
        assert isinstance(result, Applied), result.message
        self.tree, self.owners = result.tree, result.managed_fields
        return self.tree

    def refuse(self, manager: str, config: Tree, **more: Any) -> str:
        result = self.try_apply(manager, config, **more)
        assert isinstance(result, Conflicts), "this must be a conflict"
        return result.message

    def update(self, manager: str, tree: Tree, **more: Any) -> None:
        self.now += timedelta(minutes=1)
        before = deepcopy((self.tree, self.owners, tree))
        owners = updated(
            self.tree, tree, self.owners, manager=manager, now=self.now, shape=self.shape, **more
        )
        assert (self.tree, self.owners, tree) == before, "arguments must never change"
        self.tree, self.owners = tree, owners

    def fields(self, manager: str, operation: str = "Apply", subresource: str = "") -> Any:
        found = [
            e.fields_v1
            for e in self.owners
            if (e.manager, e.operation, e.subresource) == (manager, operation, subresource)
        ]
        assert len(found) <= 1
        return found[0] if found else None


def _config(labels: Tree | None = None, **spec: Any) -> Tree:
    metadata: Tree = {"name": "risk-api", "namespace": "risk"}
    if labels is not None:
        metadata["labels"] = labels
    tree = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": metadata}
    return {**tree, "spec": spec} if spec else tree


def _env(**variables: str) -> Tree:
    return {"template": {"env": [{"name": n, "value": v} for n, v in variables.items()]}}


def test_a_first_apply_creates_the_object_and_owns_what_it_names() -> None:
    """Names and kinds belong to nobody; every other field given belongs to the applier. [A2]"""
    live = Live()
    config = _config({"app": "risk"}, replicas=4, **_env(A="1"))
    assert live.apply("kubectl", config) == config
    assert live.owners == (
        ManagedFields(
            manager="kubectl",
            operation="Apply",
            api_version="holdfast.dev/v1",
            time=T0 + timedelta(minutes=1),
            fields_v1={
                "f:metadata": {"f:labels": {"f:app": {}}},
                "f:spec": {
                    "f:replicas": {},
                    "f:template": {
                        "f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}}
                    },
                },
            },
        ),
    )


def test_an_unchanged_apply_changes_nothing_not_even_a_time() -> None:
    """Both parts come back as the very same objects, so no version is spent on it. [C2]"""
    live = Live()
    config = _config({"app": "risk"}, replicas=4, rollout={"paused": False}, **_env(A="1", B="2"))
    live.apply("kubectl", config)
    result = live.try_apply("kubectl", deepcopy(config))
    assert isinstance(result, Applied)
    assert result.tree is live.tree
    assert result.managed_fields is live.owners


def test_an_apply_stays_unchanged_when_the_store_leaves_defaults_out() -> None:
    """What was applied as `replicas: 1` is stored without it, and is the same next time. [C2]"""
    live = Live()
    config = _config({}, replicas=1, rollout={"maxSurge": "25%"}, template={"env": []})
    live.apply("kubectl", config)
    live.tree = {**_config(), "spec": {"template": {}}}
    result = live.try_apply("kubectl", config)
    assert isinstance(result, Applied)
    assert result.tree is live.tree
    assert result.managed_fields is live.owners


def test_a_conflict_names_owner_version_and_path_as_kubernetes_does() -> None:
    """Users know this sentence, and kubectl prints it. [A9]"""
    live = Live()
    live.update("kubectl-client-side-apply", _config(replicas=2))
    assert live.refuse("ci", _config(replicas=3)) == (
        "Apply failed with 1 conflict: "
        'conflict with "kubectl-client-side-apply" using holdfast.dev/v1: .spec.replicas'
    )


def test_several_conflicts_are_listed_by_owner() -> None:
    live = Live()
    tree = live.apply("ops", _config({"tier": "a"}, **_env(LOG="info")))
    live.update("scaler", {**tree, "spec": {**tree["spec"], "replicas": 2}})
    live.apply("status", {"status": {"rollout": {"phase": "Idle"}}}, subresource="status")
    result = live.try_apply("ci", _config({"tier": "b"}, replicas=3, **_env(LOG="debug")))
    assert isinstance(result, Conflicts)
    assert result.message == (
        "Apply failed with 3 conflicts: "
        'conflicts with "ops":\n'
        "- .metadata.labels.tier\n"
        '- .spec.template.env[name="LOG"].value\n'
        'conflicts with "scaler" using holdfast.dev/v1:\n'
        "- .spec.replicas"
    )
    assert [(c.message, c.field) for c in result.found[:1]] == [
        ('conflict with "ops"', ".metadata.labels.tier")
    ]
    assert isinstance(result.error(), Conflict)
    status = live.refuse("x", {"status": {"rollout": {"phase": "Paused"}}}, subresource="status")
    assert 'conflict with "status" with subresource "status": .status.rollout.phase' in status


def test_force_takes_a_field_over_and_its_owner_loses_it() -> None:
    """The forcer's value stands, and only the forcer owns it. [A9]"""
    live = Live()
    live.apply("a", _config({"x": "1"}, replicas=2))
    live.apply("b", _config(replicas=3), force=True)
    assert live.tree is not None
    assert live.tree["spec"]["replicas"] == 3
    assert live.fields("a") == {"f:metadata": {"f:labels": {"f:x": {}}}}
    assert live.fields("b") == {"f:spec": {"f:replicas": {}}}


def test_equal_values_are_owned_together_and_go_when_the_last_owner_lets_go() -> None:
    live = Live()
    live.apply("a", _config(replicas=3))
    live.apply("b", _config(replicas=3))
    assert live.fields("a") == live.fields("b") == {"f:spec": {"f:replicas": {}}}
    assert "using" not in live.refuse("a", _config(replicas=4))
    live.apply("a", _config())
    assert live.tree == _config(replicas=3)
    assert live.fields("a") is None
    live.apply("b", _config())
    assert live.tree == _config()
    assert live.owners == ()


def test_a_dropped_field_stays_if_an_updater_owns_it() -> None:
    live = Live()
    live.apply("a", _config({"x": "1", "y": "1"}))
    live.update("hand", _config({"x": "2", "y": "1"}))
    assert live.fields("a") == {"f:metadata": {"f:labels": {"f:y": {}}}}
    live.apply("a", _config({}))
    assert live.tree == _config({"x": "2"})


def test_items_of_a_list_belong_to_those_who_put_them_there() -> None:
    """Two managers each own some of the variables, and neither disturbs the other. [A9]"""
    live = Live()
    live.apply("a", _config(**_env(A="1", B="2")))
    live.apply("b", _config(**_env(C="3")))
    assert live.tree == _config(**_env(A="1", B="2", C="3"))
    live.apply("a", _config(**_env(B="2")))
    assert live.tree == _config(**_env(B="2", C="3"))
    live.apply("b", _config())
    assert live.tree == _config(**_env(B="2"))


def test_an_item_keeps_its_keys_while_anybody_owns_a_part_of_it() -> None:
    live = Live()
    port = {"name": "http", "port": 80, "protocol": "UDP"}
    live.apply("a", _config(template={"ports": [port]}))
    live.update("hand", _config(template={"ports": [{**port, "port": 81}]}))
    live.apply("a", _config())
    assert live.tree == _config(template={"ports": [{"name": "http", "port": 81}]})


def test_applied_items_come_in_their_order_and_others_stay_where_they_are() -> None:
    """The order of variables matters to those that refer to earlier ones."""
    live = Live()
    live.apply("a", _config(**_env(A="1", B="2", C="3")))
    live.apply("b", _config(**_env(X="1", C="3", Y="2")))
    assert live.tree == _config(**_env(A="1", B="2", X="1", C="3", Y="2"))
    live.apply("a", _config(**_env(C="3", A="1", B="2")))
    assert live.tree == _config(**_env(C="3", A="1", X="1", B="2", Y="2"))
    before = live.tree
    live.apply("a", _config(**_env(C="3", A="1", B="2")))
    assert live.tree is before


def test_a_plain_list_has_one_owner_and_is_replaced_as_a_whole() -> None:
    live = Live()
    live.apply("a", _config(template={"command": ["a", "b"]}))
    assert ".spec.template.command" in live.refuse("b", _config(template={"command": ["a"]}))
    live.apply("b", _config(template={"command": ["a"]}), force=True)
    assert live.tree == _config(template={"command": ["a"]})
    assert live.fields("a") is None


def test_a_selector_is_taken_whole() -> None:
    """Half of one manager's reference and half of another's would name a third secret."""
    live = Live()

    def config(name: str) -> Tree:
        secret = {"name": "s", "key": name}
        return _config(template={"env": [{"name": "A", "secret": secret}]})

    live.apply("a", config("k"))
    assert '.env[name="A"].secret' in live.refuse("b", config("l"))
    assert live.fields("a")["f:spec"]["f:template"]["f:env"]['k:{"name":"A"}']["f:secret"] == {}


def test_members_of_a_set_are_owned_one_by_one() -> None:
    live = Live()
    first, second = _config(), _config()
    first["metadata"]["finalizers"] = ["x/one", "x/two"]
    second["metadata"]["finalizers"] = ["x/two", "x/three"]
    live.apply("a", first)
    live.apply("b", second)
    assert live.tree is not None
    assert live.tree["metadata"]["finalizers"] == ["x/one", "x/two", "x/three"]
    assert live.fields("a")["f:metadata"]["f:finalizers"] == {'v:"x/one"': {}, 'v:"x/two"': {}}
    live.apply("a", _config())
    assert live.tree["metadata"]["finalizers"] == ["x/two", "x/three"]


def test_owner_references_are_told_apart_by_uid() -> None:
    live = Live()
    a, b = _config(), _config()
    reference = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "name": "w"}
    a["metadata"]["ownerReferences"] = [{**reference, "uid": "1"}]
    b["metadata"]["ownerReferences"] = [{**reference, "uid": "2"}]
    live.apply("a", a)
    live.apply("b", b)
    assert live.tree is not None
    assert [r["uid"] for r in live.tree["metadata"]["ownerReferences"]] == ["1", "2"]


def test_null_on_a_value_asks_for_its_absence_and_owns_that() -> None:
    live = Live()
    live.apply("a", _config(replicas=3, latencyTargetMs=20))
    assert ".spec.latencyTargetMs" in live.refuse("b", _config(latencyTargetMs=None))
    live.apply("a", _config(replicas=3, latencyTargetMs=None))
    assert live.tree == _config(replicas=3)
    before = live.tree
    live.apply("a", _config(replicas=3, latencyTargetMs=None))
    assert live.tree is before
    live.apply("b", _config(latencyTargetMs=None))
    assert live.tree is before
    message = live.refuse("c", _config(latencyTargetMs=5))
    assert '"a"' in message
    assert '"b"' in message


def test_null_on_what_has_parts_says_nothing() -> None:
    """As in Kubernetes: an absent part is no claim, and others' parts stay."""
    live = Live()
    live.apply("a", _config({"x": "1"}, disruption={"maxUnavailable": 1}, **_env(A="1")))
    before = live.tree
    nothing = _config(disruption=None, template={"env": None})
    nothing["metadata"]["labels"] = None
    live.apply("b", nothing)
    assert live.tree is before
    assert live.fields("b") == {"f:spec": {"f:template": {}}}
    live.apply("a", _config(disruption=None))
    assert live.tree == _config(template={})


def test_a_default_that_was_applied_is_owned_like_any_value() -> None:
    """The stored tree leaves `replicas: 1` out, but whoever asked for it is asked. [A9]"""
    live = Live()
    live.apply("a", _config(replicas=1))
    live.tree = _config() | {"spec": {}}
    assert ".spec.replicas" in live.refuse("b", _config(replicas=2))
    live.apply("b", _config(replicas=1))
    assert live.tree == _config() | {"spec": {}}


def test_a_moment_is_the_same_in_every_spelling() -> None:
    """Objects keep moments in UTC; who applies another spelling of one changes nothing. [C2]"""
    live = Live(NODE)

    def config(deadline: str) -> Tree:
        return {"metadata": {"name": "n"}, "spec": {"drain": {"deadline": deadline}}}

    live.apply("a", config("2026-01-01T02:00:00+02:00"))
    live.tree = config("2026-01-01T00:00:00Z")
    before, owners = live.tree, live.owners
    live.apply("a", config("2026-01-01T02:00:00+02:00"))
    assert live.tree is before
    assert live.owners is owners
    live.apply("b", config("2026-01-01T00:00:00.000Z"))
    assert live.tree is before
    assert ".spec.drain.deadline" in live.refuse("b", config("2026-01-01T00:00:01Z"))
    assert ".spec.drain.deadline" in live.refuse("b", config("some day"))


def test_a_part_that_may_be_missing_goes_with_its_last_owner() -> None:
    live = Live(NODE)
    live.apply("a", {"metadata": {"name": "n"}, "spec": {"drain": {}}})
    live.apply("b", {"metadata": {"name": "n"}, "spec": {"drain": {"reason": "disk"}}})
    live.apply("b", {"metadata": {"name": "n"}})
    assert live.tree == {"metadata": {"name": "n"}, "spec": {"drain": {}}}
    live.apply("a", {"metadata": {"name": "n"}})
    assert live.tree == {"metadata": {"name": "n"}}


def test_keys_with_defaults_tell_items_apart_whether_spelled_out_or_not() -> None:
    live = Live(NODE)
    live.apply("a", {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "gpu"}]}})
    again = {"key": "gpu", "effect": "NoSchedule", "value": "x"}
    live.apply("b", {"metadata": {"name": "n"}, "spec": {"taints": [again]}})
    assert live.tree is not None
    assert live.tree["spec"]["taints"] == [{"key": "gpu", "value": "x"}]


def test_status_is_out_of_reach_of_an_apply_to_the_object_and_the_rest_of_one_to_status() -> None:
    """What a way of writing cannot change it neither changes nor owns. [A9, A10]"""
    live = Live()
    live.apply("a", {**_config(replicas=2), "status": {"observedGeneration": 9}})
    assert live.tree == _config(replicas=2)
    live.apply(
        "a", {**_config(replicas=9), "status": {"observedGeneration": 1}}, subresource="status"
    )
    assert live.tree == {**_config(replicas=2), "status": {"observedGeneration": 1}}
    assert live.fields("a") == {"f:spec": {"f:replicas": {}}}
    assert live.fields("a", "Apply", "status") == {"f:status": {"f:observedGeneration": {}}}
    live.apply("a", _config(replicas=3))
    assert live.tree == {**_config(replicas=3), "status": {"observedGeneration": 1}}


def test_what_the_server_sets_in_metadata_is_nobodys_and_stays() -> None:
    live = Live()
    live.tree = _config(replicas=2)
    server = {"uid": "u", "resourceVersion": "7", "generation": 3, "operations": [{"id": "x"}]}
    live.tree["metadata"].update(server)
    config = _config({"x": "1"})
    config["metadata"]["resourceVersion"] = "6"
    live.apply("a", config, force=True)
    assert live.tree["metadata"] == {
        **_config()["metadata"],
        **server,
        "labels": {"x": "1"},
    }
    assert live.fields("a") == {"f:metadata": {"f:labels": {"f:x": {}}}}


def test_fields_without_a_record_belong_to_whoever_came_before_the_first_apply() -> None:
    live = Live()
    live.tree = _config({"x": "1"}, replicas=2)
    message = live.refuse("a", _config(replicas=3))
    assert 'conflict with "before-first-apply" using holdfast.dev/v1: .spec.replicas' in message
    live.apply("a", _config(replicas=2))
    assert live.fields("before-first-apply", "Update")["f:metadata"] == {
        "f:labels": {"f:x": {}},
    }


@pytest.mark.parametrize(
    "config, complaint",
    [
        (_config(replicaz=1), r"\.spec\.replicaz: field not declared in schema"),
        ({"metadata": {"name": "a", "lables": {}}}, r"\.metadata\.lables"),
        (_config(**_env(A="1"), type=None) | {"spce": {}}, r"\.spce"),
        ({"metadata": {"name": "a"}, "spec": []}, r"\.spec: must be an object"),
        ({"metadata": "a"}, r"\.metadata: must be an object"),
        (_config(template={"env": {}}), r"\.spec\.template\.env: must be a list"),
        (_config(template={"env": ["A"]}), r"env\[0\]: must be an object"),
        (_config(template={"env": [{"value": "1"}]}), r"env\[0\]\.name: is required"),
        (_config(template={"env": [{"name": None}]}), r"env\[0\]\.name: is required"),
        (_config(template={"env": [{"name": {}}]}), r"env\[0\]\.name: is required"),
        (
            _config(template={"env": [{"name": "A"}, {"name": "A"}]}),
            r'env\[name="A"\]: duplicate entries for key',
        ),
        ({"metadata": {"finalizers": ["a", "a"]}}, "duplicate entries for key"),
        ({"metadata": {"finalizers": [["a"]]}}, "must be a plain value"),
        ({"metadata": {"labels": ["a"]}}, r"\.metadata\.labels: must be an object"),
        ({"metadata": {"managedFields": [{}]}}, "metadata.managedFields must be nil"),
    ],
)
def test_a_configuration_of_the_wrong_form_is_refused_by_its_path(
    config: Tree, complaint: str
) -> None:
    with pytest.raises(Invalid, match=complaint):
        Live().try_apply("a", config)


@pytest.mark.parametrize("manager", ["", "a\n", "x" * 129])
def test_a_manager_has_a_name(manager: str) -> None:
    with pytest.raises(Invalid, match="fieldManager"):
        Live().try_apply(manager, _config())


def test_an_object_has_a_bounded_number_of_managers() -> None:
    live = Live()
    for index in range(100):
        live.apply(f"m{index}", _config({f"l{index}": "x"}))
    with pytest.raises(Invalid, match="at most 100 field managers"):
        live.try_apply("one-too-many", _config({"z": "x"}))
    live.apply("m0", _config({"l0": "y"}))


def test_many_small_configurations_do_not_make_an_object_that_nobody_could_send() -> None:
    live = Live()
    live.apply("a", _config({"a": "x" * 600_000}))
    with pytest.raises(Invalid, match="at most"):
        live.try_apply("b", _config({"b": "x" * 600_000}))


def test_an_item_that_is_applied_among_new_ones_keeps_what_others_gave_it() -> None:
    live = Live()
    live.apply("a", _config(template={"ports": [{"name": "c", "port": 80, "protocol": "UDP"}]}))
    live.apply("b", _config(template={"ports": [{"name": "x"}, {"name": "y"}, {"name": "c"}]}))
    assert live.tree is not None
    assert live.tree["spec"]["template"]["ports"] == [
        {"name": "x"},
        {"name": "y"},
        {"name": "c", "port": 80, "protocol": "UDP"},
    ]


def test_an_entry_of_a_map_stays_while_anybody_owns_a_part_of_it() -> None:
    live = Live(shape_of(Quota))
    used = {"hard": {"cpu": "1", "memory": "2"}, "reclaimable": {"cpu": "1"}}
    live.apply("a", {"status": {"used": used}}, subresource="status")
    changed = {"hard": {"cpu": "1", "memory": "3"}, "reclaimable": {"cpu": "1"}}
    live.update("hand", {"status": {"used": changed}}, subresource="status")
    live.apply("a", {"status": {}}, subresource="status")
    assert live.tree == {"status": {"used": {"hard": {"memory": "3"}}}}


def test_the_last_to_let_go_does_so_once() -> None:
    """What is left over without an owner is recorded then, not by the next apply. [C2]"""
    live = Live()
    live.apply("a", _config({"x": "1"}, latencyTargetMs=5))
    live.update("hand", _config({"x": "1"}) | {"spec": {}})
    live.apply("a", _config())
    assert live.tree == _config() | {"spec": {}}
    before = live.owners
    live.apply("a", _config())
    assert live.owners is before


# Writes that are not applies.


def test_a_created_object_belongs_to_its_creator_as_far_as_it_says_something() -> None:
    """Nulls and empty defaults say nothing; any other default that is spelled out does. [A9]"""
    live = Live()
    live.update("hand", _config({}, replicas=1, latencyTargetMs=None, template={"image": ""}))
    assert live.fields("hand", "Update") == {
        "f:spec": {".": {}, "f:replicas": {}, "f:template": {}}
    }


def test_a_manager_no_longer_owns_what_it_removed_itself() -> None:
    live = Live()
    live.update("hand", _config({"x": "1", "y": "2"}))
    live.update("hand", _config({"y": "2"}))
    assert live.fields("hand", "Update") == {"f:metadata": {"f:labels": {"f:y": {}}}}


def test_an_update_owns_what_it_changed_and_takes_it_from_all_others() -> None:
    """[A9]"""
    live = Live()
    live.apply("a", _config({"x": "1"}, replicas=2, **_env(A="1", B="2")))
    live.update("hand", _config({"x": "2"}, replicas=2, **_env(A="1", C="3")))
    variable = {".": {}, "f:name": {}, "f:value": {}}
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
    live.apply("a", _config(replicas=2))
    before = live.owners
    live.update("hand", deepcopy(_config(replicas=2)))
    assert live.owners is before


def test_an_update_adds_to_what_its_manager_owned_and_moves_its_time() -> None:
    live = Live()
    live.update("hand", _config(replicas=2))
    first = live.owners[0].time
    live.update("hand", _config(replicas=3))
    assert live.owners[0].time == live.now != first
    live.update("other", _config(replicas=3, type="Job"))
    hand = next(e for e in live.owners if e.manager == "hand")
    live.update("hand", _config({"x": "1"}, replicas=3, type="Job"))
    assert live.fields("hand", "Update")["f:spec"] == {".": {}, "f:replicas": {}}
    assert next(e for e in live.owners if e.manager == "hand").time != hand.time


def test_who_loses_a_field_keeps_the_time_of_its_entry() -> None:
    live = Live()
    live.apply("a", _config({"x": "1"}, replicas=2))
    time = live.owners[0].time
    live.update("hand", _config({"x": "1"}, replicas=3))
    assert live.owners[0].time == time
    assert live.fields("a") == {"f:metadata": {"f:labels": {"f:x": {}}}}


def test_whatever_was_owned_below_a_removed_item_is_owned_no_more() -> None:
    """Also fields that hold their default, which no tree shows."""
    live = Live()
    live.apply("a", _config(template={"ports": [{"name": "http", "port": 0, "protocol": "TCP"}]}))
    assert live.tree == _config(template={"ports": [{"name": "http"}]})
    live.update("hand", _config(template={}))
    assert live.fields("a") is None


def test_the_same_name_owns_apart_by_operation_and_subresource() -> None:
    live = Live()
    live.apply("m", _config(replicas=2))
    live.update("m", {**_config(replicas=2), "status": {"observedGeneration": 1}},
                subresource="status")  # fmt: skip
    live.update("m", {**_config(replicas=3), "status": {"observedGeneration": 1}})
    assert [(e.operation, e.subresource) for e in live.owners] == [
        ("Update", "status"),
        ("Update", ""),
    ]


def test_entries_are_in_the_order_of_kubernetes_appliers_first_then_by_time() -> None:
    live = Live()
    live.update("z", _config({"z": "1"}))
    live.update("y", _config({"z": "1", "y": "1"}))
    live.apply("b", _config({"b": "1"}))
    live.apply("a", _config({"a": "1"}))
    assert [e.manager for e in live.owners] == ["b", "a", "z", "y"]


def test_the_oldest_updaters_are_remembered_together() -> None:
    """Eleven hands make ten entries, and no field loses its owner."""
    live = Live()
    labels: Tree = {}
    for index in range(25):
        labels = {**labels, f"l{index}": "x"}
        live.update(f"hand-{index}", _config(labels))
        assert len(live.owners) == min(index + 1, 10)
    ancient = live.owners[0]
    assert ancient.manager == "ancient-changes"
    assert [e.manager for e in live.owners[1:]] == [f"hand-{i}" for i in range(16, 25)]
    owned = [key for e in live.owners for key in e.fields_v1["f:metadata"]["f:labels"]]
    assert sorted(owned) == sorted(f"f:l{i}" for i in range(25))


# kubectl's move from client-side to server-side apply.


def _client_side(config: Tree, config_in_annotation: Tree | None = None) -> Live:
    live = Live()
    text = msgspec.json.encode(config_in_annotation or config).decode()
    tree = deepcopy(config)
    tree["metadata"]["annotations"] = {LAST_APPLIED: text}
    live.update("kubectl-client-side-apply", tree)
    return live


def test_kubectl_does_not_conflict_with_what_it_applied_from_the_client() -> None:
    live = _client_side(_config(replicas=2))
    assert "kubectl-client-side-apply" in live.refuse("ci", _config(replicas=3))
    live.apply("kubectl", _config(replicas=3))
    assert live.tree is not None
    assert live.tree["spec"]["replicas"] == 3
    assert "f:replicas" not in live.fields("kubectl-client-side-apply", "Update").get("f:spec", {})
    assert live.fields("kubectl") == {"f:spec": {"f:replicas": {}}}


def test_the_annotation_follows_so_that_the_way_back_works() -> None:
    live = _client_side(_config(replicas=2))
    tree = live.apply("kubectl", _config(replicas=3))
    last = msgspec.json.decode(tree["metadata"]["annotations"][LAST_APPLIED])
    assert last == _config(replicas=3)
    before = live.tree, live.owners
    live.apply("kubectl", _config(replicas=3))
    assert (live.tree, live.owners) == before
    assert live.tree is before[0]


def test_the_annotation_proves_nothing_about_fields_that_changed_since() -> None:
    live = _client_side(_config(replicas=2, latencyTargetMs=9), _config(replicas=2))
    changed = deepcopy(live.tree)
    assert changed is not None
    changed["spec"]["replicas"] = 5
    live.update("hand", changed)
    message = live.refuse("kubectl", _config(replicas=3, latencyTargetMs=8))
    assert '"hand" using holdfast.dev/v1:\n- .spec.replicas' in message
    assert '"kubectl-client-side-apply" using holdfast.dev/v1:\n- .spec.latencyTargetMs' in message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"spec": 1}', '{"a": NaN}', "\ud800"])
def test_an_annotation_that_cannot_be_read_proves_nothing(text: str) -> None:
    live = _client_side(_config(replicas=2))
    assert live.tree is not None
    live.tree["metadata"]["annotations"][LAST_APPLIED] = text
    assert ".spec.replicas" in live.refuse("kubectl", _config(replicas=3))


def test_kubectl_may_rewrite_the_entries_itself() -> None:
    """From 1.26 on it renames its client-side entry by a patch of managedFields."""
    live = Live()
    live.update("kubectl-client-side-apply", _config(replicas=2))
    sent = msgspec.json.decode(msgspec.json.encode(live.owners))
    sent[0].update(manager="kubectl", operation="Apply")
    renamed = entries_sent(live.owners, sent)
    assert [(e.manager, e.operation) for e in renamed] == [("kubectl", "Apply")]
    live.owners = updated(
        live.tree, live.tree or {}, renamed, manager="kubectl", now=live.now, shape=WORKLOAD
    )
    live.apply("kubectl", _config())
    assert live.tree == _config()


@pytest.mark.parametrize(
    "sent",
    [
        None,
        [],
        "x",
        {},
        [{"manager": "x", "operation": "Steal", "fieldsV1": {}}],
        [{"manager": "", "operation": "Apply", "fieldsV1": {"f:spec": {}}}],
        [{"manager": "x", "operation": "Apply", "fieldsV1": []}],
        [{"manager": "x", "operation": "Apply", "fieldsV1": {"spec": {}}}],
        [{"manager": "x", "operation": "Apply", "fieldsV1": {"f:spec": {"k:{": {}}}}],
        [{"manager": "x", "operation": "Apply", "fieldsV1": {"f:spec": {"k:{x}": {}}}}],
        [{"manager": "x", "operation": "Apply", "fieldsV1": {"f:spec": 1}}],
        [{"manager": "x", "operation": "Apply", "fieldsV1": {".": {}}}],
        [{"manager": "x", "operation": "Apply", "apiVersion": "v9", "fieldsV1": {"f:a": {}}}],
        [{"manager": "x", "operation": "Apply", "time": "now", "fieldsV1": {"f:a": {}}}],
        [{}, {}],
    ],
)
def test_entries_that_cannot_be_read_leave_those_there_are(sent: Any) -> None:
    """Clients that do not understand them must not erase them by accident. [A9]"""
    live = Live()
    live.apply("a", _config(replicas=2))
    assert entries_sent(live.owners, sent) is live.owners


def test_an_empty_entry_alone_means_to_forget_all_owners() -> None:
    live = Live()
    live.apply("a", _config(replicas=2))
    assert entries_sent(live.owners, [{}]) == ()


def test_entries_come_back_unchanged_as_the_very_same() -> None:
    """[C2]"""
    live = Live()
    live.apply("a", _config(replicas=2))
    live.update("b", _config(replicas=3))
    sent = msgspec.json.decode(msgspec.json.encode(live.owners))
    assert entries_sent(live.owners, sent) is live.owners


def test_two_entries_of_one_owner_become_one() -> None:
    entry = {"manager": "x", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    other = {**entry, "fieldsV1": {"f:spec": {"f:type": {".": {}}}}}
    (only,) = entries_sent((), [entry, other])
    assert only.fields_v1 == {"f:spec": {"f:replicas": {}, "f:type": {}}}
