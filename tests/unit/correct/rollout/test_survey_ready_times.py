"""How long a replica has been ready, whichever clock is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.correct.rollout.survey import ReadyTimes
from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import Instant, wall_ms
from tests.plane import template
from tests.unit.correct.views import view

KEY = ("acme", "web")
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def ready(since: datetime, uid: str = "r") -> Replica:
    spec = ReplicaSpec(workload="web", workload_uid="w", template=template())
    status = ReplicaStatus(ready_since=since)
    return Replica(ObjectMeta(name=uid, namespace="acme", uid=uid), spec=spec, status=status)


def later(seconds: float, *, own: int = 1_000) -> Instant:
    """This long after noon; the monotonic clock began anywhere."""
    ms = round(seconds * 1_000)
    return Instant(monotonic_ms=own + ms, wall_ms=wall_ms(NOON) + ms)


def test_recorded_times_count_from_before_the_controller_started() -> None:
    """A controller that has just taken over does not restart the wait."""
    seen = ReadyTimes()
    assert seen.ready_ms(KEY, [ready(NOON)], later(7)) == {"r": 7_000}


def test_a_clock_that_is_ahead_makes_no_caller_wait_for_it() -> None:
    seen, ahead = ReadyTimes(), ready(NOON + timedelta(minutes=5))
    assert seen.ready_ms(KEY, [ahead], later(0)) == {"r": 0}
    assert seen.ready_ms(KEY, [ahead], later(3)) == {"r": 3_000}
    again = msgspec.structs.replace(
        ahead, status=msgspec.structs.replace(ahead.status, ready_since=NOON + timedelta(hours=1))
    )
    assert seen.ready_ms(KEY, [again], later(4)) == {"r": 0}


def test_a_calendar_that_is_set_ahead_gives_no_replica_an_earlier_proof() -> None:
    """Neither before a replica became ready while we watched, nor after."""
    seen, born = ReadyTimes(), ready(NOON)
    waiting = msgspec.structs.replace(born, status=ReplicaStatus())
    seen.ready_ms(KEY, [waiting], later(0))
    set_ahead = Instant(later(1).monotonic_ms, later(1).wall_ms + 86_400_000)
    assert seen.ready_ms(KEY, [born], set_ahead) == {"r": 0}
    assert seen.ready_ms(KEY, [born], later(4)) == {"r": 3_000}


def test_what_is_gone_is_forgotten() -> None:
    seen, ahead = ReadyTimes(), ready(NOON + timedelta(minutes=5))
    seen.ready_ms(KEY, [ahead], later(0))
    assert seen.ready_ms(KEY, [], later(1)) == {}
    assert seen.ready_ms(KEY, [ahead], later(2)) == {"r": 0}
    seen.resync(view())
    assert seen.ready_ms(KEY, [ahead], later(3)) == {"r": 0}
