"""Jobs, cron jobs and one per node with real processes, while parts of the plane are killed.

HOLDFAST_END_TO_END_LONG=1, as `make end-to-end-long` sets it, runs 500 completions and waits for
whole minutes of a cron job's schedule.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.correct.jobs.index_runs import RELEASED_KEPT_MAX
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import Resources, RestartPolicy, Template
from holdfast.model.kinds.workload import (
    Concurrency,
    Cron,
    Job,
    Workload,
    WorkloadSpec,
    WorkloadType,
)
from holdfast.model.meta import ObjectMeta
from holdfast.model.workload.jobs import finished_condition, scheduled_at
from tests.live.whole_plane import IS_LONG, LONG_FENCE, WholePlane

COMPLETIONS, PARALLELISM = (500, 50) if IS_LONG else (60, 20)
AGENT = ("--capacity", "cpu=32")
pytestmark = pytest.mark.timeout(900)


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, 900.0))


def workload(name: str, *command: str, **spec: Any) -> Workload:
    made = Template(command=command, restart=RestartPolicy.NEVER, resources=Resources(cpu="100m"))
    if spec["type"] is WorkloadType.PER_NODE:
        made = msgspec.structs.replace(made, restart=RestartPolicy.ALWAYS)
    metadata = ObjectMeta(name=name, namespace="default")
    return Workload(metadata, spec=WorkloadSpec(template=made, **spec))


def ran(notes: Path) -> Counter[str]:
    """How often each index was run, as the runs themselves say."""
    return Counter(notes.read_text().split())


async def over(plane: WholePlane, name: str) -> Workload:
    async def look() -> Workload | None:
        found = await plane.client.get(Workload, name, "default")
        return found if finished_condition(found) is not None else None

    made: Workload = await plane.until(look, 300.0)
    return made


async def _complete(plane: WholePlane, notes: Path) -> None:
    """Every index runs once, though the controllers die meanwhile."""
    line = f'echo "$HOLDFAST_INDEX" >> {notes}'
    job = Job(completions=COMPLETIONS, parallelism=PARALLELISM, indexed=True)
    began = time.monotonic()
    await plane.client.create(
        workload("web", "/bin/sh", "-c", line, type=WorkloadType.JOB, job=job)
    )

    async def some() -> bool:
        found = await plane.client.get(Workload, "web", "default")
        return found.status.progress.succeeded >= COMPLETIONS // 3

    await plane.until(some, 300.0)
    # The next leader has only the account and the replicas to go by.
    plane.parts["controllers"].signal(signal.SIGKILL)
    ended = await over(plane, "web")
    took_s = time.monotonic() - began
    said = finished_condition(ended)
    assert said is not None
    assert said.type == "Complete"
    assert ended.status.job.completed_indexes == f"0-{COMPLETIONS - 1}"
    assert ran(notes) == Counter(map(str, range(COMPLETIONS)))

    async def cleared() -> bool:
        return len(await plane.replicas()) <= RELEASED_KEPT_MAX

    await plane.until(cleared)
    print(f"{COMPLETIONS} completions, {PARALLELISM} at a time: {took_s:.1f} s")


async def _fail(plane: WholePlane) -> None:
    """One job fails by its retries and goes, one by its deadline and stays."""
    failed = finished_condition(await over(plane, "bad"))
    assert failed is not None
    assert (failed.type, failed.reason) == ("Failed", "RetriesExceeded")
    missed = finished_condition(await over(plane, "late"))
    assert missed is not None
    assert (missed.type, missed.reason) == ("Failed", "DeadlineExceeded")

    async def only_each() -> bool:
        found = (await plane.client.list(Replica, "default")).objects
        states = {(it.spec.workload, it.status.state.value) for it in found}
        names = {it.name for it in (await plane.client.list(Workload, "default")).objects}
        return states == {("late", "Released"), ("each", "Running")} and "bad" not in names

    await plane.until(only_each)
    found = (await plane.client.list(Replica, "default")).objects
    homes = [it.status.binding for it in found if it.spec.workload == "each"]
    assert sorted(it.node for it in homes if it is not None) == ["n1", "n2"]


async def _jobs(folder: Path) -> None:
    async with WholePlane(folder, ("n1", "n2"), fence=LONG_FENCE, agent=AGENT) as plane:
        create = plane.client.create
        bad = Job(completions=2, retries=1, ttl_seconds_after_finished=10)
        late = Job(completions=1, deadline_seconds=5)
        await create(workload("each", "sleep", "600", type=WorkloadType.PER_NODE))
        await create(workload("late", "sleep", "600", type=WorkloadType.JOB, job=late))
        await create(workload("bad", "false", type=WorkloadType.JOB, job=bad))
        await _fail(plane)
        await _complete(plane, folder / "notes")


def test_jobs_complete_and_fail_and_each_node_gets_its_own_though_controllers_die(
    tmp_path: Path,
) -> None:
    """Real processes write down which index they are; each is there once. [I1]"""
    play(_jobs(tmp_path))


async def _minutes(folder: Path) -> None:
    async with WholePlane(folder, ("n1",), fence=LONG_FENCE, agent=AGENT) as plane:
        client = plane.client
        stated = Cron("0 0 1 1 *", concurrency=Concurrency.ALLOW, history=10)
        await client.create(
            workload("tick", "true", type=WorkloadType.CRON, cron=stated, job=Job(completions=1))
        )

        async def last() -> datetime | None:
            return (await client.get(Workload, "tick", "default")).status.cron.last_schedule

        async def settled() -> bool:
            found = await client.get(Workload, "tick", "default")
            return found.status.cron.observed_generation == found.metadata.generation

        # By uid, since another run for a minute would have the name of the first.
        found_runs: dict[str, str] = {}

        async def collect() -> None:
            """Take the runs away: nothing but the cron job's own word is left of them."""
            found = (await client.list(Workload, "default")).objects
            alive = [it for it in found if it.metadata.deletion_timestamp is None]
            for run in (it for it in alive if it.name != "tick"):
                found_runs[run.metadata.uid] = (await over(plane, run.name)).name
                await client.delete(Workload, run.name, "default")

        await plane.until(settled)
        # What is due in the minute of a change is due at once, so that no run waits for the next.
        now = {"spec": {"cron": {"schedule": "* * * * *"}}}
        await client.patch(Workload, "tick", "default", now)
        begun = await plane.until(last)
        for turn in range(6 if IS_LONG else 1):
            await collect()
            for part in ("server-1", "controllers"):
                plane.parts[part].signal(signal.SIGKILL)
            await client.patch(Workload, "tick", "default", {"spec": {"cron": {"history": turn}}})
            await plane.until(settled)
            await asyncio.sleep(25.0 if IS_LONG else 0.0)
        await collect()
        times = [scheduled_at("tick", name) for name in found_runs.values()]
        assert times
        assert times[0] == begun
        assert len(set(times)) == len(times)
        assert not IS_LONG or len(times) >= 3


def test_a_cron_job_runs_each_minute_once_though_server_and_controllers_are_killed(
    tmp_path: Path,
) -> None:
    """Nor again after its run was deleted, by the next leader. [I1]"""
    play(_minutes(tmp_path))
