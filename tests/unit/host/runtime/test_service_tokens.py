"""The files of service tokens, in directories that belong to work that may be hostile."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.runtime_protocol import Attempt, Launch
from holdfast.host.runtime import safe_paths, service_tokens
from holdfast.host.runtime.attempts import AttemptFolders, Choices
from holdfast.host.runtime.held import HeldAttempt
from holdfast.host.runtime.service_tokens import Fetched, TokenFiles, put_in_place
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.kinds.template import File, ServiceToken, Template
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.validation import validate
from tests.patience import STORY_S

ATTEMPT = Attempt("u1", 3)


async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


class Rig:
    """An attempt's directory, and servers that issue t1, t2 and so on."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[tuple[str, str, Attempt, str]] = []
        self.trouble: list[Exception] = []
        self.life = timedelta(hours=1)
        attempts = AttemptFolders(folder)
        self.work = folder / "u1" / "3" / "work"
        self.work.mkdir(parents=True)
        self.files = TokenFiles(attempts, self.fetch, in_thread)
        self.held = HeldAttempt(ATTEMPT, "boot")
        self.held.choices = Choices("acme", "web-0-0", token_file="token")

    async def fetch(self, namespace: str, name: str, attempt: Attempt, file: str) -> Fetched:
        self.asked.append((namespace, name, attempt, file))
        if self.trouble:
            raise self.trouble.pop(0)
        return Fetched(f"t{len(self.asked)}", datetime.now(UTC) + self.life, b"config")

    async def renewing(self, holds: Callable[[], bool]) -> None:
        """Let tokens be renewed until this is so."""
        task = asyncio.create_task(self.files.renew_for_ever({ATTEMPT: self.held}))
        try:
            while not holds():
                assert not task.done(), task.exception()
                await asyncio.sleep(0)
        finally:
            task.cancel()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(service_tokens, "LOOK_S", 0.0)
    monkeypatch.setattr(service_tokens, "AGAIN_S", 0.0)
    return Rig(tmp_path)


def play(story: Any) -> Any:
    return asyncio.run(asyncio.wait_for(story, STORY_S))


def launch(**template: Any) -> Launch:
    made = Template(command=("x",), **template)
    return Launch(ATTEMPT, "acme", "web-0-0", made, token=1, deadline_ms=None, grace_ms=0)


def test_work_that_asks_for_none_is_launched_as_it_is(rig: Rig) -> None:
    of = launch()
    assert play(rig.files.with_first(of)) is of
    assert not rig.asked


def test_the_first_token_is_among_the_files_and_in_no_text_of_the_launch(rig: Rig) -> None:
    rig.trouble = [Unavailable("away"), Unavailable("away")]
    found = play(rig.files.with_first(launch(service_token=ServiceToken("token"))))
    names = [(it.path, it.mode) for it in found.template.files]
    assert names == [("token", "0600"), ("token.kubeconfig", "0600")]
    assert "t3" not in repr(found)
    assert base64.b64decode(found.secrets.values["/token"]) == b"t3"
    assert rig.asked == [("acme", "web-0-0", ATTEMPT, "token")] * 3


def test_a_refusal_of_the_servers_is_a_start_that_failed(rig: Rig) -> None:
    rig.trouble = [Forbidden("no")]
    with pytest.raises(Forbidden):
        play(rig.files.with_first(launch(service_token=ServiceToken("token"))))
    bare = TokenFiles(AttemptFolders(rig.work), None, in_thread)
    with pytest.raises(Unavailable, match="serviceToken"):
        play(bare.with_first(launch(service_token=ServiceToken("token"))))


def test_a_token_is_replaced_in_the_middle_of_its_life_and_not_before(rig: Rig) -> None:
    """One whose end is not known, since an earlier agent wrote it, at once."""
    file = rig.work / "token"

    async def story() -> None:
        await rig.renewing(lambda: file.exists() and file.read_text() == "t1")
        looks = list[int]()
        await rig.renewing(lambda: len(looks) > 50 or bool(looks.append(1)))
        assert len(rig.asked) == 1
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert (rig.work / "token.kubeconfig").read_bytes() == b"config"
        rig.files.due[ATTEMPT] = datetime.now(UTC) - timedelta(seconds=1)
        rig.trouble = [Unavailable("away"), Forbidden("not now")]
        await rig.renewing(lambda: file.read_text() == "t4")
        due = rig.files.due[ATTEMPT] - datetime.now(UTC)
        assert timedelta(0) < due <= timedelta(minutes=30)

    play(story())


def test_work_without_a_token_gets_none(rig: Rig) -> None:
    rig.held.choices = Choices("acme", "web-0-0")
    other, looks = HeldAttempt(Attempt("u1", 3), "boot"), list[int]()
    other.choices = rig.held.choices
    play(rig.renewing(lambda: len(looks) > 20 or bool(looks.append(1))))
    assert not rig.asked


HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    "a link to a file": lambda work, out: (work / "token").symlink_to(out / "secret"),
    "a link to nothing": lambda work, out: (work / "token").symlink_to(out / "none"),
    "a hard link": lambda work, out: os.link(out / "secret", work / "token"),
    "a pipe": lambda work, out: os.mkfifo(work / "token"),
    "a directory": lambda work, out: (work / "token").mkdir(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_that_the_work_puts_there_leads_out_of_its_directory(
    tmp_path: Path, name: str
) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    for folder in (work, outside):
        folder.mkdir()
    (outside / "secret").write_text("kept")
    HOSTILE[name](work, outside)
    with safe_paths.folder(work) as fd:
        if name == "a directory":
            with pytest.raises(IsADirectoryError):
                put_in_place("token", fd, b"t1", None)
        else:
            put_in_place("token", fd, b"t1", None)
            assert (work / "token").read_bytes() == b"t1"
            assert not (work / "token").is_symlink()
    # No draft is left behind, and what is outside is as it was.
    assert [it.name for it in work.iterdir()] == ["token"]
    assert [it.name for it in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "kept"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_file_belongs_to_the_work(tmp_path: Path) -> None:
    with safe_paths.folder(tmp_path) as fd:
        put_in_place("token", fd, b"t1", (4_242, 4_343))
    found = (tmp_path / "token").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4_242, 4_343, 0o600)


@pytest.mark.parametrize(
    "file, files, wrong",
    [
        ("token", (), False),
        ("token", ("other", "a/token"), False),
        ("", (), True),
        ("a/b", (), True),
        ("..", (), True),
        ("/token", (), True),
        ("token", ("token",), True),
        ("token", ("token/x",), True),
        ("token", ("token.kubeconfig",), True),
    ],
)
def test_a_template_names_a_file_of_its_own(file: str, files: tuple[str, ...], wrong: bool) -> None:
    of = Template(
        command=("x",),
        service_token=ServiceToken(file),
        files=tuple(File(it) for it in files),
    )
    web = Workload(ObjectMeta(name="web", namespace="acme"), spec=WorkloadSpec(template=of))
    fields = {it.path for it in validate(web)}
    assert fields == ({"spec.template.serviceToken.file"} if wrong else set())
