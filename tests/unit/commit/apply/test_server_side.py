"""Server-side apply: ownership of fields, conflicts, and pruning."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta

import pytest

from holdfast.commit.apply.managed_fields import Conflicts
from holdfast.commit.apply.server_side import ApplyResult
from holdfast.model.errors import Conflict, Invalid
from holdfast.model.meta import ManagedFields
from tests.unit.commit.owned_object import NODE, T0, Live, Tree, env, workload


def test_a_first_apply_creates_the_object_and_owns_what_it_names() -> None:
    """Names and kinds have no owner; every other given field belongs to the applier."""
    live = Live()
    config = workload({"app": "risk"}, replicas=4, **env(A="1"))
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
    config = workload({"app": "risk"}, replicas=4, rollout={"paused": False}, **env(A="1", B="2"))
    live.apply("kubectl", config)
    result = live.try_apply("kubectl", deepcopy(config))
    assert isinstance(result, ApplyResult)
    assert result.tree is live.tree
    assert result.managed_fields is live.owners


def test_an_apply_stays_unchanged_when_the_store_leaves_defaults_out() -> None:
    """What was applied as `replicas: 1` is stored without it, and is the same next time. [C2]"""
    live = Live()
    config = workload({}, replicas=1, rollout={"maxSurge": "25%"}, template={"env": []})
    live.apply("kubectl", config)
    live.tree = {**workload(), "spec": {"template": {}}}
    result = live.try_apply("kubectl", config)
    assert isinstance(result, ApplyResult)
    assert result.tree is live.tree
    assert result.managed_fields is live.owners


def test_a_conflict_names_owner_version_and_path_as_kubernetes_does() -> None:
    """Users know this sentence, and kubectl prints it. [A9]"""
    live = Live()
    live.update("kubectl-client-side-apply", workload(replicas=2))
    assert live.refuse("ci", workload(replicas=3)) == (
        "Apply failed with 1 conflict: "
        'conflict with "kubectl-client-side-apply" using holdfast.dev/v1: .spec.replicas'
    )


def test_several_conflicts_are_listed_by_owner() -> None:
    live = Live()
    tree = live.apply("ops", workload({"tier": "a"}, **env(LOG="info")))
    live.update("scaler", {**tree, "spec": {**tree["spec"], "replicas": 2}})
    live.apply("status", {"status": {"rollout": {"phase": "Idle"}}}, subresource="status")
    result = live.try_apply("ci", workload({"tier": "b"}, replicas=3, **env(LOG="debug")))
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
    live.apply("a", workload({"x": "1"}, replicas=2))
    live.apply("b", workload(replicas=3), force=True)
    assert live.tree is not None
    assert live.tree["spec"]["replicas"] == 3
    assert live.fields("a") == {"f:metadata": {"f:labels": {"f:x": {}}}}
    assert live.fields("b") == {"f:spec": {"f:replicas": {}}}


def test_equal_values_are_owned_together_and_go_when_the_last_owner_lets_go() -> None:
    live = Live()
    live.apply("a", workload(replicas=3))
    live.apply("b", workload(replicas=3))
    assert live.fields("a") == live.fields("b") == {"f:spec": {"f:replicas": {}}}
    assert "using" not in live.refuse("a", workload(replicas=4))
    live.apply("a", workload())
    assert live.tree == workload(replicas=3)
    assert live.fields("a") is None
    live.apply("b", workload())
    assert live.tree == workload()
    assert live.owners == ()


def test_a_dropped_field_stays_if_an_updater_owns_it() -> None:
    live = Live()
    live.apply("a", workload({"x": "1", "y": "1"}))
    live.update("hand", workload({"x": "2", "y": "1"}))
    assert live.fields("a") == {"f:metadata": {"f:labels": {"f:y": {}}}}
    live.apply("a", workload({}))
    assert live.tree == workload({"x": "2"})


def test_null_on_a_value_asks_for_its_absence_and_owns_that() -> None:
    live = Live()
    live.apply("a", workload(replicas=3, latencyTargetMs=20))
    assert ".spec.latencyTargetMs" in live.refuse("b", workload(latencyTargetMs=None))
    live.apply("a", workload(replicas=3, latencyTargetMs=None))
    assert live.tree == workload(replicas=3)
    before = live.tree
    live.apply("a", workload(replicas=3, latencyTargetMs=None))
    assert live.tree is before
    live.apply("b", workload(latencyTargetMs=None))
    assert live.tree is before
    message = live.refuse("c", workload(latencyTargetMs=5))
    assert '"a"' in message
    assert '"b"' in message


def test_null_on_what_has_parts_says_nothing() -> None:
    """As in Kubernetes: an absent part is no claim, and others' parts stay."""
    live = Live()
    live.apply("a", workload({"x": "1"}, disruption={"maxUnavailable": 1}, **env(A="1")))
    before = live.tree
    nothing = workload(disruption=None, template={"env": None})
    nothing["metadata"]["labels"] = None
    live.apply("b", nothing)
    assert live.tree is before
    assert live.fields("b") == {"f:spec": {"f:template": {}}}
    live.apply("a", workload(disruption=None))
    assert live.tree == workload(template={})


