"""What an agent reads lies in the directory where it was looked for, whatever process races it."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.host.runtime import safe_paths
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.logs.reading import LogQuery, LogReader
from holdfast.model.errors import Invalid

SECRET = b"not yours\n"
OURS = b"ours\n"
# So often at least, and more often until the race was really met.
RACES, RACES_MAX = 2_000, 200_000


class Tree:
    """A replica's directory with things of its own, and a secret beside it."""

    def __init__(self, top: Path) -> None:
        self.top, self.inside, self.outside = top, top / "inside", top / "outside"
        (self.inside / "sub").mkdir(parents=True)
        self.outside.mkdir()
        self.secret = self.outside / "secret"
        self.secret.write_bytes(SECRET)
        (self.inside / "file").write_bytes(OURS)
        (self.inside / "sub" / "file").write_bytes(OURS)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def read(path: str, folder: Path) -> bytes:
    with opened(folder) as at, open(safe_paths.regular(path, at), "rb") as file:
        return file.read()


def test_an_ordinary_file_beneath_is_read(tree: Tree) -> None:
    safe_paths.check()
    assert read("file", tree.inside) == OURS
    assert read("sub/file", tree.inside) == OURS
    assert read("sub/../file", tree.inside) == OURS


PATHS = {
    "parent": "../outside/secret",
    "parent of a part": "sub/../../outside/secret",
    "parents": "../" * 40 + "etc/hostname",
    "absolute": "/etc/passwd",
    "absolute with slashes": "//etc/passwd",
    "the directory itself": ".",
    "a directory": "sub",
    "the parent itself": "..",
    "nothing": "",
    "a file as a directory": "file/file",
    "a slash at the end": "file/",
    "a null": "file\x00",
    "too long a name": "a" * 5_000,
    "proc": "/proc/self/environ",
    "proc by parents": "../" * 40 + "proc/self/environ",
    "absent": "sub/absent",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_a_path_that_leads_out_or_to_no_file_opens_nothing(tree: Tree, path: str) -> None:
    with pytest.raises(OSError):
        read(path, tree.inside)


def _link(target: str) -> Callable[[Tree], None]:
    return lambda tree: os.symlink(target.format(top=tree.top), tree.inside / "it")


def _folder_link(target: str) -> Callable[[Tree], None]:
    def make(tree: Tree) -> None:
        os.symlink(target.format(top=tree.top), tree.inside / "way")
        os.symlink("way/secret", tree.inside / "it")

    return make


def _device(tree: Tree) -> None:
    try:
        os.mknod(tree.inside / "it", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


def _socket(tree: Tree) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tree.inside / "it"))


def _loop(tree: Tree) -> None:
    os.symlink("it", tree.inside / "it")


def _chain(tree: Tree) -> None:
    os.symlink("two", tree.inside / "it")
    os.symlink("sub/three", tree.inside / "two")
    os.symlink("../../outside/secret", tree.inside / "sub" / "three")


THINGS: dict[str, Callable[[Tree], None]] = {
    "link out": _link("../outside/secret"),
    "absolute link out": _link("{top}/outside/secret"),
    "link to a file of its own": _link("file"),
    "link to a file of a part": _link("sub/file"),
    "link to nothing": _link("nowhere"),
    "link to itself": _loop,
    "chain of links": _chain,
    "magic link to a descriptor": _link("/proc/self/fd/0"),
    "magic link to the root": _link("/proc/self/root/etc/passwd"),
    "magic link to a working directory": _link("/proc/self/cwd"),
    "link to a device": _link("/dev/zero"),
    "link through a link": _folder_link("../outside"),
    "link through an absolute link": _folder_link("{top}/outside"),
    "hard link": lambda tree: os.link(tree.secret, tree.inside / "it"),
    "pipe": lambda tree: os.mkfifo(tree.inside / "it"),
    "device": _device,
    "socket": _socket,
    "directory": lambda tree: (tree.inside / "it").mkdir(),
}


@pytest.mark.parametrize("make", THINGS.values(), ids=THINGS.keys())
def test_what_is_no_file_of_its_own_is_not_opened(tree: Tree, make: Callable[[Tree], None]) -> None:
    """Neither read nor waited for: a pipe without a writer would block its reader."""
    make(tree)
    with pytest.raises(OSError):
        read("it", tree.inside)


def test_a_directory_that_is_a_link_is_not_entered(tree: Tree) -> None:
    os.symlink("../outside", tree.inside / "way")
    os.symlink("sub", tree.inside / "own")
    for path in ("way/secret", "own/file", "sub/../way/secret", "way/../../outside/secret"):
        with pytest.raises(OSError):
            read(path, tree.inside)


