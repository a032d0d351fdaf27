"""Which object a document is about, and what is said when it does not tell."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.host.client.plain_documents import subject_of
from holdfast.model.errors import Invalid

GOOD: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1",
    "kind": "Workload",
    "metadata": {"name": "hello"},
}


def of(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


def test_a_document_without_a_namespace_goes_where_the_command_says() -> None:
    assert subject_of(of(), "shop").path == (
        "/apis/holdfast.dev/v1/namespaces/shop/workloads/hello"
    )
    own = of(metadata={"name": "hello", "namespace": "own"})
    assert subject_of(own, "shop").namespace == "own"


def test_an_object_of_the_whole_cluster_has_no_namespace() -> None:
    assert subject_of(of(kind="Tenant"), "shop").path == "/apis/holdfast.dev/v1/tenants/hello"


def test_a_name_cannot_lead_to_another_path() -> None:
    found = subject_of(of(metadata={"name": "../../tokens/x", "namespace": "a/b"}), "shop")
    assert found.path.endswith("/namespaces/a%2Fb/workloads/..%2F..%2Ftokens%2Fx")


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"apiVersion": "v1"}, "apiVersion: 'v1' must be holdfast.dev/v1"),
        ({"apiVersion": None}, "apiVersion: nothing must be holdfast.dev/v1"),
        ({"kind": ""}, "kind: '' must be the name of a kind, such as Workload"),
        ({"kind": 7}, "kind: 7 must be the name of a kind, such as Workload"),
        ({"kind": "Workloa"}, "kind: unknown kind 'Workloa'; did you mean Workload?"),
        ({"metadata": []}, "metadata.name: nothing must be a name: apply requires one"),
        ({"metadata": {"name": 3}}, "metadata.name: 3 must be a name: apply requires one"),
        ({"metadata": {"name": "a", "namespace": 5}}, "metadata.namespace: 5 must be a string"),
    ],
)
def test_what_is_wrong_is_reported_with_field_value_and_rule(
    changes: dict[str, Any], sentence: str
) -> None:
    """[B4]"""
    with pytest.raises(Invalid) as caught:
        subject_of(of(**changes), "shop")
    assert caught.value.message == sentence
