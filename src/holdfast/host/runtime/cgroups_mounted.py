"""Which hierarchies of control groups this machine has, and what they leave this very process.

`cgroups` makes groups in these; `host/facts` reads how much of the machine this process may use,
for an agent in a container must not promise the whole computer.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import msgspec

MOUNTS_MAX = 10_000
_PROC = Path("/proc")
_OCTAL = re.compile(r"\\([0-7]{3})", re.ASCII)
_ENTRY = re.compile(r"\d+ \d+ \S+ (\S+) (\S+) .* - (cgroup2?) \S+ (\S+)", re.ASCII)
_UNLIMITED = 1 << 60


class Hierarchy(msgspec.Struct, frozen=True):
    """One hierarchy.

    root: where it is mounted.
    shown: the group that is seen there, as /proc/PID/cgroup names it.
    """

    version: int
    root: Path
    controllers: tuple[str, ...]
    shown: str = "/"


class Ceilings(msgspec.Struct, frozen=True, gc=False):
    """What this process and all beside it in its groups may use at most; None is everything."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None


def mounted(proc: Path = _PROC) -> tuple[Hierarchy, ...]:
    """All hierarchies, each where it is mounted first."""
    try:
        lines = (proc / "self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ()
    found: dict[tuple[str, ...], Hierarchy] = {}
    for line in lines[:MOUNTS_MAX]:
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            continue
        shown, root, kind, said = entry.groups()
        path = Path(_plain(root))
        version = 2 if kind == "cgroup2" else 1
        options = [it for it in said.split(",") if it not in ("rw", "ro")]
        controllers = _controllers(path) if version == 2 else tuple(options)
        key = ("",) if version == 2 else controllers
        found.setdefault(key, Hierarchy(version, path, controllers, _plain(shown)))
    return tuple(found.values())


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), text)


def _controllers(root: Path) -> tuple[str, ...]:
    with suppress(OSError):
        return tuple((root / "cgroup.controllers").read_text("ascii").split())
    return ()


def ceilings(proc: Path = _PROC) -> Ceilings:
    """The least that any of this process's groups leaves it."""
    cpu: list[int] = []
    memory: list[int] = []
    groups = _groups(proc)
    for hierarchy in mounted(proc):
        if hierarchy.version == 2:
            own = groups.get("")
        else:
            own = next((groups[it] for it in hierarchy.controllers if it in groups), None)
        for folder in _upwards(hierarchy, own or "/"):
            cpu += _cpu_milli(folder)
            memory += _memory_bytes(folder)
    return Ceilings(min(cpu, default=None), min(memory, default=None))


def _groups(proc: Path) -> dict[str, str]:
    """This process's group for each controller; the second version's is that of no controller."""
    found = {}
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text("utf-8", "replace").splitlines():
            _, names, path = line.split(":", 2)
            found.update(dict.fromkeys(names.split(","), path))
    return found


def _upwards(hierarchy: Hierarchy, own: str) -> list[Path]:
    """The folders from this process's group to the top, as far as they are seen here."""
    shown = hierarchy.shown.rstrip("/")
    inside = own.removeprefix(shown).strip("/") if (own + "/").startswith(shown + "/") else ""
    folder = hierarchy.root / inside
    above = [folder]
    while folder != hierarchy.root and ".." not in folder.parts:
        folder = folder.parent
        above.append(folder)
    return above


def _numbers(path: Path) -> list[int]:
    with suppress(OSError, ValueError):
        return [int(word) for word in path.read_text("ascii").split()]
    return []


def _cpu_milli(folder: Path) -> list[int]:
    quota = _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
    # Without a limit the second version says "max", which is no number.
    pair = quota or _numbers(folder / "cpu.max")
    if len(pair) != 2 or pair[0] <= 0 or pair[1] <= 0:
        return []
    return [pair[0] * 1_000 // pair[1]]


def _memory_bytes(folder: Path) -> list[int]:
    limit = _numbers(folder / "memory.limit_in_bytes") or _numbers(folder / "memory.max")
    return [it for it in limit if 0 < it < _UNLIMITED]
