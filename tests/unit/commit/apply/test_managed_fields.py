"""Managed fields as a client sends them back: read, renamed, or left as they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.apply.managed_fields import entries_for_update
from holdfast.commit.apply.server_side import entries_after_update
from tests.unit.commit.owned_object import WORKLOAD, Live, workload


def test_kubectl_may_rewrite_the_entries_itself() -> None:
    """From 1.26 on it renames its client-side entry by a patch of managedFields."""
    live = Live()
    live.update("kubectl-client-side-apply", workload(replicas=2))
    sent = msgspec.json.decode(msgspec.json.encode(live.owners))
    sent[0].update(manager="kubectl", operation="Apply")
    renamed = entries_for_update(live.owners, sent)
    assert [(e.manager, e.operation) for e in renamed] == [("kubectl", "Apply")]
    live.owners = entries_after_update(
        live.tree, live.tree or {}, renamed, manager="kubectl", now=live.now, shape=WORKLOAD
    )
    live.apply("kubectl", workload())
    assert live.tree == workload()


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
    """Clients that do not understand them must not erase them by accident."""
    live = Live()
    live.apply("a", workload(replicas=2))
    assert entries_for_update(live.owners, sent) is live.owners


def test_an_empty_entry_alone_means_to_forget_all_owners() -> None:
    live = Live()
    live.apply("a", workload(replicas=2))
    assert entries_for_update(live.owners, [{}]) == ()


def test_entries_come_back_unchanged_as_the_very_same() -> None:
    live = Live()
    live.apply("a", workload(replicas=2))
    live.update("b", workload(replicas=3))
    sent = msgspec.json.decode(msgspec.json.encode(live.owners))
    assert entries_for_update(live.owners, sent) is live.owners


def test_two_entries_of_one_owner_become_one() -> None:
    entry = {"manager": "x", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    other = {**entry, "fieldsV1": {"f:spec": {"f:type": {".": {}}}}}
    (only,) = entries_for_update((), [entry, other])
    assert only.fields_v1 == {"f:spec": {"f:replicas": {}, "f:type": {}}}
