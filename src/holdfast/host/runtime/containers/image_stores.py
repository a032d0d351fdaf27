"""Stores of images that were pulled for tenants: where they lie, how large, and for how long.

`image_waits` uses them. A tenant has a store for each set of credentials that it pulls with, and
one for images that need none. So without the credentials there is no access to the image: not for
another tenant, a later tenant of the same name, or work of the same tenant without the Secret.
Layers are not shared between stores, since podman uses a layer that it has without checking the
permission again.

A store is in use while an attempt with an image from it lives. Others are removed after `IDLE_S`,
or earlier when their tenant needs the room.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import re
import secrets
import stat
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.process.files import PRIVATE_DIRECTORY, write_private
from holdfast.host.runtime import safe_paths
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.surroundings import PATH_DEFAULT
from holdfast.model.errors import Unavailable

OPTION = "--tenant-images-mib"
MIB = 1 << 20
BYTES_MAX = 20 * 1024 * MIB
# How long an unused store is kept, so that work that comes back need not pull again.
IDLE_S = 24 * 3600.0
SWEEP_S = 600.0
# An image that was asked for this recently may be needed by a start that is under way.
FRESH_S = 900.0
# An image with more files than this counts as an attack, whatever their size.
ENTRIES_MAX = 4_000_000
UNMOUNT_TIMEOUT_S = 30
# The key lies beside the directories of tenants, whose names never begin with a dot.
STORES, KEY, USERS, LAST = ".podman", ".key", "used", "last"
_STORE = re.compile(r"[0-9a-f]{32}", re.ASCII)
_USER = re.compile(r"([A-Za-z0-9_-]{1,128})\.([0-9]{1,10})", re.ASCII)

_log = logging.getLogger(__name__)


class ImageStore(msgspec.Struct, frozen=True):
    """A store of podman's. Without a folder it is the node's own, which operators fill."""

    folder: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Podman's options for it."""
        if self.folder is None:
            return ()
        return ("--root", str(self.folder / "images"), "--runroot", str(self.folder / "run"))

    @property
    def temporary(self) -> Path | None:
        """The directory of podman's downloads: it counts with the store and is removed with it."""
        return self.folder / "tmp" if self.folder is not None else None


NODE_STORE = ImageStore()


class ImageStores:
    """The stores of one agent. Its methods wait for the disk: call them in threads."""

    def __init__(self, root: Path, bytes_max: int = BYTES_MAX) -> None:
        self._attempts, self._root = AttemptFolders(root), root.absolute() / STORES
        self._bytes_max = bytes_max
        self._alone = threading.Lock()

    def of(self, tenant: str, credentials: bytes, attempt: Attempt) -> ImageStore:
        """The store of a tenant for these credentials, which this attempt uses from now on."""
        self._root.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        name = hmac.new(self._key(), credentials, hashlib.sha256).hexdigest()[:32]
        folder = self._root / tenant / name
        used = folder / USERS
        used.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        for mark in (used / f"{attempt.uid}.{attempt.number}", folder / LAST):
            mark.touch()
        return ImageStore(folder)

    def _key(self) -> bytes:
        """The name of a store. It is keyed: paths of layers are visible in containers, and a name
        must not help to guess a password.
        """
        path = self._root / KEY
        with self._alone:
            if not path.exists():
                write_private(path, secrets.token_bytes(32))
            return path.read_bytes()

    def make_room(self, tenant: str) -> None:
        """Make room for another image. Raises Unavailable if images in use leave none."""
        if self.is_full(tenant):
            for folder in self._stores(tenant):
                if not self._is_used(folder):
                    self._remove(folder)
        if self.is_full(tenant):
            raise self.full(tenant)

    def full(self, tenant: str) -> Unavailable:
        return Unavailable(
            f"the images of tenant {tenant} exceed {self._bytes_max // MIB} MiB on this node; use "
            f"smaller or fewer images, or ask the operator to raise {OPTION}"
        )

    def is_full(self, tenant: str) -> bool:
        """Whether a tenant's images have reached the limit of bytes or of files."""
        size, entries, waiting = 0, 0, [str(self._root / tenant)]
        while waiting:
            # podman removes and renames meanwhile.
            with suppress(FileNotFoundError), os.scandir(waiting.pop()) as found:
                for entry in found:
                    with suppress(FileNotFoundError):
                        about = entry.stat(follow_symlinks=False)
                        size, entries = size + about.st_blocks * 512, entries + 1
                        if stat.S_ISDIR(about.st_mode):
                            waiting.append(entry.path)
                    if size > self._bytes_max or entries > ENTRIES_MAX:
                        return True
        return False

    def sweep(self) -> None:
        """Remove stores that were unused for long, and empty directories of tenants."""
        for tenant in _listed(self._root):
            for folder in self._stores(tenant.name):
                if not self._is_used(folder) and _unused_s(folder / LAST) > IDLE_S:
                    self._remove(folder)
            with suppress(OSError):
                tenant.rmdir()

    def _stores(self, tenant: str) -> list[Path]:
        return [it for it in _listed(self._root / tenant) if _STORE.fullmatch(it.name)]

    def _is_used(self, folder: Path) -> bool:
        """Whether an attempt that uses it lives, or may be about to start."""
        is_used = False
        for mark in _listed(folder / USERS):
            if _unused_s(mark) < FRESH_S or self._lives(mark.name):
                is_used = True
            else:
                mark.unlink(missing_ok=True)
        return is_used

    def _lives(self, user: str) -> bool:
        found = _USER.fullmatch(user)
        if found is None:
            return False
        try:
            return self._attempts.look(Attempt(found[1], int(found[2]))).is_alive
        except FileNotFoundError:
            return False

    def _remove(self, folder: Path) -> None:
        """Remove a store, with what podman has mounted in it."""
        try:
            for point in _mounted_below(folder):
                words = ["umount", "--lazy", point]
                where = {"PATH": PATH_DEFAULT}
                subprocess.run(words, check=True, timeout=UNMOUNT_TIMEOUT_S, env=where)
            with safe_paths.folder(folder.parent) as above:
                safe_paths.remove(folder.name, above)
        except (OSError, subprocess.SubprocessError) as error:
            # The next sweep tries again.
            _log.warning("the images in %s cannot be removed: %s", folder, error)


def _listed(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(folder.iterdir())
    return []


def _unused_s(mark: Path) -> float:
    """How many seconds ago this was last written; infinite if it does not exist."""
    with suppress(FileNotFoundError):
        return time.time() - mark.stat().st_mtime
    return math.inf


def _mounted_below(folder: Path) -> list[str]:
    """The mount points in a directory, the innermost first."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    points = [line.split(" ")[4] for line in text.splitlines()]
    # Spaces are octal escapes there, and no name of ours has one.
    return sorted((it for it in points if it.startswith(f"{folder}/")), key=len, reverse=True)
