"""The directories of attempts, DATA/replicas/UID/NUMBER, and what they record about their work.

Called by `starting` and `runtime`, from threads: everything here waits for the disk. Such a
directory holds, hidden from the work as far as its user's rights go:

    lock      locked by the shim for as long as it lives, and free afterwards
    launch    what this agent chose for the work: addresses, ports, limits
    state     written by the shim before the work begins: the processes of the shim and the work
    control   the shim's socket
    exit      written by the shim when everything has ended
    stdout, stderr, work/, tmp/

The lock is what makes an inspection safe. It is taken before the shim exists and handed over to it,
so a process that gets the lock knows that no shim of this attempt lives or will live; a pid proves
nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime import safe_paths
from holdfast.host.runtime.shim_records import (
    EXIT,
    RECORD_BYTES_MAX,
    SHIM_DIED,
    STATE,
    Exit,
    ShimState,
    exit_text,
    parse_exit,
    parse_state,
)
from holdfast.model.errors import Invalid

LOCK, LAUNCH, WORK, TMP = "lock", "launch", "work", "tmp"
LAUNCH_BYTES_MAX = 64 * 1024
# The logs of this many attempts are kept beside the current one.
ENDED_KEPT = 2

_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_]{0,127}", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class Choices(msgspec.Struct, frozen=True):
    """Whose the work is and what the agent chose at launch, for an agent that adopts it.

    runs_as: the user that it runs as, as passed to the shim; empty if that is the agent's own.
    disk_bytes: what it may have on the disk; 0 is without a limit.
    disk_aside_bytes: what is set aside for it there.
    listens: all of its ports, such as TCP/20001.
    token_file: the file with its service token, if it has one.
    oci_runtime: the program that runs its container, if that is not runc.
    oom_score: its `oom_score_adj`.
    """

    namespace: str = ""
    name: str = ""
    addresses: dict[str, str] = {}
    picked: tuple[str, ...] = ()
    limits: dict[str, str] = {}
    user: str = ""
    working_dir: str = ""
    is_boxed: bool = False
    runs_as: str = ""
    grace_ms: int | None = None
    disk_bytes: int = 0
    disk_aside_bytes: int = 0
    listens: tuple[str, ...] = ()
    token_file: str = ""
    oci_runtime: str = ""
    oom_score: int | None = None

    @property
    def ports_by_name(self) -> dict[str, str]:
        """Its ports by name, if its listeners can be recognized by its user."""
        if self.uid is None:
            return {}
        return dict(zip(self.addresses, self.listens, strict=False))

    @property
    def uid(self) -> int | None:
        """The user that it runs as, if that is recorded."""
        number = self.runs_as.partition(":")[0]
        return int(number) if number.isdecimal() else None


class AttemptFiles(msgspec.Struct, frozen=True):
    """The contents of an attempt's directory.

    is_alive: whether its shim lives. If not, and without an exit, the shim died, or nothing was
        ever started if there is no state either.
    """

    is_alive: bool
    state: ShimState | None = None
    exit: Exit | None = None
    choices: Choices = Choices()


class AttemptFolders:
    """All attempts below one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> Path:
        return self._root

    def prepare(self) -> None:
        """Make the directory that holds the others."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def of_replica(self, uid: str) -> Iterator[int]:
        """The open directory of a replica. FileNotFoundError when it has none."""
        if not _UID.fullmatch(uid):
            raise Invalid(f"uid: {uid!r} must be letters, digits, '-' and '_', at most 128")
        with safe_paths.folder(self._root) as root, safe_paths.folder(uid, root) as replica:
            yield replica

    @contextmanager
    def of(self, attempt: Attempt) -> Iterator[int]:
        """The open directory of an attempt. FileNotFoundError when it has none."""
        with (
            self.of_replica(attempt.uid) as replica,
            safe_paths.folder(str(attempt.number), replica) as fd,
        ):
            yield fd

    def make(self, attempt: Attempt, mode: int) -> None:
        """Make a directory that was not there. FileExistsError when there is one."""
        if not _UID.fullmatch(attempt.uid):
            raise Invalid(f"uid: {attempt.uid!r} must be letters, digits, '-' and '_', at most 128")
        with safe_paths.folder(self._root) as root:
            safe_paths.make(attempt.uid, root, mode)
            with safe_paths.folder(attempt.uid, root) as replica:
                # If the work has another user, that user may pass through it, but list nothing.
                os.fchmod(replica, mode)
                os.mkdir(str(attempt.number), mode, dir_fd=replica)
                with safe_paths.folder(str(attempt.number), replica) as fd:
                    os.fchmod(fd, mode)

    def uids(self) -> list[str]:
        """All replicas that have a directory. Other files there are ignored."""
        with safe_paths.folder(self._root) as root:
            return sorted(name for name in safe_paths.folders(root) if _UID.fullmatch(name))

    def numbers(self, uid: str) -> list[int]:
        """The attempts of a replica, the latest first."""
        try:
            with self.of_replica(uid) as fd:
                names = safe_paths.folders(fd)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted((int(name) for name in names if _NUMBER.fullmatch(name)), reverse=True)

    def has(self, attempt: Attempt) -> bool:
        """Whether an attempt has a directory; True for what is not ours, to leave it alone."""
        is_ours = _UID.fullmatch(attempt.uid) is not None
        return not is_ours or attempt.number in self.numbers(attempt.uid)

    def clear(self, uid: str) -> None:
        """Remove everything of a replica."""
        if not _UID.fullmatch(uid):
            raise Invalid(f"uid: {uid!r} must be letters, digits, '-' and '_', at most 128")
        with safe_paths.folder(self._root) as root:
            safe_paths.remove(uid, root)

    def prune(self, uid: str) -> None:
        """Remove attempts whose logs are no longer kept, except those that still live."""
        for number in self.numbers(uid)[1 + ENDED_KEPT :]:
            if not self.look(Attempt(uid, number)).is_alive:
                with self.of_replica(uid) as fd:
                    safe_paths.remove(str(number), fd)

    def look(self, attempt: Attempt) -> AttemptFiles:
        """The contents now. FileNotFoundError when the attempt has no directory."""
        with self.of(attempt) as fd:
            held = lock(fd)
            if held is None:
                # An exit counts only once the shim is gone: it is a proof of stop, and until then
                # the work's own user might have written it.
                return AttemptFiles(True, _state(fd), None, _choices(fd))
            try:
                return AttemptFiles(False, _state(fd), _exit(fd), _choices(fd))
            finally:
                os.close(held)

    def record(self, attempt: Attempt, of: Exit) -> None:
        """Record the end of work whose shim died before it could."""
        with self.of(attempt) as fd:
            safe_paths.write_synced(EXIT, fd, exit_text(of).encode())


def lock(fd: int) -> int | None:
    """The locked file of an attempt's open directory; None while another process has it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(LOCK, flags, 0o600, dir_fd=fd)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file


def _exit(fd: int) -> Exit | None:
    text = safe_paths.read(EXIT, fd, RECORD_BYTES_MAX)
    try:
        return parse_exit(text) if text is not None else None
    except (ValueError, KeyError):
        # The shim replaces the file as a whole, so another process wrote this.
        return None


def _state(fd: int) -> ShimState | None:
    text = safe_paths.read(STATE, fd, RECORD_BYTES_MAX)
    try:
        return parse_state(text) if text is not None else None
    except (ValueError, KeyError):
        return None


def _choices(fd: int) -> Choices:
    text = safe_paths.read(LAUNCH, fd, LAUNCH_BYTES_MAX)
    try:
        return msgspec.json.decode(text, type=Choices) if text is not None else Choices()
    except msgspec.DecodeError:
        return Choices()


def exit_without_record(state: ShimState, reason: str = SHIM_DIED) -> Exit:
    """The end of work whose shim left no record."""
    return Exit(
        reason=reason, is_started=1, boot=state.boot, work=state.work, started_ms=state.started_ms
    )
