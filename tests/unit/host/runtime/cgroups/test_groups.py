"""Control groups in a directory that looks like them: what is found, written, said and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime.cgroups import groups as cgroups_files
from holdfast.host.runtime.cgroups.detect import find
from holdfast.host.runtime.cgroups.groups import (
    Ceilings,
    CgroupParent,
    Cgroups,
    Hierarchy,
    ceilings,
    mounted_hierarchies,
)
from holdfast.host.runtime.cgroups.limits import CgroupLimits, CgroupWrite
from holdfast.model.errors import Invalid

ONE = Attempt("u-1", 2)


def machine(
    folder: Path, *mounts: str, groups: str = "", files: dict[str, str] | None = None
) -> Path:
    """A /proc that tells of these mounts, with {at} for the folder."""
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    text = "".join(f"{number} 1 0:9 {line}\n" for number, line in enumerate(mounts))
    (proc / "self" / "mountinfo").write_text(text.replace("{at}", str(folder)))
    (proc / "self" / "cgroup").write_text(groups)
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return proc


def test_hierarchies_are_found_where_they_are_mounted_first(tmp_path: Path) -> None:
    """A name may have blanks, and other file systems are none."""
    proc = machine(
        tmp_path,
        "/ / rw - ext4 /dev/vda rw",
        "/ {at}/c\\040pu rw,nosuid shared:4 - cgroup cgroup rw,cpu,cpuacct",
        "/docker/x {at}/memory ro - cgroup cgroup rw,memory",
        "/ {at}/again rw - cgroup cgroup rw,memory",
        "/ {at}/unified rw - cgroup2 cgroup2 rw,nsdelegate",
        files={"unified/cgroup.controllers": "pids hugetlb\n"},
    )
    assert mounted_hierarchies(proc) == (
        Hierarchy(1, tmp_path / "c pu", ("cpu", "cpuacct"), "/"),
        Hierarchy(1, tmp_path / "memory", ("memory",), "/docker/x"),
        Hierarchy(2, tmp_path / "unified", ("pids", "hugetlb"), "/"),
    )
    assert mounted_hierarchies(tmp_path / "nothing") == ()


@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, Ceilings()),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, Ceilings()),
        ({"two/cpu.max": "max 100000\n", "two/memory.max": "max\n"}, Ceilings()),
        # The least of all groups on the way counts, one's own or one above it.
        (
            {
                "cpu/cpu.cfs_quota_us": "400000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "cpu/a/b/cpu.cfs_quota_us": "150000\n",
                "cpu/a/b/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/in/memory.limit_in_bytes": "1048576\n",
            },
            Ceilings(1_500, 1 << 20),
        ),
        ({"two/me/cpu.max": "50000 100000\n", "two/memory.max": "4096\n"}, Ceilings(500, 4096)),
    ],
)
def test_what_a_process_may_use_is_the_least_that_its_groups_leave(
    files: dict[str, str], expected: Ceilings, tmp_path: Path
) -> None:
    """[D4]"""
    proc = machine(
        tmp_path,
        "/ {at}/cpu rw - cgroup cgroup rw,cpu",
        "/docker/x {at}/memory rw - cgroup cgroup rw,memory",
        "/ {at}/two rw - cgroup2 cgroup2 rw",
        groups="3:cpu:/a/b\n2:memory:/docker/x/in\n0::/me\n",
        files=files,
    )
    assert ceilings(proc) == expected


def test_what_cannot_be_had_is_said_for_each_controller(tmp_path: Path) -> None:
    """Nothing is mounted for one, and another is mounted on what is no directory."""
    (tmp_path / "file").write_text("")
    proc = machine(
        tmp_path,
        "/ {at}/cpu rw - cgroup cgroup rw,cpu",
        "/ {at}/file rw - cgroup cgroup rw,memory",
    )
    (tmp_path / "cpu").mkdir()
    groups = find("n1", tmp_path / "data", proc=proc)
    assert groups.controllers == ("cpu",)
    told = groups.make(ONE, CgroupLimits(cpu_milli=500, memory_bytes=4096), ("c 1:3 rwm",))
    assert told == {
        # Only the kernel makes these files: a directory that is no group enforces nothing.
        "cpu": "none: cpu.cfs_quota_us cannot be set: no such file or directory",
        "memory": "none: control groups cannot be made here: not a directory",
        "pids": "none: this machine has no such control groups",
        "share": "none: cpu.shares cannot be set: no such file or directory",
        "devices": "none: this machine has no such control groups",
    }


def test_two_agents_of_one_name_have_groups_of_their_own(tmp_path: Path) -> None:
    """[INV2]"""
    proc = machine(tmp_path, "/ {at}/pids rw - cgroup cgroup rw,pids")
    (tmp_path / "pids").mkdir()
    first, second = (find("n1", tmp_path / name, "holdfast", proc) for name in ("a", "b"))
    first.make(ONE, CgroupLimits())
    assert first.attempts() == [ONE]
    assert second.attempts() == []
    assert first.remove(ONE)
    first.retire()
    assert [it.name for it in (tmp_path / "pids/holdfast").iterdir()] == [
        second.relative.rpartition("/")[2]
    ]


@pytest.mark.parametrize("parent", ["", "/", "/a", "a/", "a//b", "../a", "a/./b"])
def test_a_parent_that_leads_elsewhere_is_refused(parent: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="--cgroup"):
        find("n1", tmp_path, parent, machine(tmp_path))


def group(folder: Path, version: int, controller: str, **files: str) -> Cgroups:
    """The groups of an agent in which the kernel would have made these files."""
    (folder / "own" / "u-1-2").mkdir(parents=True)
    for name, content in files.items():
        (folder / "own" / "u-1-2" / name.replace("_", ".", 1)).write_text(content)
    hierarchy = Hierarchy(version, folder, (controller,))
    return Cgroups("own", [hierarchy], {controller: CgroupParent(version, folder / "own")}, {})


def test_a_limit_of_the_second_version_is_written_and_reported(tmp_path: Path) -> None:
    """And what is missing beside it is reported as well."""
    groups = group(tmp_path, 2, "memory", memory_max="")
    groups.lacking.update(cpu="not here", pids="not here")
    told = groups.make(ONE, CgroupLimits(memory_bytes=1 << 20))
    missing = "swap is not limited, single processes may be killed"
    assert told == {
        "memory": f"cgroup-v2 1Mi, {missing}",
        "cpu": "none: not here",
        "pids": "none: not here",
        "share": "none: not here",
    }
    assert (tmp_path / "own/u-1-2/memory.max").read_text() == str(1 << 20)


@pytest.mark.parametrize(
    "version, file, text, count",
    [
        (1, "memory_oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3),
        (2, "memory_events", "low 0\nmax 4\noom 2\noom_kill 2\noom_group_kill 1\n", 2),
        (2, "memory_events", "oom 5\n", 0),
        (1, "memory_oom_control", "oom_kill lots\n", 0),
    ],
)
def test_kills_for_want_of_memory_are_counted(
    version: int, file: str, text: str, count: int, tmp_path: Path
) -> None:
    groups = group(tmp_path, version, "memory", **{file: text})
    assert groups.ooms(ONE) == count
    assert groups.ooms(Attempt("other", 0)) == 0


def test_an_unreadable_subject_counts_as_one(tmp_path: Path) -> None:
    """An empty answer would be a false proof that no process is there. [INV2]"""
    assert cgroups_files.pids(tmp_path / "nothing") == []
    (tmp_path / "group" / cgroups_files.PROCS).mkdir(parents=True)
    assert cgroups_files.pids(tmp_path / "group") == [0]


def test_a_missing_file_is_never_made(tmp_path: Path) -> None:
    """It would take any value and enforce nothing."""
    assert cgroups_files.write_value(tmp_path, CgroupWrite("pids.max", "1")) != ""
    assert list(tmp_path.iterdir()) == []
