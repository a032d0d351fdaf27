"""The limits of work, and how they are expressed for the kernel.

Called by `starting`, and by `groups`, which writes them. Nothing here touches the machine. A limit
that is enforced is reported as text such as "cgroup-v1 256Mi"; one that is not begins with "none"
and says why, so that no user relies on a limit that does not exist.

Only control groups are used. RLIMIT_AS bounds addresses and not memory, so it would kill what
merely reserves a lot; RLIMIT_NPROC counts all processes of a user, so replicas of one user would
starve each other.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.template import Template
from holdfast.model.quantity import Resource, demand, render
from holdfast.model.service_class import ServiceClass, service_class

CPU, MEMORY, PIDS, DEVICES = "cpu", "memory", "pids", "devices"
# Processes and threads of one attempt: far more than usual work has, far less than a machine can.
PIDS_MAX = 4_096
PERIOD_US = 100_000
# The smallest quota for one period that the kernel accepts.
QUOTA_US_MIN = 1_000
# The kernel's unit of a share: 1024 for each CPU, and never less than 2.
SHARES_PER_CPU, SHARES_MIN, SHARES_MAX = 1_024, 2, 262_144
WEIGHT_MAX = 10_000

UNSTATED = "none: no limit is stated"


class CgroupLimits(msgspec.Struct, frozen=True, gc=False):
    """The limits of an attempt in the internal unit of each resource; 0 is no limit."""

    cpu_milli: int = 0
    share_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    disk_aside_bytes: int = 0
    pids: int = PIDS_MAX


class CgroupWrite(msgspec.Struct, frozen=True, gc=False):
    """A value for one file of a group.

    without: what is not enforced when the file is not there or refuses; empty when nothing is.
    """

    file: str
    value: str
    without: str = ""


def cgroup_limits(of: Template, pids_max: int = PIDS_MAX) -> CgroupLimits:
    """The limits of a template: those it states; for memory and disk else its requests."""
    memory_aside = demand(Resource.MEMORY, of.resources.memory)
    disk_aside = demand(Resource.DISK, of.resources.disk)
    return CgroupLimits(
        cpu_milli=demand(Resource.CPU, of.limits.cpu),
        share_milli=demand(Resource.CPU, of.resources.cpu),
        memory_bytes=demand(Resource.MEMORY, of.limits.memory) or memory_aside,
        disk_bytes=demand(Resource.DISK, of.limits.disk) or disk_aside,
        disk_aside_bytes=disk_aside,
        pids=pids_max,
    )


def shares(milli: int) -> int:
    """The CPU request as a share of cgroup v1."""
    return min(SHARES_MAX, max(SHARES_MIN, milli * SHARES_PER_CPU // 1_000))


def quota_us(milli: int) -> int:
    """The CPU time in each period."""
    return max(QUOTA_US_MIN, milli * PERIOD_US // 1_000)


def _weight(milli: int) -> int:
    """The CPU request as a weight of cgroup v2, by the formula of runc and systemd."""
    return 1 + (shares(milli) - SHARES_MIN) * (WEIGHT_MAX - 1) // (SHARES_MAX - SHARES_MIN)


def writes(version: int, controller: str, of: CgroupLimits) -> tuple[CgroupWrite, ...]:
    """What to write into the files of a group, in this order. The first is the limit itself."""
    if controller == PIDS:
        return (CgroupWrite("pids.max", str(of.pids)),) if of.pids else ()
    if controller == MEMORY and of.memory_bytes:
        if version == 1:
            text = str(of.memory_bytes)
            swap = CgroupWrite("memory.memsw.limit_in_bytes", text, "swap is not limited")
            return (CgroupWrite("memory.limit_in_bytes", text), swap)
        return (
            CgroupWrite("memory.max", str(of.memory_bytes)),
            CgroupWrite("memory.swap.max", "0", "swap is not limited"),
            CgroupWrite("memory.oom.group", "1", "single processes may be killed"),
        )
    if controller == CPU and of.cpu_milli:
        quota = quota_us(of.cpu_milli)
        if version == 1:
            period = CgroupWrite("cpu.cfs_period_us", str(PERIOD_US))
            return (CgroupWrite("cpu.cfs_quota_us", str(quota)), period)
        return (CgroupWrite("cpu.max", f"{quota} {PERIOD_US}"),)
    return ()


def share_write(version: int, of: CgroupLimits) -> CgroupWrite:
    """The write that gives work its share of busy CPUs: the least one when nothing is set aside,
    since the kernel's default is that of a whole CPU.
    """
    if version == 1:
        return CgroupWrite("cpu.shares", str(shares(of.share_milli)))
    return CgroupWrite("cpu.weight", str(_weight(of.share_milli)))


def amount(controller: str, of: CgroupLimits) -> str:
    """The limit as people write it; empty when there is none."""
    match controller:
        case "cpu":
            return render(Resource.CPU, of.cpu_milli) if of.cpu_milli else ""
        case "memory":
            return render(Resource.MEMORY, of.memory_bytes) if of.memory_bytes else ""
        case _:
            return str(of.pids) if of.pids else ""


# Which work the kernel kills first when the whole machine lacks memory: the values of Kubernetes.
#
# Below 0 is only possible with CAP_SYS_RESOURCE. Work inherits what its first processes have.
OOM_GUARANTEED, OOM_BEST_EFFORT, OOM_WHOLE = -997, 1_000, 1_000


def oom_score(of: Template, machine_bytes: int) -> int:
    """The `oom_score_adj` of a template's processes on a machine with this much memory.

    Burstable work is killed the earlier, the less memory it requested: what it has beyond that was
    promised to none.
    """
    match service_class(of):
        case ServiceClass.GUARANTEED:
            return OOM_GUARANTEED
        case ServiceClass.BEST_EFFORT:
            return OOM_BEST_EFFORT
    asked = demand(Resource.MEMORY, of.resources.memory)
    share = OOM_WHOLE * asked // max(1, machine_bytes)
    return min(OOM_BEST_EFFORT - 1, max(2, OOM_WHOLE - share))
