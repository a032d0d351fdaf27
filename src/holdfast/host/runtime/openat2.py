"""Opens files so that the kernel itself keeps every step of the way beneath a directory.

Called by `beneath` and `log_files` for whatever they read. A check of a path before it is
opened proves nothing, since work may rename things in between; openat2 refuses `..`, symbolic
links, magic links and other file systems while it walks. Where it is missing, nothing is read
at all: anything less would be an escape that nobody notices. `check` says so when an agent
starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from holdfast.model.errors import Unavailable

# The same on every architecture, since it is newer than their common table of calls.
_SYS_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
# The kernel answers EAGAIN when a rename anywhere on the machine crossed its way.
TRIES_MAX = 128
# The kernel has no word against second names of a file, and one may be gone when it is looked for.
# Whoever can make one can read the file himself; so often he would have to be lucky in a row.
LOOKS = 3
# So often a file may be another one when it is looked at again.
REPLACED_MAX = 8

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def check() -> None:
    """Raises Unavailable unless this kernel can do it."""
    try:
        os.close(beneath(".", os.open("/", os.O_PATH | os.O_CLOEXEC), is_taken=True))
    except OSError as error:
        raise Unavailable(
            f"this kernel does not keep paths beneath a directory (openat2: {error.strerror}); "
            "agents need Linux 5.6 or newer, and a sandbox that lets this call through"
        ) from error


def beneath(path: str, at: int, *, is_taken: bool = False) -> int:
    """A descriptor of whatever is there, for looking at it only. OSError for what leads out.

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

    OSError for anything else. A device or a pipe is not even opened, since that alone may do
    something; and of a file with a second name nobody knows whose it is.
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
        # By its descriptor, which is this very file whatever has become of its name.
        return os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(seen)


def _demand_own(about: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "is no ordinary file", path)
    if about.st_nlink > 1:
        raise OSError(errno.EMLINK, "has a second name", path)
