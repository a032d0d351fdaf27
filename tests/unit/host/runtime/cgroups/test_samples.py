"""What work uses, sampled from folders in place of control groups and /proc."""

from __future__ import annotations

from pathlib import Path

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime.cgroups.groups import CgroupParent
from holdfast.host.runtime.cgroups.samples import Sampler
from holdfast.model.nodes.heartbeat import SAMPLES_MAX, NodeUse, ReplicaUse

ONE, TWO = Attempt("one", 0), Attempt("two", 3)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _process(proc: Path, pid: int, ticks: int, pages: int) -> None:
    """The name may contain anything, also what looks like the end of it."""
    times = f"{ticks} 0 0 0"
    _write(proc / str(pid) / "stat", f"{pid} (a) b 1) S {'0 ' * 10}{times} {'0 ' * 6}{pages} 0")


def test_without_control_groups_processes_are_summed(tmp_path: Path) -> None:
    """A process that has ended meanwhile is no error. [D6]"""
    sampler = Sampler(None, None, lambda it: {ONE: [7, 8, 99], TWO: [9]}[it], tmp_path)
    for pid, ticks in ((7, 100), (8, 100), (9, 0)):
        _process(tmp_path, pid, ticks, 10)
    first = sampler.sample([ONE, TWO], 1_000)
    assert (first.cpu_milli, first.source) == (0, "proc")
    _process(tmp_path, 7, 300, 20)
    # 200 ticks of 10 ms in four seconds are half a processor.
    page = first.memory_bytes // 30
    assert sampler.sample([ONE, TWO], 5_000) == NodeUse(
        500,
        40 * page,
        "proc",
        (ReplicaUse("one", 500, 30 * page), ReplicaUse("two", 0, 10 * page)),
    )
    # What was not seen before has no CPU yet.
    sampler.sample([TWO], 6_000)
    assert sampler.sample([ONE], 7_000).cpu_milli == 0


def test_control_groups_count_without_the_cache_that_can_be_dropped(tmp_path: Path) -> None:
    """[D6]"""
    second = CgroupParent(2, tmp_path)
    sampler = Sampler(second, second, lambda _: (), tmp_path)
    _write(tmp_path / "one-0/memory.current", "1000\n")
    _write(tmp_path / "one-0/memory.stat", "anon 5\ninactive_file 300\n")
    _write(tmp_path / "one-0/cpu.stat", "usage_usec 2000000\nuser_usec 7\n")
    assert sampler.sample([ONE], 0).memory_bytes == 700
    _write(tmp_path / "one-0/cpu.stat", "usage_usec 5000000\n")
    found = sampler.sample([ONE], 2_000)
    assert (found.cpu_milli, found.source) == (1_500, "cgroup-v2")


def test_a_sample_is_bounded_and_the_sums_are_not(tmp_path: Path) -> None:
    """The largest are named. [D6]"""
    sampler = Sampler(None, None, lambda it: [int(it.uid)], tmp_path)
    attempts = [Attempt(str(number), 0) for number in range(SAMPLES_MAX + 5)]
    for attempt in attempts:
        _process(tmp_path, int(attempt.uid), 0, int(attempt.uid))
    found = sampler.sample(attempts, 0)
    assert (len(found.replicas), found.more) == (SAMPLES_MAX, 5)
    assert found.replicas[0].uid == str(SAMPLES_MAX + 4)
    assert found.memory_bytes > sum(it.memory_bytes for it in found.replicas)
