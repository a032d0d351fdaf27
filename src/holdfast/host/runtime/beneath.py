"""Directories in which nothing that others named leads out.

Called by `attempts` for everything that lies below an agent's data. Each step goes from one open
directory to the next and follows no symbolic link: work may have put any into its own directory,
and a template may name any path. What is relative, plain and beneath is done; all else is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from holdfast.host.runtime import openat2
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.problems import excerpt

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Folder = AbstractContextManager[int]
PARTS_MAX = 128


def parts(path: str, field: str) -> list[str]:
    """The parts of a relative path that goes down only; Invalid names the field for any other."""
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
    """An open directory, which is no link."""
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
    """The open directory at the end of a way down, made where it is not there."""
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
    """Write a file that was not there. A link of that name is not followed but refused."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=at), "wb") as file:
        file.write(content)
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), mode)


def read(name: str, at: int, bytes_max: int) -> str | None:
    """A small file of ours as text; None when it is not there."""
    try:
        fd = openat2.regular(name, at)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        return file.read(bytes_max).decode("utf-8", "replace")


def write_synced(name: str, at: int, content: bytes) -> None:
    """Put a file in place of another: whole or not there, also after a power cut."""
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
    """Remove a file, a link or a whole tree. What is not there is removed already.

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
    """Remove all in a directory: what lies two levels below it is lifted to one level first."""
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
    """Move a directory up, under a name that none has there; how many names were tried so far."""
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
    """Work may have taken away its owner's own right to read and write a directory."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        # A descriptor of this kind is changed by its name under /proc, which is no other file.
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)
