"""What is hidden from work, and which machines cannot isolate tenants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.host.runtime import confinement as confining
from holdfast.host.runtime import shim_binary
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.confinement import ConfinementRules, confinement, covers_of
from holdfast.host.runtime.run_as import UserRange
from holdfast.host.runtime.shim_binary import ShimProgram
from holdfast.model.errors import Invalid, Unavailable
from tests.live.test_isolation import options_of

NUMBERS = UserRange(5_000, 5_009)


def opened(path: Path) -> Path:
    """A directory below which others may go."""
    path.mkdir(parents=True)
    path.chmod(0o755)
    return path


def test_what_others_cannot_pass_is_covered_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the way to the work's own directory can be made again inside."""
    closed = [it for it in reversed(tmp_path.parents) if not it.stat().st_mode & 0o001]
    top = closed[0] if closed else tmp_path
    (tmp_path / "data").mkdir()
    assert covers_of([tmp_path / "data", tmp_path / "none"]) == (str(top.resolve()),)


def test_directories_below_covered_ones_need_no_cover(tmp_path: Path) -> None:
    for above in (tmp_path, *tmp_path.parents):
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o001)
    data, pki = opened(tmp_path / "data"), opened(tmp_path / "keys")
    inner, link = opened(data / "agents" / "n1"), tmp_path / "link"
    link.symlink_to(pki)
    assert covers_of([inner, data, link, pki]) == (str(data), str(pki))
    data.chmod(0o700)
    assert covers_of([inner]) == (str(data),)


def test_a_directory_that_is_made_later_is_covered_then(tmp_path: Path) -> None:
    """Work that starts after it was made must not see it."""
    for above in (tmp_path, *tmp_path.parents):
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o001)
    data, later = opened(tmp_path / "data"), tmp_path / "backup" / "keys"
    assert covers_of([data, later]) == (str(later), str(data))


def test_a_file_cannot_be_hidden_and_is_refused(tmp_path: Path) -> None:
    """Rather than be left in sight without a word."""
    (tmp_path / "key").write_text("a key")
    with pytest.raises(Invalid, match="--hide"):
        options_of(tmp_path, "--hide", str(tmp_path / "key"))


def test_a_machine_that_cannot_keep_tenants_apart_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than run them together."""
    rules, attempts = (
        ConfinementRules(NUMBERS, tmp_path / "machine" / "run-as"),
        AttemptFolders(tmp_path / "data"),
    )
    attempts.prepare()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    able = ShimProgram(tmp_path, "pid-namespace", has_own_proc=True)
    for program in (
        ShimProgram(tmp_path, "pid-namespace", has_own_proc=False),
        ShimProgram(tmp_path, "user-namespace", has_own_proc=True),
        ShimProgram(tmp_path, "session", has_own_proc=False),
    ):
        with pytest.raises(Unavailable, match="--single-tenant if only one tenant's work"):
            confinement(rules, program, attempts)
    monkeypatch.setattr(shim_binary, "can_confine", lambda program, user: False)
    with pytest.raises(Unavailable, match="the kernel refuses"):
        confinement(rules, able, attempts)
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    with pytest.raises(Unavailable, match="the agent is not root"):
        confinement(rules, able, attempts)


def test_users_of_processes_and_of_old_work_count_as_used(tmp_path: Path) -> None:
    attempts = AttemptFolders(tmp_path)
    (tmp_path / "some-uid" / "3" / "work").mkdir(parents=True)
    owner = (tmp_path / "some-uid" / "3" / "work").stat().st_uid
    found = set(confining.in_use(attempts))
    assert {owner, os.geteuid()} <= found
