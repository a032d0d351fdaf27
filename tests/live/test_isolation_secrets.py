"""Files from Secrets are in memory: no disk of the node has them, and they go with their work."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.words import Attempt, Exited, NotLaunched, Sealed
from holdfast.host.runtime import secret_files
from holdfast.model.kinds.template import File, SecretRef, Template
from tests.live.test_isolation import ACME, RIVAL, options_of
from tests.live.test_isolation_containers import Plant, plant
from tests.workshop import Workshop, halt, play, workshop

__all__ = ["plant"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount anything")

SECRET = "the-password-of-acme"
SEALED = Sealed({"db/password": base64.b64encode(SECRET.encode()).decode()})
FILES = (File("conf/password", secret=SecretRef("db", "password")), File("plain", "for all\n"))
SHOW = "cat conf/password; echo; stat -L -c '%a %u' conf/password; cat plain; echo end; sleep 600"


def on_disk(folder: Path) -> list[Path]:
    """Files below it that have the secret, without what links lead to."""
    files = [it for it in folder.rglob("*") if it.is_file() and not it.is_symlink()]
    return [it for it in files if SECRET.encode() in it.read_bytes()]


def in_memory(one: Workshop, of: Attempt) -> Path:
    kept = one.runtime.place.secret_files
    assert kept is not None
    return kept.path(of, 0)


def test_a_file_from_a_secret_is_in_memory_and_its_owner_s_alone(tmp_path: Path) -> None:
    """Until the work has ended, also across lives of the agent. [H1]"""

    async def story() -> None:
        options = options_of(tmp_path)
        template = Template(command=("sh", "-c", SHOW), files=FILES)
        async with workshop(tmp_path / "agent", options=options, leaves_work=True) as one:
            attempt = await one.launched(template, namespace=ACME, secrets=SEALED)
            user = (one.path(attempt) / "work").stat().st_uid
            said = await one.prints(attempt, 4)
            assert said == [SECRET, f"600 {user}", "for all", "end"]
            kept = in_memory(one, attempt)
            assert secret_files.file_system(kept) == "tmpfs"
            # The log has what the work printed; nothing else has it.
            assert on_disk(tmp_path) == [one.path(attempt) / "stdout"]
            spy = Template(command=("sh", "-c", f"cat {kept}; ls {kept.parent}; id -u"))
            other = await one.launched(spy, namespace=RIVAL)
            await one.heard(Exited, other)
            assert one.output(other).splitlines() == [str((one.path(other) / "work").stat().st_uid)]
        async with workshop(tmp_path / "agent", options=options) as two:
            await two.inventory()
            assert kept.read_text() == SECRET
            two.do(halt(attempt))
            await two.heard(Exited, attempt)
            assert not kept.parent.exists()

    play(story())


def test_a_container_has_its_secret_files_from_memory_as_well(plant: Plant) -> None:
    """[H1]"""

    async def story(one: Workshop) -> None:
        for user in ("", "4242"):
            template = plant.box(SHOW, files=FILES, user=user)
            attempt = await one.launched(template, namespace=ACME, secrets=SEALED)
            said = await one.prints(attempt, 4)
            assert said == [SECRET, f"600 {user or 0}", "for all", "end"]
            assert on_disk(one.path(attempt)) == [one.path(attempt) / "stdout"]
            one.do(halt(attempt))
            await one.heard(Exited, attempt)
            assert not in_memory(one, attempt).parent.exists()

    plant.run(story)


def test_what_was_never_started_leaves_no_secret_behind(tmp_path: Path) -> None:
    """[H1]"""

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            lacking = (*FILES, File("other", secret=SecretRef("db", "missing")))
            template = Template(command=("true",), files=lacking)
            attempt = one.launch(template, namespace=ACME, secrets=SEALED)
            await one.heard(NotLaunched, attempt)
            assert not in_memory(one, attempt).parent.exists()
            # And what a crash left is swept away.
            left = in_memory(one, msgspec.structs.replace(attempt, number=7)).parent
            left.mkdir()
            await one.inventory()
            assert not left.exists()
            assert left.parent.exists()
        assert not left.parent.exists()

    play(story())
