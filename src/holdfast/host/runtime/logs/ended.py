"""The logs of replicas whose other files were removed: DATA/.ended/UID/NUMBER.

`runtime` moves them here when everything else of a replica is removed; `host.tunnel.logs` reads
them when the replica's own directory is gone. The work's own files are never kept. What is kept is
bounded by number, size and age; the oldest goes first.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime import safe_paths
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.logs.log_files import FILES, STREAMS

# No replica has this name, since a dot cannot begin one.
FOLDER = ".ended"
KEPT_MAX = 200
KEPT_BYTES_MAX = 512 << 20
KEPT_S = 24 * 3_600
_NAMES = (*STREAMS, *(f"{stream}.{age}" for stream in STREAMS for age in range(1, FILES)))


class _Kept(msgspec.Struct, frozen=True, order=True):
    """The kept logs of one replica, the oldest first."""

    since_s: float
    uid: str
    bytes: int


class EndedLogs:
    """The kept logs of one agent. Everything here waits for the disk, and is called in threads."""

    def __init__(self, attempts: AttemptFolders) -> None:
        self._attempts = attempts
        # The same layout, one directory further down.
        self._ended = AttemptFolders(attempts.root / FOLDER)
        # Read once, so that the cost of an end does not grow with the number of kept logs.
        self._kept: deque[_Kept] | None = None
        self._lock = threading.Lock()

    def keep(self, uid: str) -> None:
        """Take the logs of a replica out of its directory, and drop some that are older."""
        numbers = self._attempts.numbers(uid)
        if numbers:
            with self._lock:
                self._keep(uid, numbers)

    def _keep(self, uid: str, numbers: list[int]) -> None:
        self._ended.prepare()
        if self._kept is None:
            self._kept = deque(sorted(self._sized(uid) for uid in self._ended.uids()))
        for number in numbers:
            attempt = Attempt(uid, number)
            with suppress(FileExistsError):
                self._ended.make(attempt, 0o700)
            with self._attempts.of(attempt) as source, self._ended.of(attempt) as target:
                for name in _NAMES:
                    # The file is only moved here; a reader checks what it is.
                    with suppress(FileNotFoundError):
                        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        self._kept = deque(one for one in self._kept if one.uid != uid)
        self._kept.append(self._sized(uid))
        self._prune(self._kept)

    def numbers(self, uid: str) -> list[int]:
        """The attempts of a replica that are kept, the latest first."""
        return self._ended.numbers(uid) if self._ended.root.exists() else []

    @contextmanager
    def of(self, attempt: Attempt) -> Iterator[int]:
        """The open directory of an attempt. FileNotFoundError when it has none."""
        with self._ended.of(attempt) as fd:
            yield fd

    def _prune(self, kept: deque[_Kept]) -> None:
        used, oldest_s = sum(one.bytes for one in kept), time.time() - KEPT_S
        while kept and (
            used > KEPT_BYTES_MAX or len(kept) > KEPT_MAX or kept[0].since_s < oldest_s
        ):
            used -= kept[0].bytes
            self._ended.clear(kept[0].uid)
            kept.popleft()

    def _sized(self, uid: str) -> _Kept:
        used, since_s = 0, 0.0
        with self._ended.of_replica(uid) as replica:
            since_s = os.fstat(replica).st_mtime
            for number in safe_paths.folders(replica):
                with safe_paths.folder(number, replica) as fd, os.scandir(fd) as entries:
                    used += sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
        return _Kept(since_s, uid, used)
