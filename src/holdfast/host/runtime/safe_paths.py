"""File access that never leaves a directory, whatever names others chose.

Called by `attempts` for everything below an agent's data. Each step goes from one open directory to
the next and follows no symbolic link: work may have put links into its own directory, and a
template may name any path. Only plain relative paths beneath the directory are allowed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from holdfast.model.encoding.problems import excerpt
from holdfast.model.errors import FieldError, Invalid, Unavailable

# Opens files so that the kernel itself keeps every step of the path beneath a directory.
#
# Used below and by `logs/files` for all reads. A check of a path before it is opened proves
# nothing, since work may rename things in between; openat2 refuses `..`, symbolic links, magic
# links and other file systems while it walks. Without openat2 nothing is read at all: anything less
# would be an escape that goes unnoticed. `check` says so when an agent starts.

# The number is the same on every architecture: newer system calls share one table.
_SYS_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
# The kernel answers EAGAIN when a rename anywhere on the machine crossed its way.
TRIES_MAX = 128
# The kernel cannot refuse hard links, and one may be gone when it is looked for. A process that can
# make one can read the file itself; this many times in a row it would have to be lucky.
LOOKS = 3
# How often a file may turn out to be another one on the second look.
REPLACED_MAX = 8

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def check() -> None:
    """Raises Unavailable unless this kernel has openat2."""
    try:
        os.close(beneath(".", os.open("/", os.O_PATH | os.O_CLOEXEC), is_taken=True))
    except OSError as error:
        raise Unavailable(
            f"this kernel cannot keep paths beneath a directory (openat2: {error.strerror}); "
            "agents need Linux 5.6 or newer, and a sandbox that allows this system call"
        ) from error


def beneath(path: str, at: int, *, is_taken: bool = False) -> int:
    """A descriptor of the file at a path, only to inspect it. OSError for a path that leads out.

    `is_taken` closes `at` afterwards.
    """
    how = _OpenHow(os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _RESOLVE)
    name = os.fsencode(path)
    if b"\x00" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    try:
        for _ in range(TRIES_MAX):
            fd = _libc.syscall(
                ctypes.c_long(_SYS_OPENAT2),
                ctypes.c_int(at),
                ctypes.c_char_p(name),
                ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)),
            )
            if fd >= 0:
                return int(fd)
            if ctypes.get_errno() != errno.EAGAIN:
                break
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        if is_taken:
            os.close(at)


def regular(path: str, at: int) -> int:
    """An ordinary file beneath a directory, open for reading.

    OSError for anything else. A device or a pipe is not even opened, since that alone may have an
    effect; and a file with a hard link may be another owner's.
    """
    for _ in range(REPLACED_MAX):
        try:
            return _regular(path, at)
        except BlockingIOError:
            # A log that rotates meets this now and then.
            continue
    return _regular(path, at)


def _regular(path: str, at: int) -> int:
    seen = beneath(path, at)
    try:
        for _ in range(LOOKS):
            _demand_own(os.fstat(seen), path)
            again = beneath(path, at)
            try:
                if not os.path.sameopenfile(seen, again):
                    raise OSError(errno.EAGAIN, "was replaced while it was opened", path)
            finally:
                os.close(again)
        # By its descriptor, which is the same file whatever has become of its name.
        return os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(seen)


def _demand_own(about: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", path)
    if about.st_nlink > 1:
        raise OSError(errno.EMLINK, "has a hard link", path)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Folder = AbstractContextManager[int]
PARTS_MAX = 128


def parts(path: str, field: str) -> list[str]:
    """The parts of a relative path that only goes down. Raises Invalid, which names the field."""
    found = path.split("/")
    if path.startswith("/") or "\x00" in path or any(p in ("", ".", "..") for p in found):
        rule = "must be relative, without empty, '.' or '..' parts"
    elif len(found) > PARTS_MAX:
        rule = f"must have at most {PARTS_MAX} parts"
    else:
        return found
    error = FieldError(field, excerpt(path), rule)
    raise Invalid(str(error), (error,))


@contextmanager
def folder(name: str | os.PathLike[str], at: int | None = None) -> Iterator[int]:
    """An open directory; a link is refused."""
    fd = os.open(name, _FOLDER, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


def folders(at: int) -> list[str]:
    """The names of the directories in one, without links."""
    with os.scandir(at) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def make(name: str, at: int, mode: int = 0o700) -> None:
    """Make a directory unless there is one."""
    try:
        os.mkdir(name, mode, dir_fd=at)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=at).st_mode):
            raise


@contextmanager
def descend(names: list[str], at: int, owner: tuple[int, int] | None) -> Iterator[int]:
    """The open directory at the end of a path, made where it does not exist."""
    fd = os.dup(at)
    try:
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
                if owner is not None:
                    os.chown(name, *owner, dir_fd=fd, follow_symlinks=False)
            below = os.open(name, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def write_new(
    name: str, at: int, content: bytes, mode: int, owner: tuple[int, int] | None = None
) -> None:
    """Write a new file. A link of that name is refused, not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=at), "wb") as file:
        file.write(content)
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), mode)


def read(name: str, at: int, bytes_max: int) -> str | None:
    """A small file of ours as text; None when it is not there."""
    try:
        fd = regular(name, at)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        return file.read(bytes_max).decode("utf-8", "replace")


def write_synced(name: str, at: int, content: bytes) -> None:
    """Replace a file atomically, also in case of a power cut."""
    draft = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=at)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(draft, flags, 0o600, dir_fd=at), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, name, src_dir_fd=at, dst_dir_fd=at)
    os.fsync(at)


def remove(name: str, at: int) -> None:
    """Remove a file, a link or a whole tree, if it exists.

    However deep a tree is, it takes three descriptors and no recursion: work chose its depth, and
    a tree that could not be removed would fill the disk for good.
    """
    with suppress(FileNotFoundError):
        if not _is_folder(name, at):
            os.unlink(name, dir_fd=at)
            return
        _open_up(name, at)
        with folder(name, at) as top:
            _empty(top)
        os.rmdir(name, dir_fd=at)


def _empty(top: int) -> None:
    """Empty a directory: what lies two levels below it is moved up one level first."""
    lifted = 0
    while names := os.listdir(top):
        for name in names:
            if not _is_folder(name, top):
                os.unlink(name, dir_fd=top)
                continue
            _open_up(name, top)
            with folder(name, top) as fd:
                for below in os.listdir(fd):
                    if _is_folder(below, fd):
                        lifted = _lift(below, fd, top, lifted)
                    else:
                        os.unlink(below, dir_fd=fd)
            os.rmdir(name, dir_fd=top)


def _lift(name: str, at: int, top: int, lifted: int) -> int:
    """Move a directory up under an unused name; returns how many names were tried so far."""
    _open_up(name, at)
    while True:
        lifted += 1
        try:
            os.lstat(f"lifted-{lifted}", dir_fd=top)
        except FileNotFoundError:
            os.rename(name, f"lifted-{lifted}", src_dir_fd=at, dst_dir_fd=top)
            return lifted


def _is_folder(name: str, at: int) -> bool:
    return stat.S_ISDIR(os.lstat(name, dir_fd=at).st_mode)


def _open_up(name: str, at: int) -> None:
    """Make a directory readable and writable for its owner: work may have removed that right."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        # An O_PATH descriptor can only be changed by its name under /proc, which is the same file.
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)
