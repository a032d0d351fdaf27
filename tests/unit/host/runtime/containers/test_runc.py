"""Which runc may run containers: by its own version, or by that of the package it came in."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from holdfast.host.runtime.containers import runc
from holdfast.host.runtime.containers.runc import FLAWS, RuncVersion, Version, check, has, warnings
from holdfast.model.errors import Unavailable

RELEASED = 1_000_000


def refused_for(version: Version, package: str = "") -> list[str]:
    found = RuncVersion(version, package, filters=True)
    return [flaw.name for flaw in FLAWS if flaw.is_open and has(flaw, found)]


@pytest.mark.parametrize(
    "version, package, is_mended",
    [
        ((1, 1, 5, RELEASED), "", False),
        ((1, 1, 5, RELEASED), "1.1.5+ds1-1", False),
        ((1, 1, 5, RELEASED), "1.1.5+ds1-1+deb12u1", True),
        ((1, 1, 5, RELEASED), "1.1.5+ds1-1+deb12u12", True),
        ((1, 0, 0, 93), "1.0.0~rc93+ds1-5+deb11u2", False),
        ((1, 1, 11, RELEASED), "", False),
        ((1, 1, 12, RELEASED), "", True),
        ((1, 3, 0, RELEASED), "", True),
        ((2, 0, 0, 1), "", True),
    ],
)
def test_a_flaw_is_mended_by_a_version_or_by_a_package(
    version: Version, package: str, is_mended: bool
) -> None:
    assert ("CVE-2024-21626" not in refused_for(version, package)) is is_mended


@pytest.mark.parametrize(
    "version, is_warned",
    [
        ((1, 1, 12, RELEASED), True),
        ((1, 2, 7, RELEASED), True),
        ((1, 2, 8, RELEASED), False),
        ((1, 3, 2, RELEASED), True),
        ((1, 3, 3, RELEASED), False),
        ((1, 4, 0, 2), True),
        ((1, 4, 0, 3), False),
        ((1, 4, 0, RELEASED), False),
    ],
)
def test_each_series_is_mended_by_itself(version: Version, is_warned: bool) -> None:
    told = warnings(RuncVersion(version, "", filters=True))
    assert any("CVE-2025-31133" in it for it in told) is is_warned


@pytest.mark.parametrize(
    "name, first",
    [
        ("CVE-2021-43784", (1, 0, 3, RELEASED)),
        ("CVE-2022-29162", (1, 1, 2, RELEASED)),
        ("CVE-2024-45310", (1, 1, 14, RELEASED)),
        ("CVE-2024-45310", (1, 2, 0, 3)),
        ("CVE-2025-52565", (1, 3, 3, RELEASED)),
        ("CVE-2025-52881", (1, 2, 8, RELEASED)),
    ],
)
def test_a_flaw_is_reported_until_the_version_or_the_package_has_none(
    name: str, first: Version
) -> None:
    def is_told(version: Version, mended: frozenset[str] = frozenset()) -> bool:
        told = warnings(RuncVersion(version, "1.0.9-1", True, mended))
        return any(it.startswith(f"{name} ") for it in told)

    *series, patch, candidate = first
    before = (*series, patch, candidate - 1) if candidate < RELEASED else (*series, patch - 1, 1)
    assert is_told(before)
    assert not is_told(first)
    assert not is_told(before, frozenset({name}))


def test_what_debian_has_mended_is_read_from_the_changelog_of_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And nothing that lets work run is taken from a text."""
    program = tmp_path / "runc"
    program.touch()
    (tmp_path / "runc-doc").mkdir()
    changelog = tmp_path / "runc-doc" / "changelog.Debian.gz"
    text = "runc (1.1.5+ds1-1+deb12u9)\n\n  * CVE-2024-45310, CVE-2025-31133: backport\n"
    changelog.write_bytes(gzip.compress(text.encode() + b"  * CVE-2024-21626\n"))
    monkeypatch.setattr(runc, "DOCUMENTS", tmp_path)
    monkeypatch.setattr(runc.shutil, "which", lambda name, path: str(program))
    packages = {"--search": "runc-doc: /usr/bin/runc\n", "--show": "1.1.5+ds1-1"}
    said = "runc version 1.1.5+ds1\nlibseccomp: 2.5.4\n"
    monkeypatch.setattr(runc, "run_program", lambda *words: packages.get(words[1], said))
    found = runc.installed_version()
    told = " ".join(warnings(found))
    assert "CVE-2024-45310" not in told
    assert "CVE-2025-31133" not in told
    assert "CVE-2025-52881" in told
    with pytest.raises(Unavailable, match="this runc has CVE-2024-21626"):
        check()
    replaced(program)
    packages["--show"] = "1.1.5+ds1-1+deb12u1"
    changelog.write_bytes(b"no gzip")
    assert check().mended == frozenset()


def replaced(program: Path) -> None:
    """As an installation does it: another file under the same name."""
    draft = program.with_suffix(".new")
    draft.touch()
    draft.replace(program)


def test_what_runc_says_is_understood_and_an_open_flaw_refuses_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = {"text": "runc version 1.1.4-0ubuntu1\nlibseccomp: 2.5.4\n"}
    program = tmp_path / "runc"
    program.touch()
    monkeypatch.setattr(runc.shutil, "which", lambda name, path: str(program))
    packages = {"--search": "runc: /usr/bin/runc\n", "--show": "1.1.5+ds1-1+deb12u1"}
    monkeypatch.setattr(runc, "run_program", lambda *words: packages.get(words[1], said["text"]))
    assert check().version == (1, 1, 4, RELEASED)
    packages["--show"] = "1.1.4-0ubuntu1"
    # What was found out of a program is believed until it is replaced.
    assert check().package == "1.1.5+ds1-1+deb12u1"
    replaced(program)
    with pytest.raises(Unavailable, match="this runc has CVE-2024-21626"):
        check()
    replaced(program)
    said["text"] = "runc version 1.4.0-rc.3\nspec: 1.2\n"
    with pytest.raises(Unavailable, match="built without libseccomp"):
        check()
    replaced(program)
    said["text"] = "something else"
    with pytest.raises(Unavailable, match="cannot be parsed"):
        check()


def test_the_runtime_of_sandboxes_is_the_one_that_is_named_or_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must run, and none is found where none was installed."""
    program, broken = tmp_path / "kernel", tmp_path / "broken"
    program.write_text("#!/bin/sh\necho version 1\n")
    broken.write_text("#!/bin/sh\nexit 1\n")
    for path in (program, broken):
        path.chmod(0o755)
    assert runc.sandbox(program) == str(program)
    monkeypatch.setattr(runc.shutil, "which", lambda name, path: None)
    with pytest.raises(Unavailable, match="runsc is not installed"):
        runc.sandbox(None)
    monkeypatch.setattr(runc.shutil, "which", lambda name, path: str(program))
    assert runc.sandbox(None) == str(program)
    with pytest.raises(Unavailable, match="cannot be run"):
        runc.sandbox(broken)
    program.chmod(0o644)
    for path in (program, tmp_path / "none", tmp_path):
        with pytest.raises(Unavailable, match="is not an executable program"):
            runc.sandbox(path)
