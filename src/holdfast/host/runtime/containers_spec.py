"""What runc is told of one container, as the OCI's runtime specification writes it.

Called by `containers`. The container has file system, processes, IPC and host name of its own, and
deliberately not a network: its ports are ports of the node, as those of processes are. It gains no
privileges, keeps few capabilities, and none as an ordinary user; no system call is filtered.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.host.runtime.surroundings import Surroundings, User

VERSION = "1.0.2"
# Where the replica's own directory is inside.
DIRECTORY = "/holdfast"
HOSTNAME_MAX = 63
# What root needs to set up files and ports of its own and to become somebody else.
CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETUID",
)
# Files of the node that names are looked up by; the network is the node's.
LOOKUPS = ("/etc/resolv.conf", "/etc/hosts")
_MASKED = (
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/firmware",
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_MOUNTS = (
    ("/proc", "proc", "proc", ("nosuid", "noexec", "nodev")),
    ("/dev", "tmpfs", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
    ("/dev/pts", "devpts", "devpts", ("nosuid", "noexec", "newinstance", "ptmxmode=0666")),
    ("/dev/shm", "tmpfs", "shm", ("nosuid", "noexec", "nodev", "mode=1777", "size=65536k")),
    ("/sys", "sysfs", "sysfs", ("nosuid", "noexec", "nodev", "ro")),
)


class Container(msgspec.Struct, frozen=True):
    """One container.

    work: the replica's own directory on the node.
    group: its control group, as every hierarchy names it.
    devices: paths of the devices that it owns.
    """

    name: str
    work: Path
    working_dir: str
    user: User | None
    group: str
    devices: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()


def config(of: Container, found: Surroundings) -> bytes:
    """The bundle's config.json, around a root file system at `rootfs`."""
    # Capabilities of an ordinary user would be lost at exec, and need not be there before.
    kept = CAPABILITIES if of.user is None else ()
    who = {"uid": 0, "gid": 0}
    if of.user is not None:
        groups = [gid for gid in of.user.groups if gid != of.user.gid]
        who = {"uid": of.user.uid, "gid": of.user.gid, "additionalGids": groups}  # type: ignore[dict-item]
    owned = [_device(path) for path in of.devices]
    return msgspec.json.encode(
        {
            "ociVersion": VERSION,
            "hostname": of.name[:HOSTNAME_MAX].rstrip("-."),
            "root": {"path": "rootfs"},
            "process": {
                "args": found.arguments,
                "env": found.variables,
                "cwd": of.working_dir,
                "user": who,
                "noNewPrivileges": True,
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), kept),
            },
            "mounts": [*_own_mounts(), *_node_mounts(of)],
            "linux": {
                "cgroupsPath": of.group,
                "namespaces": [{"type": it} for it in ("pid", "mount", "ipc", "uts")],
                "devices": owned,
                "resources": {"devices": _rules(owned)},
                "maskedPaths": _MASKED,
                "readonlyPaths": _READ_ONLY,
            },
        }
    )


def _own_mounts() -> list[dict[str, Any]]:
    return [
        {"destination": at, "type": kind, "source": source, "options": options}
        for at, kind, source, options in _MOUNTS
    ]


def _node_mounts(of: Container) -> list[dict[str, Any]]:
    """The replica's directory, and how names are looked up."""
    mounts = [(DIRECTORY, str(of.work), "rw"), *((it, it, "ro") for it in of.lookups)]
    return [
        {"destination": at, "type": "bind", "source": source, "options": ["bind", "nodev", how]}
        for at, source, how in mounts
    ]


def _device(path: str) -> dict[str, Any]:
    about = os.stat(path)
    kind = "b" if stat.S_ISBLK(about.st_mode) else "c"
    major, minor = os.major(about.st_rdev), os.minor(about.st_rdev)
    return {"path": path, "type": kind, "major": major, "minor": minor, "fileMode": 0o666}


def _rules(owned: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """None but those of every container, which runc adds, and its own."""
    rules: list[dict[str, Any]] = [{"allow": False, "access": "rwm"}]
    for it in owned:
        of = {field: it[field] for field in ("type", "major", "minor")}
        rules.append({"allow": True, "access": "rwm", **of})
    return rules
