"""kubectl's move from client-side to server-side apply."""

from __future__ import annotations

from copy import deepcopy

import msgspec
import pytest

from holdfast.commit.apply.server_side import LAST_APPLIED
from tests.unit.commit.owned_object import Live, Tree, workload


def _client_side(config: Tree, config_in_annotation: Tree | None = None) -> Live:
    live = Live()
    text = msgspec.json.encode(config_in_annotation or config).decode()
    tree = deepcopy(config)
    tree["metadata"]["annotations"] = {LAST_APPLIED: text}
    live.update("kubectl-client-side-apply", tree)
    return live


def test_kubectl_does_not_conflict_with_what_it_applied_from_the_client() -> None:
    live = _client_side(workload(replicas=2))
    assert "kubectl-client-side-apply" in live.refuse("ci", workload(replicas=3))
    live.apply("kubectl", workload(replicas=3))
    assert live.tree is not None
    assert live.tree["spec"]["replicas"] == 3
    assert "f:replicas" not in live.fields("kubectl-client-side-apply", "Update").get("f:spec", {})
    assert live.fields("kubectl") == {"f:spec": {"f:replicas": {}}}


def test_the_annotation_follows_so_that_the_way_back_works() -> None:
    live = _client_side(workload(replicas=2))
    tree = live.apply("kubectl", workload(replicas=3))
    last = msgspec.json.decode(tree["metadata"]["annotations"][LAST_APPLIED])
    assert last == workload(replicas=3)
    before = live.tree, live.owners
    live.apply("kubectl", workload(replicas=3))
    assert (live.tree, live.owners) == before
    assert live.tree is before[0]


def test_the_annotation_proves_nothing_about_fields_that_changed_since() -> None:
    live = _client_side(workload(replicas=2, latencyTargetMs=9), workload(replicas=2))
    changed = deepcopy(live.tree)
    assert changed is not None
    changed["spec"]["replicas"] = 5
    live.update("hand", changed)
    message = live.refuse("kubectl", workload(replicas=3, latencyTargetMs=8))
    assert '"hand" using holdfast.dev/v1:\n- .spec.replicas' in message
    assert '"kubectl-client-side-apply" using holdfast.dev/v1:\n- .spec.latencyTargetMs' in message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"spec": 1}', '{"a": NaN}', "\ud800"])
def test_an_annotation_that_cannot_be_read_proves_nothing(text: str) -> None:
    live = _client_side(workload(replicas=2))
    assert live.tree is not None
    live.tree["metadata"]["annotations"][LAST_APPLIED] = text
    assert ".spec.replicas" in live.refuse("kubectl", workload(replicas=3))
