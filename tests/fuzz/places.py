"""Where things lie: keys of the stores, paths of requests, files beneath a directory."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st

from holdfast.host.api.routes import Router, table
from holdfast.host.runtime import safe_paths
from holdfast.host.runtime.logs import log_files
from holdfast.model import keys
from holdfast.model.errors import HoldfastError, Invalid
from holdfast.model.transaction import Committed, Put, Transaction
from holdfast.store.etcd.layout import Layout, after_prefix, is_bookmark
from holdfast.store.sqlite import SqliteStore
from tests.fuzz.nasty import texts, words
from tests.fuzz.targets import Target, refused

_LAYOUT = Layout("/holdfast/")
_ROUTER = Router(table())
_KEYS = words("objects/", "workloads/", "t/", "web", "ledgers/node/", "é", "\U0010ffff").filter(
    lambda text: text != "" and text < keys.END and _is_text(text)
)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _key(case: tuple[str, str]) -> str:
    one, other = case
    name, beside = _LAYOUT.record(one), _LAYOUT.record(other)
    assert _LAYOUT.key(name) == one
    assert not is_bookmark(name)
    # Every store lists keys in one order, or a page would begin where another store does not.
    assert (one < other) == (name < beside)
    first, last = _LAYOUT.watch_ranges(other)
    assert (first <= name < last) == one.startswith(other)
    assert (other <= one < keys.after_prefix(other)) == one.startswith(other)
    assert after_prefix(name) > name
    return "below" if one.startswith(other) else "beside"


class _Store:
    """An embedded store that lives as long as this process, in a folder of its own."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._store: SqliteStore | None = None

    def kept(self, key: str) -> list[str]:
        """Write under a key, and list what is there from it up to just after it."""
        if self._runner is None:
            self._runner = asyncio.Runner()
            path = _FOLDER().parent / "keys.db"
            # It is never closed: when a process ends, threads that could are gone first.
            self._store = self._runner.run(SqliteStore.open(path))
        return self._runner.run(self._kept(key))

    async def _kept(self, key: str) -> list[str]:
        assert self._store is not None
        written = await self._store.txn(Transaction((), (Put(key, key.encode()),)))
        assert isinstance(written, Committed)
        page = await self._store.range(key, key + "\0", limit=5)
        assert [record.value for record in page.records] == [key.encode()]
        below = await self._store.range(key, keys.after_prefix(key), limit=500)
        names = [record.key for record in below.records]
        assert names == sorted(names)
        assert all(name.startswith(key) for name in names)
        return names


_STORE = _Store()


def _stored(key: str) -> str:
    return "alone" if len(_STORE.kept(key)) == 1 else "with others"


def _route(path: str) -> str:
    try:
        found = _ROUTER.find(path)
    except HoldfastError as error:
        return refused(error)
    if found is None:
        return "nowhere"
    for value in found[1].values():
        assert value
        assert "/" not in value
        assert value.isprintable()
        assert len(value) <= 253
        value.encode()
    return "found"


class _Folder:
    """A directory with things in it that lead out, made once for a process."""

    def __init__(self) -> None:
        self._root: Path | None = None

    def __call__(self) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
            atexit.register(shutil.rmtree, self._root, ignore_errors=True)
            inside = self._root / "inside"
            (inside / "a" / "b").mkdir(parents=True)
            (self._root / "secret").write_text("out")
            (inside / "log").write_text("in")
            (inside / "a" / "log").write_text("in")
            (inside / "up").symlink_to("..")
            (inside / "out").symlink_to(self._root / "secret")
            (inside / "self").symlink_to("/proc/self/root")
            os.mkfifo(inside / "pipe")
        return self._root / "inside"


_FOLDER = _Folder()


def _file(path: str) -> str:
    root = _FOLDER()
    try:
        safe_paths.parts(path, "path")
    except Invalid as error:
        refused(error)
    try:
        with safe_paths.folder(root) as at:
            fd = safe_paths.regular(path, at)
    except OSError:
        return "refused"
    try:
        assert Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(root.resolve())
        assert os.read(fd, 10) == b"in"
    finally:
        os.close(fd)
    return "read"


_AFTER = b"2026-11-16T00:29:27.123456789Z"


def _record(line: bytes) -> str:
    found = log_files.parse(line, 0, _AFTER)
    assert found.time >= _AFTER
    assert len(found.time) == log_files.TIME_BYTES
    log_files.LogPrinter(has_times=True).text(found)
    return found.kind.decode()


_LINES = st.lists(
    st.sampled_from((_AFTER, b" stdout ", b"F ", b"P ", b"L ", b"Z", b"\n", b"9" * 30))
    | st.binary(max_size=6),
    max_size=6,
).map(b"".join)
# An agent is asked for paths in JSON, which brings no surrogates.
_PATHS = words("log", "a", "/", "b", "..", "up", "out", "self", ".", "pipe", "secret", "\0").filter(
    _is_text
)

TARGETS = (
    Target("keys", st.tuples(_KEYS, _KEYS), _key),
    Target("stored keys", _KEYS, _stored),
    Target(
        "routes",
        words("/apis/holdfast.dev/v1", "/namespaces/", "t", "/workloads", "/", "web", "%41", "/log")
        | texts.map(lambda text: f"/apis/holdfast.dev/v1/namespaces/t/workloads/{text}"),
        _route,
        seeds=(
            "/apis/holdfast.dev/v1/namespaces/t/workloads/web/scale",
            "/apis/holdfast.dev/v1/nodes/n1/visits/x",
            "/api/v1/namespaces/t/pods/web-0-0/log",
        ),
    ),
    Target(
        "files",
        _PATHS,
        _file,
        seeds=("a/log", "up/secret", "log", "a/../log", "self/etc/passwd", "a/b/../../../secret"),
        of=lambda text, _: text.encode("utf-8", "replace").decode(),
    ),
    Target(
        "log records",
        _LINES,
        _record,
        seeds=(_AFTER + b" stdout F a line", _AFTER + b" stderr P a piece", b"no record"),
    ),
)
