"""Which runc is installed, and its known flaws that let a container reach its node.

Called by `containers` before an agent runs its first container. If user namespaces and the other
limits of a container do not mitigate a flaw, no containers are run; for the others the operator
gets a warning. Distributions fix old versions without changing their number, so the package's
version counts as well as runc's own. For warnings the flaws that the package's changelog names
count as fixed too, so that a fixed machine is not warned about for ever.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import zlib
from functools import lru_cache
from pathlib import Path

import msgspec

from holdfast.host.runtime.surroundings import PATH_DEFAULT
from holdfast.model.errors import Unavailable

RUNC = "runc"
# A runtime whose containers have a kernel of their own, with the command line of runc.
SANDBOX, SANDBOX_OPTION = "runsc", "--sandbox-runtime"
ASK_TIMEOUT_S = 20
DOCUMENTS = Path("/usr/share/doc")
CHANGELOG_MAX = 4 * 1024 * 1024

_VERSION = re.compile(r"runc version ([0-9]+)\.([0-9]+)\.([0-9]+)(?:[-~]rc\.?([0-9]+))?", re.ASCII)
_CVE = re.compile(r"CVE-[0-9]{4}-[0-9]{4,7}", re.ASCII)
Version = tuple[int, int, int, int]
# A release comes after all of its candidates.
_RELEASED = 1_000_000


class Flaw(msgspec.Struct, frozen=True):
    """One known flaw.

    fixed: the first versions without it, one for each series; newer versions do not have it.
    packages: prefixes of packages' versions, and the number after it from which on they are fixed.
    is_open: whether it leads out of a container with the limits that ours have.
    """

    name: str
    about: str
    fixed: tuple[Version, ...]
    packages: tuple[tuple[str, int], ...] = ()
    is_open: bool = False


_OF_2025 = ((1, 2, 8, _RELEASED), (1, 3, 3, _RELEASED), (1, 4, 0, 3))
FLAWS = (
    Flaw("CVE-2019-5736", "overwrites runc itself", ((1, 0, 0, 7),), is_open=True),
    Flaw("CVE-2021-30465", "mounts outside the container", ((1, 0, 0, 95),), is_open=True),
    Flaw("CVE-2021-43784", "overrides its configuration", ((1, 0, 3, _RELEASED),)),
    Flaw("CVE-2022-29162", "leaves capabilities inheritable", ((1, 1, 2, _RELEASED),)),
    Flaw("CVE-2023-28642", "unmasks /proc", ((1, 1, 5, _RELEASED),)),
    Flaw(
        "CVE-2024-21626",
        "leaves a directory of the node open",
        ((1, 1, 12, _RELEASED),),
        (
            ("1.1.5+ds1-1+deb12u", 1),
            ("1.0.0~rc93+ds1-5+deb11u", 3),
            ("1.1.7-0ubuntu1~22.04.", 2),
            ("1.1.7-0ubuntu1~20.04.", 2),
        ),
        is_open=True,
    ),
    Flaw("CVE-2024-45310", "makes empty files on the node", ((1, 1, 14, _RELEASED), (1, 2, 0, 3))),
    Flaw("CVE-2025-31133", "writes to masked files of /proc", _OF_2025),
    Flaw("CVE-2025-52565", "mounts /dev/console elsewhere", _OF_2025),
    Flaw("CVE-2025-52881", "writes to other files of /proc", _OF_2025),
)


class RuncVersion(msgspec.Struct, frozen=True):
    """runc's own version, and that of the distribution's package, if there is one.

    mended: the flaws that the changelog of the distribution's package names.
    """

    version: Version
    package: str
    filters: bool
    mended: frozenset[str] = frozenset()


def installed_version() -> RuncVersion:
    """The version of the first runc in the path. Raises Unavailable."""
    program = shutil.which(RUNC, path=PATH_DEFAULT)
    if program is None:
        raise Unavailable("containers need runc; install it on this node")
    about = os.stat(program)
    return _described(program, about.st_ino, about.st_mtime_ns)


@lru_cache(maxsize=4)
def _described(program: str, inode: int, changed_ns: int) -> RuncVersion:
    """Cached for each program: searching packages takes long, and a start waits for this."""
    said = run_program(program, "--version")
    found = _VERSION.search(said)
    if found is None:
        raise Unavailable(f"the output of {program} --version cannot be parsed")
    numbers = (int(found[1]), int(found[2]), int(found[3]))
    candidate = int(found[4]) if found[4] else _RELEASED
    package, mended = _package(program)
    return RuncVersion((*numbers, candidate), package, "libseccomp" in said, mended)


def _package(program: str) -> tuple[str, frozenset[str]]:
    """The version of the program's package, and the flaws that its changelog names.

    Both are empty if it belongs to no package.
    """
    if shutil.which("dpkg-query", path=PATH_DEFAULT) is None:
        return "", frozenset()
    try:
        owner = run_program("dpkg-query", "--search", program).partition(":")[0]
        version = run_program("dpkg-query", "--show", "--showformat=${Version}", owner).strip()
    except Unavailable:
        return "", frozenset()
    return version, _named_in(DOCUMENTS / owner / "changelog.Debian.gz")


def _named_in(changelog: Path) -> frozenset[str]:
    """The flaws that a Debian-like changelog names as fixed. Small images have no changelog."""
    try:
        with gzip.open(changelog, "rt", encoding="utf-8", errors="replace") as file:
            return frozenset(_CVE.findall(file.read(CHANGELOG_MAX)))
    except (OSError, EOFError, zlib.error):
        return frozenset()


def run_program(*words: str) -> str:
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            env={"PATH": PATH_DEFAULT},
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{words[0]} cannot be run: {error}") from error
    return done.stdout


def has(flaw: Flaw, of: RuncVersion) -> bool:
    """Whether this runc has this flaw, by its versions."""
    if of.version >= max(flaw.fixed):
        return False
    # A mention in a changelog is enough to omit a warning, and not enough to run work.
    if not flaw.is_open and flaw.name in of.mended:
        return False
    if any(of.version[:2] == fixed[:2] and of.version >= fixed for fixed in flaw.fixed):
        return False
    for begins, number in flaw.packages:
        rest = re.match(r"[0-9]+", of.package[len(begins) :])
        if of.package.startswith(begins) and rest is not None and int(rest[0]) >= number:
            return False
    return True


def warnings(of: RuncVersion) -> tuple[str, ...]:
    """The flaws that it has and that do not prevent running containers."""
    return tuple(
        f"{flaw.name} ({flaw.about})" for flaw in FLAWS if not flaw.is_open and has(flaw, of)
    )


def sandbox(named: Path | None) -> str:
    """The program of a sandbox runtime: the one that is named, or gVisor's. Raises Unavailable."""
    program = str(named) if named is not None else shutil.which(SANDBOX, path=PATH_DEFAULT)
    if program is None:
        raise Unavailable(f"{SANDBOX} is not installed; install it, or use {SANDBOX_OPTION} PATH")
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        raise Unavailable(f"{SANDBOX_OPTION} {program} is not an executable program")
    about = os.stat(program)
    _version(program, about.st_ino, about.st_mtime_ns)
    return program


@lru_cache(maxsize=4)
def _version(program: str, inode: int, changed_ns: int) -> str:
    """The version of a sandbox runtime. Cached for each program."""
    return run_program(program, "--version")


def check() -> RuncVersion:
    """The installed runc. Raises Unavailable if it must not run tenants' containers."""
    found = installed_version()
    if not found.filters:
        raise Unavailable("this runc cannot filter system calls: it is built without libseccomp")
    for flaw in FLAWS:
        if flaw.is_open and has(flaw, found):
            raise Unavailable(f"this runc has {flaw.name} ({flaw.about}); install a fixed version")
    return found
