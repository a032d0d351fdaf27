"""The shim is found, or made where a compiler is, or missed in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.host.runtime import shim_build
from holdfast.host.runtime.shim_binary import find
from holdfast.model.errors import Unavailable

# Of the format of programs: a position-independent one, and the segments that protect it.
ET_DYN, PT_GNU_STACK, PT_GNU_RELRO, PF_X = 3, 0x6474E551, 0x6474E552, 1


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that is not installed, and an empty cache."""
    source = tmp_path / "src" / "shim.c"
    source.parent.mkdir()
    for part in shim_build.SOURCE.parent.glob("shim*.[ch]"):
        (source.parent / part.name).write_bytes(part.read_bytes())
    for room in ("shim_build", "shim_binary"):
        monkeypatch.setattr(f"holdfast.host.runtime.{room}.SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_it_is_compiled_once_into_a_private_cache(nothing_installed: Path) -> None:
    first = find()
    assert first.path.parent == nothing_installed / "cache" / "holdfast"
    assert first.path.parent.stat().st_mode & 0o777 == 0o700
    made = first.path.stat().st_mtime_ns
    assert find().path.stat().st_mtime_ns == made
    assert [path.name for path in first.path.parent.iterdir()] == [first.path.name]


def test_without_a_compiler_it_says_what_to_do(
    nothing_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(nothing_installed))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Unavailable, match="install Holdfast from a wheel, or install gcc"):
        find()


def test_no_program_is_run_that_others_could_have_put_there(nothing_installed: Path) -> None:
    folder = nothing_installed / "cache" / "holdfast"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(Unavailable, match="is writable by other users"):
        find()


def test_a_program_of_another_source_or_machine_is_not_used(nothing_installed: Path) -> None:
    installed = nothing_installed / "src" / shim_build.NAME
    installed.write_text("#!/bin/sh\necho 0123456789abcdef\n")
    installed.chmod(0o755)
    assert find().path != installed
    installed.write_bytes(b"\x7fELF of another machine")
    assert find().path != installed


def test_a_change_of_any_part_makes_another_program(nothing_installed: Path) -> None:
    before = shim_build.version(nothing_installed / "src" / "shim.c")
    for name in ("shim.h", "shim_logs.c"):
        part = nothing_installed / "src" / name
        part.write_bytes(part.read_bytes() + b"\n")
        assert shim_build.version(nothing_installed / "src" / "shim.c") != before
        before = shim_build.version(nothing_installed / "src" / "shim.c")


def test_it_is_hard_to_take_over(nothing_installed: Path) -> None:
    """It lies at another address each time, and its tables are read-only once it runs."""
    text = find().path.read_bytes()
    assert int.from_bytes(text[16:18], "little") == ET_DYN
    kinds = {kind for kind, _ in _segments(text)}
    assert PT_GNU_RELRO in kinds
    (stack,) = [flags for kind, flags in _segments(text) if kind == PT_GNU_STACK]
    assert not stack & PF_X


def _segments(text: bytes) -> list[tuple[int, int]]:
    """The kind and the rights of each segment of a program of 64 bits."""
    first = int.from_bytes(text[32:40], "little")
    size, count = (int.from_bytes(text[at : at + 2], "little") for at in (54, 56))
    heads = (text[first + size * number :][:8] for number in range(count))
    return [(int.from_bytes(it[:4], "little"), int.from_bytes(it[4:], "little")) for it in heads]
