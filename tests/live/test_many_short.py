"""Thousands of short pieces of work on one node leave nothing behind, in its agent either.

HOLDFAST_RUN_LONG=1, as `make run-long` sets it, runs this; `test_limits` has fewer of them.
"""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Attempt, Clear, Exited
from holdfast.host.runtime.cgroups import detect
from holdfast.host.runtime.cgroups.groups import mounted_hierarchies
from holdfast.model.kinds.template import Template
from tests.workshop import NODE, Workshop, eventually, new_uid, play, workshop

COUNT = 5_000
AT_ONCE = 32
# The first ones find code to be read and caches to be filled.
WARM_UP = 200
GROWTH_MAX_KB = 4_096
pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("HOLDFAST_RUN_LONG"), reason="takes minutes: make run-long runs it"
    ),
]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_kb() -> int:
    gc.collect()
    text = Path("/proc/self/statm").read_text().split()[1]
    return int(text) * os.sysconf("SC_PAGE_SIZE") // 1024


def groups(folder: Path) -> int:
    """The groups of this test's own agent."""
    relative = detect.find(NODE, folder).relative
    folders = (it.root / relative for it in mounted_hierarchies())
    return sum(1 for it in folders if it.exists() for path in it.iterdir() if path.is_dir())


async def run_and_clear(one: Workshop, count: int) -> None:
    """This many, a few at a time; each is cleared away when it has ended."""
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            attempt = one.launch(Template(command=("true",)), uid=new_uid())
            ended = await one.heard(Exited, attempt)
            assert ended.process.exit_code == 0, ended
            forget(one, attempt)
            one.do(Clear(attempt.uid))

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def forget(one: Workshop, attempt: Attempt) -> None:
    """What a test hears is kept by the test, not by what is tested."""
    one.told = [it for it in one.told if it.attempt != attempt]


def test_short_work_leaves_no_descriptor_no_directory_no_group_and_no_memory(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            await run_and_clear(one, WARM_UP)
            await eventually(lambda: not one.attempts.uids())
            before = descriptors(), groups(one.folder)
            before_kb = resident_kb()
            await run_and_clear(one, COUNT)
            await eventually(lambda: not one.attempts.uids())
            grown_kb = resident_kb() - before_kb
            print(f"{COUNT} short pieces of work: {grown_kb} KB more, descriptors {descriptors()}")
            assert (descriptors(), groups(one.folder)) == before
            assert grown_kb < GROWTH_MAX_KB
            assert not os.listdir(tmp_path / "replicas")

    play(story())
