"""Keeps files that come from Secrets in memory, so that no disk and no backup of one has them.

Made by `runtime` for an agent that is root; `starting` writes them, `keeping` removes them when the
attempt has ended. They lie on a tmpfs of the machine, in a directory of the agent and one of the
attempt that only the work's user may enter. In the work's directory a link leads there, and in a
container the file itself is mounted. An agent that is not root can mount nothing: there they are
files of the work's directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from holdfast.agent.words import Attempt
from holdfast.host.runtime import beneath
from holdfast.host.runtime.attempts import Attempts
from holdfast.host.runtime.surroundings import PATH_DEFAULT
from holdfast.model.errors import Invalid

FOLDER = Path("/run/holdfast/secrets")
OPTIONS = "mode=0711,nosuid,nodev,noexec,size=64m"
MOUNT_TIMEOUT_S = 20
# A way to what is below, and no look at what there is.
PASSABLE, PRIVATE = 0o711, 0o700
_MEMORY = ("tmpfs", "ramfs")

_log = logging.getLogger(__name__)


class SecretFiles:
    """Those of one agent. Its methods wait for the kernel and are called in threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, attempt: Attempt, number: int) -> Path:
        """Where a file of an attempt is, by its place among the files of the template."""
        return self._of(attempt) / str(number)

    def _of(self, attempt: Attempt) -> Path:
        return self._folder / f"{attempt.uid}-{attempt.number}"

    def write(
        self,
        attempt: Attempt,
        number: int,
        content: bytes,
        mode: int,
        owner: tuple[int, int] | None,
    ) -> Path:
        """Write one that was not there."""
        folder = self._of(attempt)
        folder.mkdir(PRIVATE, exist_ok=True)
        if owner is not None:
            os.chown(folder, *owner)
        with beneath.folder(folder) as fd:
            beneath.write_new(str(number), fd, content, mode, owner)
        return self.path(attempt, number)

    def remove(self, attempt: Attempt) -> None:
        """Let nothing of an attempt be left. Work may have put anything there."""
        try:
            with beneath.folder(self._folder) as fd:
                beneath.remove(self._of(attempt).name, fd)
        except OSError as error:
            _log.warning("secret files of %s are left for the next look: %s", attempt, error)

    def retire(self) -> None:
        """Remove the directory of all, unless there are some. The next life makes it again."""
        with suppress(OSError):
            self._folder.rmdir()

    def sweep(self, attempts: Attempts, held: Container[Attempt]) -> None:
        """Remove those of attempts that no shim holds any more."""
        for name in os.listdir(self._folder):
            uid, _, number = name.rpartition("-")
            if not number.isdecimal() or Attempt(uid, int(number)) in held:
                continue
            attempt = Attempt(uid, int(number))
            try:
                is_alive = attempts.look(attempt).is_alive
            except (FileNotFoundError, Invalid):
                is_alive = False
            except OSError:
                continue
            if not is_alive:
                self.remove(attempt)


def find(root: Path, folder: Path = FOLDER) -> SecretFiles | None:
    """Where the agent of this directory keeps them; None where it cannot keep any in memory."""
    if os.geteuid() != 0:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Several agents of a machine must not cover each other's.
        with open(folder.with_name(f"{folder.name}.lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if file_system(folder) not in _MEMORY:
                _mount(folder)
        folder.chmod(PASSABLE)
        own = folder / hashlib.sha256(os.fsencode(root.absolute())).hexdigest()[:12]
        own.mkdir(exist_ok=True)
        own.chmod(PASSABLE)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("files from Secrets are on the disk, since no memory can be had: %s", error)
        return None
    return SecretFiles(own)


def _mount(folder: Path) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", OPTIONS, "holdfast", str(folder)],
        env={"PATH": PATH_DEFAULT},
        capture_output=True,
        timeout=MOUNT_TIMEOUT_S,
        check=True,
    )


def file_system(path: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """The kind of file system that a directory is on."""
    best, kind = "", ""
    for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        at = before.split(" ")[4]
        # The last of several mounts at one place is the one that is seen.
        if (path == Path(at) or Path(at) in path.parents) and len(at) >= len(best):
            best, kind = at, after.split(" ")[0]
    return kind
