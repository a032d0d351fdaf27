"""Finds the compiled shim, or compiles it, and asks it what it can do here.

Called once by `runtime` when it starts. An installed Holdfast has the program beside its source; a
checkout that is not installed gets it in this user's cache, under the digest of its source, so that
an old program is never used for a changed source.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec

from holdfast.host.runtime.shim_build import NAME, SOURCE, CannotCompile, build, version
from holdfast.model.errors import Unavailable

ASK_TIMEOUT_S = 10
# The strongest first. In a namespace the kernel itself ends the tree with its init.
ISOLATIONS = ("pid-namespace", "user-namespace", "session")
_HOST_PROC = 3


class ShimProgram(msgspec.Struct, frozen=True):
    """The compiled shim, and what the machine lets it do.

    isolation: pid-namespace; user-namespace, which is a PID namespace that needs no root; or
        session, in which the shim's own death may leave processes of the work behind.
    has_own_proc: whether work sees a /proc of its own namespace.
    """

    path: Path
    isolation: str
    has_own_proc: bool


def find(isolation: str | None = None) -> ShimProgram:
    """The shim with the strongest isolation available here, or with the one that is named.

    Raises Unavailable when there is none and none can be compiled. Blocks while it compiles.
    """
    path = program_path()
    for name in (isolation,) if isolation is not None else ISOLATIONS:
        code = _ask(path, "probe", name).returncode
        if code in (0, _HOST_PROC):
            return ShimProgram(path, name, code == 0 and name != "session")
    names = isolation or ", ".join(ISOLATIONS)
    raise Unavailable(f"the shim {path} cannot isolate work on this machine (tried {names})")


def can_confine(program: ShimProgram, user: int) -> bool:
    """Whether work can be confined here, as this user if the agent is root."""
    return _ask(program.path, "probe", program.isolation, str(user)).returncode == 0


def can_scope_sockets(program: ShimProgram) -> bool:
    """Whether work with a user of its own can be denied the abstract sockets of others."""
    return _ask(program.path, "scope").returncode == 0


def program_path() -> Path:
    """Where the shim is: installed beside its source, cached, or compiled now."""
    wanted = version()
    installed = SOURCE.with_name(NAME)
    if _is_made_from(installed, wanted):
        return installed
    cached = _cache() / f"{NAME}-{wanted}"
    if _is_made_from(cached, wanted):
        return cached
    try:
        build(cached)
    except (CannotCompile, OSError) as error:
        raise Unavailable(
            f"the program {NAME}, which runs work, is neither at {installed} nor at {cached}, and "
            f"cannot be compiled: {error}; install Holdfast from a wheel, or install gcc"
        ) from error
    return cached


def _cache() -> Path:
    """A cache directory that no other user can write."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    folder = (Path(root) if root.startswith("/") else Path.home() / ".cache") / "holdfast"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise Unavailable(f"{folder} is writable by other users: remove their write permission")
    return folder


def _is_made_from(path: Path, wanted: str) -> bool:
    try:
        return path.is_file() and _ask(path, "version").stdout.strip() == wanted
    except Unavailable:
        # Compiled for another processor, or truncated: it cannot be used.
        return False


def _ask(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [str(path), *words],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            env={},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the shim {path} cannot be run: {error}") from error
