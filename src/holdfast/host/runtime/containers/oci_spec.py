"""runc's configuration of one container, by the OCI runtime specification.

Called by `containers`. The container has file system, processes, IPC, host name and network of its
own, and users as well where tenants are isolated. It gains no privileges, keeps few capabilities,
and none as an ordinary user; it may make only the system calls that seccomp.json lists.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.host.runtime.run_as import BLOCK
from holdfast.host.runtime.surroundings import PATH_DEFAULT, Surroundings, User

VERSION = "1.0.2"
# The path of the replica's own directory inside the container.
DIRECTORY = "/holdfast"
HOSTNAME_MAX = 63
HOOK_TIMEOUT_S = 20
# What root needs to set up its own files and ports and to become another user.
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
# The file systems that a container gets from the kernel; runc has no list of its own.
SECCOMP = Path(__file__).with_name("seccomp.json")
# The node's files for resolving host names.
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
# A user namespace that does not own the node's network cannot mount a new sysfs.
_HOST_SYS = ("/sys", "none", "/sys", ("rbind", "nosuid", "noexec", "nodev", "ro"))

_FLAGS = (
    (os.ST_NOEXEC, "noexec"),
    (os.ST_NOATIME, "noatime"),
    (os.ST_NODIRATIME, "nodiratime"),
)


class Container(msgspec.Struct, frozen=True):
    """One container.

    work: the replica's own directory on the node.
    group: its control group, as every hierarchy names it.
    devices: paths of the devices that it owns.
    first: the host's user that is root inside; 0 if users inside are those of the node.
    has_host_network: whether it uses the node's network.
    connect: the script that links its network to the node; empty for none.
    secrets: the directory with its files from Secrets, which it has at the same path.
    """

    name: str
    work: Path
    working_dir: str
    user: User | None
    group: str
    devices: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()
    first: int = 0
    has_host_network: bool = False
    connect: str = ""
    secrets: Path | None = None


def _seccomp() -> dict[str, Any]:
    profile: dict[str, Any] = msgspec.json.decode(SECCOMP.read_bytes())
    del profile["comment"]
    return profile


def config(of: Container, found: Surroundings) -> bytes:
    """The bundle's config.json, around a root file system at `rootfs`."""
    # An ordinary user would lose capabilities at exec, so it gets none before.
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
            "mounts": [*_own_mounts(of), *_node_mounts(of)],
            "hooks": _hooks(of),
            "linux": {
                "cgroupsPath": of.group,
                "namespaces": [{"type": it} for it in _namespaces(of)],
                **_mappings(of),
                "seccomp": _seccomp(),
                "devices": owned,
                "resources": {"devices": _rules(owned)},
                "maskedPaths": _MASKED,
                "readonlyPaths": _READ_ONLY,
            },
        }
    )


def _namespaces(of: Container) -> tuple[str, ...]:
    users = ("user",) if of.first else ()
    network = () if of.has_host_network else ("network",)
    return ("pid", "mount", "ipc", "uts", *users, *network)


def _mappings(of: Container) -> dict[str, Any]:
    """The mapping of users to the host. Users outside the mapping do not exist inside."""
    mapping = [{"containerID": 0, "hostID": of.first, "size": BLOCK}]
    return {"uidMappings": mapping, "gidMappings": mapping} if of.first else {}


def _hooks(of: Container) -> dict[str, Any]:
    """The hooks that runc runs on the node when the namespaces exist and nothing else does."""
    if not of.connect:
        return {}
    hook = {
        "path": "/bin/sh",
        "args": ["sh", "-e", "-c", of.connect],
        "env": [f"PATH={PATH_DEFAULT}"],
        "timeout": HOOK_TIMEOUT_S,
    }
    return {"createRuntime": [hook]}


def _own_mounts(of: Container) -> list[dict[str, Any]]:
    mounts = (*_MOUNTS[:-1], _HOST_SYS) if of.has_host_network else _MOUNTS
    return [
        {"destination": at, "type": kind, "source": source, "options": options}
        for at, kind, source, options in mounts
    ]


def _node_mounts(of: Container) -> list[dict[str, Any]]:
    """The replica's directory, its files from Secrets, and the files for resolving names."""
    seen = [*of.lookups, *([str(of.secrets)] if of.secrets is not None else [])]
    mounts = [(DIRECTORY, of.work, "rw"), *((it, Path(it), "ro") for it in seen)]
    return [
        {
            "destination": at,
            "type": "bind",
            "source": str(source),
            "options": ["bind", "nosuid", "nodev", how, *_locked(source)],
        }
        for at, source, how in mounts
    ]


def _locked(path: Path) -> list[str]:
    """The options of the node's own mount that a user namespace must keep.

    The kernel refuses a mount that allows more, or that records access times differently.
    """
    there = next(it for it in (path, *path.parents) if it.exists())
    flags = os.statvfs(there).f_flag
    found = [word for flag, word in _FLAGS if flags & flag]
    is_usual = flags & (os.ST_NOATIME | os.ST_RELATIME)
    return found if is_usual else [*found, "strictatime"]


def _device(path: str) -> dict[str, Any]:
    about = os.stat(path)
    kind = "b" if stat.S_ISBLK(about.st_mode) else "c"
    major, minor = os.major(about.st_rdev), os.minor(about.st_rdev)
    return {"path": path, "type": kind, "major": major, "minor": minor, "fileMode": 0o666}


def _rules(owned: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Deny all devices except its own and those of every container, which runc adds."""
    rules: list[dict[str, Any]] = [{"allow": False, "access": "rwm"}]
    for it in owned:
        of = {field: it[field] for field in ("type", "major", "minor")}
        rules.append({"allow": True, "access": "rwm", **of})
    return rules
