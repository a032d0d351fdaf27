"""Defaults that depend on other fields: filled in once, said aloud, and accepted afterwards."""

from __future__ import annotations

import base64

import pytest

from holdfast.model.defaults import apply_defaults
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.kinds.workload import Workload
from holdfast.model.registry import KINDS
from holdfast.model.validation import validate
from tests.documents import Document, obj

RULE = {"exitCodes": [3], "action": "FailJob"}


def workload(changes: Document) -> tuple[Workload, tuple[str, ...]]:
    changed, sentences = apply_defaults(obj("Workload", changes))
    assert isinstance(changed, Workload)
    return changed, sentences


@pytest.mark.parametrize(
    "changes, restart",
    [
        ({"spec.type": "Job"}, "OnFailure"),
        ({"spec.type": "Job", "spec.template.restart": "Always"}, "OnFailure"),
        ({"spec.type": "Job", "spec.job.failurePolicy": [RULE]}, "Never"),
        ({"spec.type": "Cron", "spec.cron": {"schedule": "@daily"}}, "OnFailure"),
    ],
)
def test_work_that_ends_is_not_restarted_always(changes: Document, restart: str) -> None:
    """Admission says what it changed [B4]."""
    changed, sentences = workload(changes)
    assert changed.spec.template.restart.value == restart
    kind = changes["spec.type"]
    assert sentences == (f"spec.template.restart is {restart}, because a {kind} ends",)
    assert validate(changed) == ()


@pytest.mark.parametrize("restart", ["OnFailure", "Never"])
def test_a_restart_policy_that_a_job_may_have_is_left_alone(restart: str) -> None:
    changed, sentences = workload({"spec.type": "Job", "spec.template.restart": restart})
    assert changed.spec.template.restart is RestartPolicy(restart)
    assert sentences == ()


def test_one_replica_per_node_is_rolled_out_without_a_surge() -> None:
    changed, sentences = workload({"spec.type": "PerNode"})
    assert changed.spec.rollout.max_surge == 0
    assert "maxSurge is 0" in sentences[0]
    assert validate(changed) == ()


def test_a_surge_that_was_asked_for_is_left_for_validation_to_refuse() -> None:
    changed, sentences = workload({"spec.type": "PerNode", "spec.rollout.maxSurge": 2})
    assert sentences == ()
    assert [error.path for error in validate(changed)] == ["spec.rollout.maxSurge"]


def test_plain_text_of_a_secret_is_moved_into_its_data_and_wins() -> None:
    parts = {"data": {"a": "eA==", "b": "eA=="}, "stringData": {"a": "hunter2", "c": "ü"}}
    changed, sentences = apply_defaults(obj("Secret", parts))
    assert isinstance(changed, Secret)
    assert changed.string_data == {}
    assert {k: base64.b64decode(v).decode() for k, v in changed.data.items()} == {
        "a": "hunter2",
        "b": "x",
        "c": "ü",
    }
    assert not any("hunter2" in sentence for sentence in sentences)


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_the_smallest_object_of_every_kind_is_left_alone(kind: str) -> None:
    """The same object comes back, so that a caller sees at once that nothing changed."""
    same = obj(kind)
    changed, sentences = apply_defaults(same)
    assert changed is same
    assert sentences == ()


@pytest.mark.parametrize(
    "kind, changes",
    [
        ("Workload", {"spec.type": "Job"}),
        ("Workload", {"spec.type": "PerNode"}),
        ("Secret", {"stringData": {"a": "b"}}),
    ],
)
def test_filling_in_twice_changes_nothing(kind: str, changes: Document) -> None:
    once, _ = apply_defaults(obj(kind, changes))
    twice, sentences = apply_defaults(once)
    assert twice is once
    assert sentences == ()
