"""What all objects have in common: conditions, and parts that are shared without copies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.model.kinds.secret import Secret
from holdfast.model.meta import (
    INT_MAX,
    Condition,
    ConditionStatus,
    Int,
    ObjectMeta,
    Timestamp,
    condition,
    with_condition,
)

T0 = datetime(2026, 3, 1, tzinfo=UTC)
T1 = T0 + timedelta(minutes=1)
READY = Condition("Ready", ConditionStatus.TRUE, 1, reason="Up")


def test_a_new_condition_is_added_at_the_end_with_its_time() -> None:
    """A time that the caller made up does not count. [A2]"""
    made_up = msgspec.structs.replace(READY, last_transition_time=T1)
    (held,) = with_condition((), made_up, T0)
    assert held.last_transition_time == T0
    both = with_condition((held,), Condition("Bound", ConditionStatus.TRUE), T1)
    assert [c.type for c in both] == ["Ready", "Bound"]


def test_saying_the_same_again_writes_nothing() -> None:
    """The very same tuple comes back, so that a converged system is silent. [I1, V4]"""
    held = with_condition((), READY, T0)
    assert with_condition(held, READY, T1) is held


def test_a_changed_reason_keeps_the_time_and_a_changed_status_moves_it() -> None:
    """How long something has been so is what people look for. [A2, C6.9]"""
    held = with_condition((), READY, T0)
    (reworded,) = with_condition(held, msgspec.structs.replace(READY, reason="Warm"), T1)
    assert (reworded.reason, reworded.last_transition_time) == ("Warm", T0)
    (newer,) = with_condition(held, msgspec.structs.replace(READY, observed_generation=2), T1)
    assert (newer.observed_generation, newer.last_transition_time) == (2, T0)
    down = msgspec.structs.replace(READY, status=ConditionStatus.UNKNOWN)
    (changed,) = with_condition(held, down, T1)
    assert (changed.status, changed.last_transition_time) == (ConditionStatus.UNKNOWN, T1)


def test_a_condition_is_replaced_in_its_place() -> None:
    """Others, and the order, stay: each type has its own writer. [A9]"""
    kinds = ("A", "B", "C")
    held = tuple(Condition(kind, ConditionStatus.TRUE) for kind in kinds)
    after = with_condition(held, Condition("B", ConditionStatus.FALSE), T0)
    assert [c.type for c in after] == list(kinds)
    assert (after[0], after[2]) == (held[0], held[2])
    found = condition(after, "B")
    assert found is not None
    assert found.status is ConditionStatus.FALSE
    assert condition(after, "D") is None


def test_an_object_says_its_kind_and_cannot_be_changed_in_place() -> None:
    """Caches and snapshots share objects without copies."""
    secret = Secret(metadata=ObjectMeta(name="db", namespace="risk"))
    assert (secret.name, secret.namespace) == ("db", "risk")
    assert msgspec.to_builtins(secret)["kind"] == "Secret"
    assert msgspec.to_builtins(secret)["metadata"] == {"name": "db", "namespace": "risk"}
    with pytest.raises(AttributeError):
        secret.metadata = ObjectMeta()  # type: ignore[misc]


@pytest.mark.parametrize("text", [f"{INT_MAX + 1}", f"{-INT_MAX - 1}", "1.5", "true"])
def test_a_number_that_readers_would_round_is_no_int(text: str) -> None:
    """Beyond 2^53 JavaScript and jq see another number."""
    assert msgspec.json.decode(str(INT_MAX), type=Int) == INT_MAX
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Int)


def test_a_moment_without_a_time_zone_is_refused() -> None:
    """It would mean another moment on each machine."""
    assert msgspec.json.decode('"2026-03-01T00:00:00Z"', type=Timestamp) == T0
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode('"2026-03-01T00:00:00"', type=Timestamp)