def test_a_default_that_was_applied_is_owned_like_any_value() -> None:
    """The stored tree leaves `replicas: 1` out, but a change still conflicts with its applier.
    [A9]
    """
    live = Live()
    live.apply("a", workload(replicas=1))
    live.tree = workload() | {"spec": {}}
    assert ".spec.replicas" in live.refuse("b", workload(replicas=2))
    live.apply("b", workload(replicas=1))
    assert live.tree == workload() | {"spec": {}}


def test_a_timestamp_is_the_same_in_every_spelling() -> None:
    """Objects keep timestamps in UTC; applying another spelling of one changes nothing. [C2]"""
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


def test_status_is_out_of_reach_of_an_apply_to_the_object_and_the_rest_of_one_to_status() -> None:
    """What a way of writing cannot change it neither changes nor owns. [A9, A10]"""
    live = Live()
    live.apply("a", {**workload(replicas=2), "status": {"observedGeneration": 9}})
    assert live.tree == workload(replicas=2)
    live.apply(
        "a", {**workload(replicas=9), "status": {"observedGeneration": 1}}, subresource="status"
    )
    assert live.tree == {**workload(replicas=2), "status": {"observedGeneration": 1}}
    assert live.fields("a") == {"f:spec": {"f:replicas": {}}}
    assert live.fields("a", "Apply", "status") == {"f:status": {"f:observedGeneration": {}}}
    live.apply("a", workload(replicas=3))
    assert live.tree == {**workload(replicas=3), "status": {"observedGeneration": 1}}


def test_what_the_server_sets_in_metadata_has_no_manager_and_stays() -> None:
    live = Live()
    live.tree = workload(replicas=2)
    server = {"uid": "u", "resourceVersion": "7", "generation": 3, "operations": [{"id": "x"}]}
    live.tree["metadata"].update(server)
    config = workload({"x": "1"})
    config["metadata"]["resourceVersion"] = "6"
    live.apply("a", config, force=True)
    assert live.tree["metadata"] == {
        **workload()["metadata"],
        **server,
        "labels": {"x": "1"},
    }
    assert live.fields("a") == {"f:metadata": {"f:labels": {"f:x": {}}}}


def test_fields_without_an_entry_belong_to_the_manager_before_the_first_apply() -> None:
    live = Live()
    live.tree = workload({"x": "1"}, replicas=2)
    message = live.refuse("a", workload(replicas=3))
    assert 'conflict with "before-first-apply" using holdfast.dev/v1: .spec.replicas' in message
    live.apply("a", workload(replicas=2))
    assert live.fields("before-first-apply", "Update")["f:metadata"] == {
        "f:labels": {"f:x": {}},
    }


@pytest.mark.parametrize(
    "config, complaint",
    [
        (workload(replicaz=1), r"\.spec\.replicaz: field not declared in schema"),
        ({"metadata": {"name": "a", "lables": {}}}, r"\.metadata\.lables"),
        (workload(**env(A="1"), type=None) | {"spce": {}}, r"\.spce"),
        ({"metadata": {"name": "a"}, "spec": []}, r"\.spec: must be an object"),
        ({"metadata": "a"}, r"\.metadata: must be an object"),
        (workload(template={"env": {}}), r"\.spec\.template\.env: must be a list"),
        (workload(template={"env": ["A"]}), r"env\[0\]: must be an object"),
        (workload(template={"env": [{"value": "1"}]}), r"env\[0\]\.name: is required"),
        (workload(template={"env": [{"name": None}]}), r"env\[0\]\.name: is required"),
        (workload(template={"env": [{"name": {}}]}), r"env\[0\]\.name: is required"),
        (
            workload(template={"env": [{"name": "A"}, {"name": "A"}]}),
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
        Live().try_apply(manager, workload())


def test_an_object_has_a_bounded_number_of_managers() -> None:
    live = Live()
    for index in range(100):
        live.apply(f"m{index}", workload({f"l{index}": "x"}))
    with pytest.raises(Invalid, match="at most 100 field managers"):
        live.try_apply("one-too-many", workload({"z": "x"}))
    live.apply("m0", workload({"l0": "y"}))


def test_many_small_configurations_do_not_make_an_object_too_large_to_send() -> None:
    live = Live()
    live.apply("a", workload({"a": "x" * 600_000}))
    with pytest.raises(Invalid, match="at most"):
        live.try_apply("b", workload({"b": "x" * 600_000}))


def test_the_last_to_let_go_does_so_once() -> None:
    """What is left over without an owner is recorded then, not by the next apply. [C2]"""
    live = Live()
    live.apply("a", workload({"x": "1"}, latencyTargetMs=5))
    live.update("hand", workload({"x": "1"}) | {"spec": {}})
    live.apply("a", workload())
    assert live.tree == workload() | {"spec": {}}
    before = live.owners
    live.apply("a", workload())
    assert live.owners is before