def _flip_link(tree: Tree) -> None:
    """The file is a link to the secret, and is not, and is."""
    os.symlink(tree.secret, tree.inside / "draft")
    os.replace(tree.inside / "draft", tree.inside / "sub" / "it")
    (tree.inside / "draft").write_bytes(OURS)
    os.replace(tree.inside / "draft", tree.inside / "sub" / "it")


def _flip_folder(tree: Tree) -> None:
    """The directory on the way is a link to where the secret is, and is not, and is."""
    way = tree.inside / "sub"
    os.rename(way, tree.inside / "aside")
    os.symlink(tree.outside, way)
    os.unlink(way)
    os.rename(tree.inside / "aside", way)


def _flip_outwards(tree: Tree) -> None:
    """The directory is moved out while it is walked, so that `..` is elsewhere."""
    os.rename(tree.inside / "sub", tree.outside / "sub")
    os.rename(tree.outside / "sub", tree.inside / "sub")


def _flip_hard_link(tree: Tree) -> None:
    os.link(tree.secret, tree.inside / "draft")
    os.replace(tree.inside / "draft", tree.inside / "sub" / "it")
    (tree.inside / "draft").write_bytes(OURS)
    os.replace(tree.inside / "draft", tree.inside / "sub" / "it")


def _flip_pipe(tree: Tree) -> None:
    os.mkfifo(tree.inside / "draft")
    os.replace(tree.inside / "draft", tree.inside / "sub" / "it")
    (tree.inside / "draft").write_bytes(OURS)
    os.replace(tree.inside / "draft", tree.inside / "sub" / "it")


@contextmanager
def racing(flip: Callable[[Tree], None], tree: Tree) -> Iterator[None]:
    """Another process that does this over and over."""
    racer = os.fork()
    if racer == 0:
        try:
            while True:
                flip(tree)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(racer, signal.SIGKILL)
        _, status = os.waitpid(racer, 0)
        assert os.WIFSIGNALED(status), "the racer gave up by itself"


def carelessly(path: Path) -> bytes:
    """Read a file after a check of its path, which is not enough."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    with open(fd, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    "flip, path, danger",
    [
        pytest.param(_flip_link, "sub/it", SECRET, id="link"),
        pytest.param(_flip_folder, "sub/it", SECRET, id="directory"),
        pytest.param(_flip_outwards, "sub/../../outside/secret", SECRET, id="carried out"),
        pytest.param(_flip_outwards, "sub/it", OURS, id="carried out and back"),
        pytest.param(_flip_hard_link, "sub/it", SECRET, id="hard link"),
        pytest.param(_flip_pipe, "sub/it", b"", id="pipe"),
    ],
)
def test_no_race_ends_outside(
    tree: Tree, flip: Callable[[Tree], None], path: str, danger: bytes
) -> None:
    """Whatever is renamed while it is opened: ours, or nothing. Others met the danger."""
    (tree.inside / "sub" / "it").write_bytes(OURS)
    (tree.outside / "it").write_bytes(SECRET)
    seen, others_saw, left = set(), set(), RACES_MAX
    with racing(flip, tree), opened(tree.inside) as at:
        while left > RACES_MAX - RACES or (danger not in others_saw and left):
            left -= 1
            others_saw.add(carelessly(tree.inside / path))
            try:
                fd = safe_paths.regular(path, at)
            except OSError:
                seen.add(b"")
                continue
            with open(fd, "rb") as file:
                seen.add(file.read())
    assert seen <= {b"", OURS}
    assert danger in others_saw


@pytest.mark.parametrize("uid", ["..", ".", "", "a/b", "../x", "/etc", "-x", "a" * 200, "ü", "a\n"])
def test_a_replica_is_named_by_one_plain_path_segment(tmp_path: Path, uid: str) -> None:
    attempts = AttemptFolders(tmp_path / "replicas")
    attempts.prepare()
    with pytest.raises(Invalid), attempts.of_replica(uid):
        pass


@pytest.mark.parametrize("name", ["stdout", "stdout.1", "stdout.2", "stderr", "stderr.1"])
def test_a_log_that_is_a_link_is_not_read(tree: Tree, name: str) -> None:
    """Work of the agent's own user can put anything in the place of its log."""
    os.symlink(tree.secret, tree.inside / name)
    with opened(tree.inside) as at, pytest.raises(OSError):
        LogReader(at, LogQuery())
