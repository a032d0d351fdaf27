"""Keeps files that come from Secrets in memory, so that no disk and no backup of a disk has them.

Made by `runtime` for an agent that is root; `starting` writes them, `service_tokens` replaces those
that expire, `supervisor` removes them when the attempt has ended. They lie on a tmpfs of our own:

    FOLDER/AGENT/TENANT/UID-NUMBER/files/NAME

All directories belong to root. Only the work's group can pass that of the attempt. In the work's
own directory a link leads to each file; in a container `files` is mounted at the same path. Work
sees all of this read-only: a file that it could extend would fill memory that all tenants share.
For the same reason each tenant has a share of it. An agent that is not root cannot mount anything:
there they are files of the work's directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
import threading
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime import safe_paths
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.surroundings import PATH_DEFAULT
from holdfast.model.errors import Invalid, Unavailable

FOLDER = Path("/run/holdfast/secrets")
# The size is a part of the machine's memory. A tenant's share is far smaller.
OPTIONS = "mode=0711,nosuid,nodev,noexec,size=25%"
TENANT_BYTES_MAX = 16 * 1024 * 1024
MOUNT_TIMEOUT_S = 20
# Directories that can be passed and not listed; by all, or by one group.
PASSABLE, GUARDED = 0o711, 0o710
FILES = "files"
_PAGE = os.sysconf("SC_PAGE_SIZE")

_log = logging.getLogger(__name__)


class SecretFiles:
    """The secret files of one agent. Its methods wait for the kernel and are called in threads."""

    def __init__(self, folder: Path, root: Path = FOLDER) -> None:
        """`root` is where the tmpfs is mounted."""
        self._folder, self.root = folder, root
        self._alone = threading.Lock()
        # The bytes that attempts use, as far as known, by the names of tenant and attempt.
        self._taken: dict[str, dict[str, int]] = {}

    def files(self, tenant: str, attempt: Attempt) -> Path:
        """The directory with the files of an attempt, and nothing else."""
        return self._folder / tenant / f"{attempt.uid}-{attempt.number}" / FILES

    def path(self, tenant: str, attempt: Attempt, file: str) -> Path:
        """The place of a file of an attempt, by its path in the work's directory."""
        name = hashlib.sha256(os.fsencode(file)).hexdigest()[:32]
        return self.files(tenant, attempt) / name

    def write(
        self,
        path: Path,
        content: bytes,
        mode: int,
        owner: tuple[int, int] | None,
    ) -> None:
        """Write a new file for this user. Raises Unavailable beyond the tenant's share."""
        files, attempt = path.parent, path.parent.parent
        for folder in (attempt.parent, attempt, files):
            folder.mkdir(exist_ok=True)
        attempt.parent.chmod(PASSABLE)
        os.chown(attempt, 0, owner[1] if owner is not None else 0)
        attempt.chmod(GUARDED)
        files.chmod(PASSABLE)
        self._put(path, content, mode, owner)

    def _put(self, path: Path, content: bytes, mode: int, owner: tuple[int, int] | None) -> None:
        attempt = path.parent.parent
        with self._alone, safe_paths.folder(path.parent) as fd:
            taken, size = self._taken_by(attempt.parent), _pages(len(content))
            if sum(taken.values()) + size > TENANT_BYTES_MAX:
                raise Unavailable(
                    f"the files from Secrets of tenant {attempt.parent.name} on this node would "
                    f"exceed {TENANT_BYTES_MAX >> 20}Mi; use smaller Secrets or fewer replicas"
                )
            safe_paths.write_new(path.name, fd, content, mode, owner)
            taken[attempt.name] = taken.get(attempt.name, 0) + size

    def _taken_by(self, tenant: Path) -> dict[str, int]:
        """The bytes that each attempt of a tenant uses. Those of an earlier agent are read once."""
        if tenant.name not in self._taken:
            self._taken[tenant.name] = {it.name: _used(it) for it in tenant.iterdir()}
        return self._taken[tenant.name]

    def replace(self, path: Path, content: bytes) -> bool:
        """Replace a file, with the same owner and mode; False if there is none.

        Work that has the old file open may read it until the next replacement. Then it is emptied:
        files that work keeps open would use memory that counts in no share.
        """
        draft, old = path.with_name(f"{path.name}.new"), path.with_name(f"{path.name}.old")
        try:
            found = path.lstat()
        except FileNotFoundError:
            return False
        draft.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            os.truncate(old, 0)
            old.unlink()
        self._put(draft, content, found.st_mode & 0o777, (found.st_uid, found.st_gid))
        old.hardlink_to(path)
        draft.replace(path)
        attempt = path.parent.parent
        with self._alone:
            self._taken_by(attempt.parent)[attempt.name] = _used(attempt)
        return True

    def remove(self, attempt: Attempt) -> None:
        """Remove all files of an attempt."""
        for tenant in self._tenants():
            name = f"{attempt.uid}-{attempt.number}"
            try:
                with self._alone, safe_paths.folder(self._folder / tenant) as fd:
                    safe_paths.remove(name, fd)
                    self._taken.get(tenant, {}).pop(name, None)
            except OSError as error:
                _log.warning("secret files of %s cannot be removed yet: %s", attempt, error)

    def retire(self) -> None:
        """Remove the agent's directory if it is empty. The next agent process makes it again."""
        with suppress(OSError):
            for tenant in self._tenants():
                (self._folder / tenant).rmdir()
            self._folder.rmdir()

    def sweep(self, attempts: AttemptFolders, held: Container[Attempt]) -> None:
        """Remove the files of attempts that no shim holds any more."""
        for attempt in list(self._attempts()):
            if attempt in held:
                continue
            try:
                is_alive = attempts.look(attempt).is_alive
            except (FileNotFoundError, Invalid):
                is_alive = False
            except OSError:
                continue
            if not is_alive:
                self.remove(attempt)

    def _tenants(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return []

    def _attempts(self) -> Iterator[Attempt]:
        for tenant in self._tenants():
            for name in os.listdir(self._folder / tenant):
                uid, _, number = name.rpartition("-")
                if number.isdecimal():
                    yield Attempt(uid, int(number))


def _pages(size: int) -> int:
    """What a file of this size uses on a tmpfs. An empty one uses kernel memory."""
    return max(1, -(-size // _PAGE)) * _PAGE


def _used(attempt: Path) -> int:
    """What the files of an attempt use. Another thread may remove some meanwhile."""
    used = 0
    for path in attempt.glob(f"{FILES}/*"):
        with suppress(FileNotFoundError):
            used += _pages(path.lstat().st_size)
    return used


def find(root: Path, folder: Path = FOLDER) -> SecretFiles | None:
    """The secret files of the agent with this directory; None if it cannot keep any in memory."""
    if os.geteuid() != 0:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Several agents of a machine must not mount over each other's files.
        with open(folder.with_name(f"{folder.name}.lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # A tmpfs that is mounted above this one, such as /run, is not ours to fill.
            _mount(folder, is_there=os.path.ismount(folder))
        own = folder / hashlib.sha256(os.fsencode(root.absolute())).hexdigest()[:12]
        own.mkdir(exist_ok=True)
        own.chmod(PASSABLE)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("files from Secrets go to the disk, since no tmpfs can be mounted: %s", error)
        return None
    return SecretFiles(own, folder)


def _mount(folder: Path, *, is_there: bool) -> None:
    options = f"remount,{OPTIONS}" if is_there else OPTIONS
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "holdfast", str(folder)],
        env={"PATH": PATH_DEFAULT},
        capture_output=True,
        timeout=MOUNT_TIMEOUT_S,
        check=True,
    )
