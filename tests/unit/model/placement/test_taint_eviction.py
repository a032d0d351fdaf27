"""When a NoExecute taint ends the stay of running work, by example."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model.kinds.placement import Taint, TaintEffect, Toleration, TolerationOperator
from holdfast.model.placement.taint_eviction import stay_ends, with_times

AT = datetime(2030, 1, 1, tzinfo=UTC)
HARSH = Taint("ill", effect=TaintEffect.NO_EXECUTE, time_added=AT)
EVERY = TolerationOperator.EXISTS


def for_s(seconds: int | None, key: str = "ill") -> Toleration:
    return Toleration(key, EVERY, toleration_seconds=seconds)


@pytest.mark.parametrize(
    "taints, tolerations, bound_s, ends_s",
    [
        ((), (), 0, None),
        ((Taint("ill"),), (), 0, None),
        ((HARSH,), (), 0, "at once"),
        ((HARSH,), (for_s(30, "other"),), 0, "at once"),
        ((HARSH,), (for_s(None),), 0, None),
        ((HARSH,), (for_s(30),), -100, 30),
        # It was bound there although the taint was there: its seconds begin with the bind.
        ((HARSH,), (for_s(30),), 100, 130),
        # The first toleration that covers a taint counts, and the first end of all taints.
        ((HARSH,), (for_s(60), for_s(30)), 0, 60),
        ((HARSH, Taint("b", effect=TaintEffect.NO_EXECUTE)), (for_s(60),), 0, "at once"),
        (
            (HARSH, Taint("b", effect=TaintEffect.NO_EXECUTE, time_added=AT)),
            (for_s(60), for_s(10, "b")),
            0,
            10,
        ),
    ],
)
def test_a_stay_ends_at_once_later_or_never(
    taints: tuple[Taint, ...],
    tolerations: tuple[Toleration, ...],
    bound_s: int,
    ends_s: int | str | None,
) -> None:
    found = stay_ends(taints, tolerations, AT + timedelta(seconds=bound_s))
    if found is None or found.at is None:
        assert ends_s == (None if found is None else "at once")
    else:
        assert found.at - AT == timedelta(seconds=ends_s)


def test_a_taint_keeps_the_time_at_which_it_was_added() -> None:
    later = AT + timedelta(seconds=5)
    plain = Taint("ill", effect=TaintEffect.NO_EXECUTE)
    (first,) = with_times((plain,), (), AT)
    assert first.time_added == AT
    assert with_times((plain,), (first,), later) == (first,)
    lied = Taint("ill", effect=TaintEffect.NO_EXECUTE, time_added=later)
    assert with_times((lied,), (first,), later) == (first,), "the server's own time counts"
    (other,) = with_times((Taint("ill", "now", TaintEffect.NO_EXECUTE),), (first,), later)
    assert other.time_added == later
    soft = Taint("ill")
    assert with_times((soft,), (), AT) == (soft,)
