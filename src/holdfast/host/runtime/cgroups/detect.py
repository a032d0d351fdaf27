"""Detects which control groups an agent can make on this machine, by making them.

Called once by `runtime` when it starts. What a machine offers is tried and never guessed from names
or versions: a hierarchy may exist and be read-only, or delegate only some of its controllers.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from holdfast.host.runtime.cgroups.groups import (
    CgroupParent,
    Cgroups,
    Hierarchy,
    mounted_hierarchies,
)
from holdfast.host.runtime.cgroups.limits import CPU, DEVICES, MEMORY, PIDS
from holdfast.model.errors import FieldError, Invalid

PARENT = "holdfast"
PARENT_VARIABLE = "HOLDFAST_CGROUP"
FREEZER, UNIFIED = "freezer", "unified"


def default_parent() -> str:
    """The group below which all others are made, unless the operator names another one."""
    return os.environ.get(PARENT_VARIABLE) or PARENT


def find(node: str, folder: Path, parent: str | None = None, proc: Path = Path("/proc")) -> Cgroups:
    """The groups of the agent of this node that keeps its work in this folder."""
    parent = default_parent() if parent is None else parent
    if not parent or any(part in ("", ".", "..") for part in parent.split("/")):
        rule = "must be a relative path of a control group"
        raise Invalid(f"--cgroup: {parent!r}: {rule}", (FieldError("--cgroup", parent, rule),))
    # Two planes on one machine may both have a node of this name; neither may end the other's work.
    mark = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:12]
    relative = f"{parent}/{node}-{mark}"
    hierarchies = mounted_hierarchies(proc)
    seats: dict[str, CgroupParent] = {}
    lacking = dict.fromkeys((CPU, MEMORY, PIDS, DEVICES), "this machine has no such control groups")
    for hierarchy in hierarchies:
        usable = [it for it in hierarchy.controllers if it in lacking or it == FREEZER]
        if hierarchy.version == 2:
            usable.append(UNIFIED)
        if not usable:
            continue
        try:
            found = _prepare(hierarchy, relative)
        except OSError as error:
            why = os.strerror(error.errno or errno.EIO).lower()
            lacking.update(dict.fromkeys(usable, f"control groups cannot be made here: {why}"))
            continue
        for controller in usable:
            if controller in found:
                seats.setdefault(
                    controller, CgroupParent(hierarchy.version, hierarchy.root / relative)
                )
            else:
                lacking[controller] = f"cgroup-v2 does not delegate {controller} here"
    if DEVICES not in seats and UNIFIED in seats:
        lacking[DEVICES] = "cgroup-v2 needs a BPF program to restrict devices"
    if UNIFIED in seats:
        # It can kill a whole group at once, for which the first version has the freezer.
        seats.pop(FREEZER, None)
    return Cgroups(relative, hierarchies, seats, lacking)


def _prepare(hierarchy: Hierarchy, relative: str) -> tuple[str, ...]:
    """Make the folder for the groups. Returns which controllers work in it."""
    at = hierarchy.root
    if hierarchy.version == 1:
        (at / relative).mkdir(0o755, parents=True, exist_ok=True)
        if not os.access(at / relative, os.W_OK):
            raise PermissionError(errno.EACCES, "not writable")
        return hierarchy.controllers
    handed: list[str] = []
    for part in (*relative.split("/"), ""):
        handed = [it for it in hierarchy.controllers if _is_handed_on(at, it)]
        if part:
            at /= part
            with suppress(FileExistsError):
                at.mkdir(0o755)
    if not os.access(at, os.W_OK):
        raise PermissionError(errno.EACCES, "not writable")
    return (*handed, UNIFIED)


def _is_handed_on(folder: Path, controller: str) -> bool:
    with suppress(OSError):
        (folder / "cgroup.subtree_control").write_text(f"+{controller}", "ascii")
        return controller in (folder / "cgroup.subtree_control").read_text("ascii").split()
    return False
