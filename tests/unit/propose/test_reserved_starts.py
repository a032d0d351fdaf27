"""A blocked job gets a reserved start; what would delay it waits, and the estimate is published."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Gang, Workload, WorkloadSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import timestamp
from tests.plane import START_WALL_MS, template
from tests.unit.propose.rig import Rig

MINUTE_MS = 60_000


def _job(rig: Rig, name: str, cpu: str, expected_s: int | None = None, **more: Any) -> Any:
    of = msgspec.structs.replace(template(cpu=cpu), restart=RestartPolicy.NEVER)
    return rig.replica(name, template=of, expected_seconds=expected_s, **more)


def _rig() -> Rig:
    """A node with four processors, three of which are in use for ten minutes by statement."""
    rig = Rig()
    rig.node(cpu="4")
    rig.start()
    _job(rig, "long-0-0", "3", 600)
    _runs(rig, "long-0-0")
    return rig


def _runs(rig: Rig, name: str) -> None:
    rig.pass_time(1_000)
    found = rig.get(name)
    assert found.status.state is State.BOUND
    process = Process(started_at=timestamp(rig.now.wall_ms))
    rig.status(found, state=State.RUNNING, process=process)


def _pending(rig: Rig, name: str) -> Any:
    rig.pass_time(1_000)
    found = rig.get(name)
    assert found.status.state is State.PENDING
    return found.status.pending


def _ends(rig: Rig, name: str) -> None:
    rig.status(rig.get(name), state=State.RELEASED)


def test_a_blocked_job_says_when_it_may_start_and_why() -> None:
    """By the stated end of what runs there, and the error of the estimate is counted. [E3, M2]"""
    rig = _rig()
    ends = rig.get("long-0-0").status.process.started_at + timedelta(seconds=600)
    _job(rig, "big-0-0", "4")
    said = _pending(rig, "big-0-0")
    assert said.estimated_start == ends
    assert "on node node-a, when replica long-0-0 ends by its statement" in said.message
    # It ends three minutes early.
    rig.pass_time(7 * MINUTE_MS - 1_000)
    _ends(rig, "long-0-0")
    rig.pass_time(1_000)
    assert rig.get("big-0-0").status.binding.node == "node-a"
    found = rig.scheduler.backlog(rig.now)
    assert found.estimates == 1
    assert found.estimate_error_ms == pytest.approx(3 * MINUTE_MS, abs=5_000)


def test_only_what_ends_in_time_passes_it() -> None:
    """Small jobs with long or no statements, and services, would starve it. [E3, V5]"""
    rig = _rig()
    _job(rig, "big-0-0", "4")
    _pending(rig, "big-0-0")
    _job(rig, "slow-0-0", "1", 700)
    _job(rig, "silent-0-0", "1")
    rig.replica("service-0-0")
    for name in ("slow-0-0", "silent-0-0", "service-0-0"):
        assert _pending(rig, name).reasons == {"ReservedStart": 1}
    _job(rig, "quick-0-0", "1", 300)
    _runs(rig, "quick-0-0")
    for name in ("quick-0-0", "long-0-0"):
        _ends(rig, name)
    rig.pass_time(MINUTE_MS)
    assert rig.get("big-0-0").status.state is State.BOUND
    # The others are placed once it has ended.
    _ends(rig, "big-0-0")
    rig.pass_time(MINUTE_MS)
    states = [rig.get(f"{it}-0-0").status.state for it in ("slow", "silent", "service")]
    assert states == [State.BOUND] * 3


def test_what_fits_beside_it_and_what_is_more_important_may_pass() -> None:
    """[E3, E4]"""
    rig = _rig()
    _job(rig, "big-0-0", "3500m")
    _pending(rig, "big-0-0")
    rig.replica("beside-0-0", cpu="500m")
    _runs(rig, "beside-0-0")
    rig.replica("more-0-0", cpu="500m")
    assert _pending(rig, "more-0-0").reasons == {"ReservedStart": 1}
    rig.replica("first-0-0", cpu="500m", priority=5)
    _runs(rig, "first-0-0")


def test_an_estimate_without_a_basis_is_none() -> None:
    """Overrun statements close the node all the same; services get no estimate. [E3, M2]"""
    rig = _rig()
    _job(rig, "big-0-0", "4")
    _job(rig, "next-0-0", "4", 5)
    rig.replica("service-0-0", cpu="4")
    _pending(rig, "big-0-0")
    assert "another job is first in its lane" in _pending(rig, "next-0-0").message
    assert "estimated start" not in _pending(rig, "service-0-0").message
    rig.pass_time(11 * MINUTE_MS)
    said = _pending(rig, "big-0-0")
    assert said.estimated_start is None
    assert "no estimated start: replica long-0-0 runs longer than it stated" in said.message
    _job(rig, "small-0-0", "1", 5)
    assert _pending(rig, "small-0-0").reasons == {"ReservedStart": 1}


def test_without_statements_nothing_is_reserved() -> None:
    """Then whatever fits is placed, as before. [E3]"""
    rig = Rig()
    rig.node(cpu="4")
    rig.start()
    _job(rig, "long-0-0", "3")
    _runs(rig, "long-0-0")
    _job(rig, "big-0-0", "4")
    said = _pending(rig, "big-0-0")
    assert "no estimated start: nothing that ends by a stated duration" in said.message
    rig.replica("service-0-0")
    _runs(rig, "service-0-0")


def test_work_of_another_tenant_has_no_name_in_an_estimate() -> None:
    """[M2]"""
    rig = Rig()
    rig.node(cpu="4")
    rig.put(Tenant(ObjectMeta(name="globex")))
    rig.start()
    secret = _job(rig, "merger-0-0", "3", 600, tenant="globex")
    rig.pass_time(1_000)
    started = Process(started_at=timestamp(START_WALL_MS + rig.now_ms))
    rig.status(secret, state=State.RUNNING, process=started)
    _job(rig, "big-0-0", "4")
    said = _pending(rig, "big-0-0")
    assert said.estimated_start is not None
    assert "work of another tenant" in said.message
    assert "merger" not in said.message


def test_a_gang_does_not_pass_a_job_that_it_would_delay() -> None:
    """[E3, G5, V5]"""
    rig = _rig()
    _job(rig, "big-0-0", "4")
    _pending(rig, "big-0-0")
    meta = ObjectMeta(name="web", namespace="acme", uid="w")
    rig.put(Workload(meta, spec=WorkloadSpec(template(), replicas=2, gang=Gang(min_available=1))))
    rig.replica("web-0-0", gang="web")
    assert _pending(rig, "web-0-0").reasons == {"ReservedStart": 1}
