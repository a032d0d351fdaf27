"""The page of metrics and what a server serves are the same."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from holdfast.model.errors import Forbidden
from holdfast.model.kinds.tenant import ObjectCaps, Quota, QuotaSpec
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import ObjectMeta
from tests.live.plane_process import PlaneProcess
from tests.live.test_plane import running, workload

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
# What a server must be able to tell.
ASKED_FOR = (
    "queue age",
    "retries",
    "watch lag",
    "relists",
    "per-tenant reasons",
    "fragmentation",
    "budget exhaustion",
    "preemptions",
)


async def served(process: PlaneProcess) -> str:
    code, text = await process.fetch("/metrics")
    assert code == 200
    return text


def test_each_metric_of_the_page_is_served_and_each_that_is_served_is_on_it(tmp_path: Path) -> None:
    """A budget that is used up and a read that asks how new the server is are counted. [M6]"""

    async def story() -> None:
        async with running(tmp_path) as process, process.client() as client:
            quota = QuotaSpec(objects=ObjectCaps(workloads=0))
            meta = ObjectMeta(name="default", namespace="default")
            await client.create(Quota(meta, spec=quota))
            with pytest.raises(Forbidden, match="cap of 0 workloads"):
                await client.create(workload("one-too-many"))
            await client.list(Workload)
            text = await served(process)
        assert 'holdfast_budget_refusals_total{tenant="default",budget="objects"} 1' in text
        reads = re.search(r"^holdfast_watch_lag_seconds_count (\d+)$", text, re.MULTILINE)
        assert reads is not None
        assert int(reads[1]) > 0
        names = re.findall(r"^# HELP (\S+) ", text, re.MULTILINE)
        assert sorted(names) == sorted(set(names))
        told = re.findall(r"`(holdfast_\w+)`", "\n".join(rows()))
        assert sorted(told) == sorted(set(told)), "each has one row"
        assert set(told) == set(names)

    asyncio.run(story())


def rows() -> list[str]:
    return [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]


def test_the_page_names_a_metric_for_all_that_is_asked_for() -> None:
    """[M6]"""
    about = {row.split("|")[1].strip() for row in rows()}
    assert about.issuperset(ASKED_FOR)
