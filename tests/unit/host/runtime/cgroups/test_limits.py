"""What a template's limits come to in the words of the kernel."""

from __future__ import annotations

import pytest

from holdfast.host.runtime.cgroups.limits import (
    CPU,
    MEMORY,
    PIDS,
    CgroupLimits,
    cgroup_limits,
    oom_score,
    share_write,
    writes,
)
from holdfast.model.kinds.template import Resources, Template


def test_memory_is_limited_to_what_is_set_aside_unless_a_limit_is_stated() -> None:
    """[D6]"""
    aside = Resources(cpu="250m", memory="64Mi")
    assert cgroup_limits(Template(resources=aside)).memory_bytes == 64 << 20
    stated = cgroup_limits(Template(resources=aside, limits=Resources(cpu=1, memory="1Gi")))
    assert stated == CgroupLimits(cpu_milli=1000, share_milli=250, memory_bytes=1 << 30)
    # What is set aside of the processors is a share of busy ones, never a limit.
    assert cgroup_limits(Template(resources=aside)).cpu_milli == 0
    assert cgroup_limits(Template()) == CgroupLimits()


def test_the_disk_is_limited_to_what_is_set_aside_unless_a_limit_is_stated() -> None:
    """[D6]"""
    aside = Resources(disk="64Mi")
    found = cgroup_limits(Template(resources=aside))
    assert (found.disk_bytes, found.disk_aside_bytes) == (64 << 20, 64 << 20)
    stated = cgroup_limits(Template(resources=aside, limits=Resources(disk="1Gi")))
    assert (stated.disk_bytes, stated.disk_aside_bytes) == (1 << 30, 64 << 20)


@pytest.mark.parametrize(
    "version, controller, limits, expected",
    [
        (1, CPU, CgroupLimits(cpu_milli=500), "cpu.cfs_quota_us=50000 cpu.cfs_period_us=100000"),
        (2, CPU, CgroupLimits(cpu_milli=2500), "cpu.max=250000 100000"),
        # The kernel takes no shorter time than a millisecond.
        (1, CPU, CgroupLimits(cpu_milli=1), "cpu.cfs_quota_us=1000 cpu.cfs_period_us=100000"),
        (2, CPU, CgroupLimits(share_milli=500), ""),
        (
            1,
            MEMORY,
            CgroupLimits(memory_bytes=4096),
            "memory.limit_in_bytes=4096 memory.memsw.limit_in_bytes=4096",
        ),
        (
            2,
            MEMORY,
            CgroupLimits(memory_bytes=4096),
            "memory.max=4096 memory.swap.max=0 memory.oom.group=1",
        ),
        (1, MEMORY, CgroupLimits(), ""),
        (1, PIDS, CgroupLimits(pids=7), "pids.max=7"),
        (2, PIDS, CgroupLimits(pids=7), "pids.max=7"),
    ],
)
def test_each_limit_is_written_as_its_version_of_control_groups_wants_it(
    version: int, controller: str, limits: CgroupLimits, expected: str
) -> None:
    found = writes(version, controller, limits)
    assert " ".join(f"{it.file}={it.value}" for it in found) == expected


@pytest.mark.parametrize(
    "milli, shares, weight",
    [(1, "2", "1"), (500, "512", "20"), (1_000, "1024", "39"), (10**9, "262144", "10000")],
)
def test_shares_stay_within_what_the_kernel_takes(milli: int, shares: str, weight: str) -> None:
    for version, expected in ((1, f"cpu.shares={shares}"), (2, f"cpu.weight={weight}")):
        found = share_write(version, CgroupLimits(share_milli=milli))
        assert f"{found.file}={found.value}" == expected


def test_work_that_requests_no_cpu_has_the_least_share_and_not_the_kernels_default() -> None:
    """The default of 1024 is the share of a whole CPU. [A3]"""
    assert [share_write(it, CgroupLimits()).value for it in (1, 2)] == ["2", "1"]


def test_the_kernel_kills_work_for_memory_by_its_service_class() -> None:
    """The values of Kubernetes: what requested more of the machine is killed later. [A3, D6]"""
    alike = Resources(cpu=1, memory="1Gi")
    firm = Template(resources=alike, limits=Resources(cpu=1))
    scores = [
        oom_score(of, 8 << 30)
        for of in (
            firm,
            Template(resources=Resources(memory="4Gi")),
            Template(resources=alike),
            Template(resources=Resources(cpu=1)),
            Template(),
        )
    ]
    assert scores == [-997, 500, 875, 999, 1000]
    assert oom_score(Template(resources=Resources(memory="9Gi")), 8 << 30) == 2
