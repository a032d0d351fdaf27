"""Files from Secrets are in memory: no disk of the node has them, and they go with their work."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.runtime_protocol import Attempt, Exited, NotLaunched, SecretValues
from holdfast.host.runtime import secret_files, service_tokens
from holdfast.host.runtime.service_tokens import Fetched
from holdfast.model.kinds.template import File, SecretRef, ServiceToken, Template
from tests.live.test_isolation import ACME, RIVAL, options_of
from tests.live.test_isolation_containers import Plant, plant
from tests.workshop import Workshop, eventually, halt, new_uid, play, workshop

__all__ = ["plant"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount anything")

SECRET = "the-password-of-acme"
SEALED = SecretValues({"db/password": base64.b64encode(SECRET.encode()).decode()})
FILES = (File("conf/password", secret=SecretRef("db", "password")), File("plain", "for all\n"))
SHOW = "cat conf/password; echo; stat -L -c '%a %u' conf/password; cat plain; echo end; sleep 600"


def on_disk(folder: Path) -> list[Path]:
    """Files below it that have the secret, without what links lead to."""
    files = [it for it in folder.rglob("*") if it.is_file() and not it.is_symlink()]
    return [it for it in files if SECRET.encode() in it.read_bytes()]


def in_memory(one: Workshop, of: Attempt, file: str = "conf/password") -> Path:
    kept = one.runtime.place.secret_files
    assert kept is not None
    return kept.path(ACME, of, file)


def file_system(path: Path) -> str:
    found = ["stat", "--file-system", "--format=%T", str(path)]
    return subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip()


def test_a_file_from_a_secret_is_in_memory_and_its_owner_s_alone(tmp_path: Path) -> None:
    """Until the work has ended, also across lives of the agent."""

    async def story() -> None:
        options = options_of(tmp_path)
        template = Template(command=("sh", "-c", SHOW), files=FILES)
        async with workshop(tmp_path / "agent", options=options, leaves_work=True) as one:
            attempt = await one.launched(template, namespace=ACME, secrets=SEALED)
            user = (one.path(attempt) / "work").stat().st_uid
            said = await one.prints(attempt, 4)
            assert said == [SECRET, f"600 {user}", "for all", "end"]
            kept = in_memory(one, attempt)
            assert file_system(kept) == "tmpfs"
            # The log has what the work printed; nothing else has it.
            assert on_disk(tmp_path) == [one.path(attempt) / "stdout"]
            folders = " ".join(map(str, kept.parents[:3]))
            spy = Template(command=("sh", "-c", f"cat {kept}; ls {folders}; id -u"))
            other = await one.launched(spy, namespace=RIVAL)
            await one.heard(Exited, other)
            assert one.output(other).splitlines() == [str((one.path(other) / "work").stat().st_uid)]
        async with workshop(tmp_path / "agent", options=options) as two:
            await two.inventory()
            assert kept.read_text() == SECRET
            two.do(halt(attempt))
            await two.heard(Exited, attempt)
            assert not kept.parent.parent.exists()

    play(story())


def test_a_container_has_its_secret_files_from_memory_as_well(plant: Plant) -> None:
    async def story(one: Workshop) -> None:
        for user in ("", "4242"):
            template = plant.box(SHOW, files=FILES, user=user)
            attempt = await one.launched(template, namespace=ACME, secrets=SEALED)
            said = await one.prints(attempt, 4)
            assert said == [SECRET, f"600 {user or 0}", "for all", "end"]
            assert on_disk(one.path(attempt)) == [one.path(attempt) / "stdout"]
            one.do(halt(attempt))
            await one.heard(Exited, attempt)
            assert not in_memory(one, attempt).parent.parent.exists()

    plant.run(story)


def test_what_was_never_started_leaves_no_secret_behind(tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            lacking = (*FILES, File("other", secret=SecretRef("db", "missing")))
            template = Template(command=("true",), files=lacking)
            attempt = one.launch(template, namespace=ACME, secrets=SEALED)
            await one.heard(NotLaunched, attempt)
            assert not in_memory(one, attempt).parent.parent.exists()
            # And what a crash left is swept away.
            left = in_memory(one, msgspec.structs.replace(attempt, number=7)).parent.parent
            left.mkdir()
            await one.inventory()
            assert not left.exists()
            assert left.parent.exists()
        assert not left.parent.parent.exists()

    play(story())


# Tries to put bytes into each place that it can name, until the memory is full.
FILL = r"""
import os, sys
for path in sys.argv[1:]:
    try:
        with open(path, "ab") as file:
            while True:
                file.write(b"x" * 1048576)
    except OSError as error:
        print(os.path.basename(path)[:4], error.strerror, flush=True)
"""


def test_a_tenant_cannot_fill_the_memory_of_all_secret_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by files that it makes there, nor by its own, nor by large Secrets."""
    monkeypatch.setattr(secret_files, "TENANT_BYTES_MAX", 1024 * 1024)

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            wait = "until test -e go; do sleep 0.05; done; exec /usr/bin/python3 fill.py $(cat go)"
            files = (*FILES, File("fill.py", FILL))
            template = Template(command=("sh", "-c", wait), files=files)
            rival = await one.launched(template, namespace=RIVAL, secrets=SEALED)
            own = (one.path(rival) / "work" / "conf" / "password").readlink()
            folders = [own, *(it / "junk" for it in own.parents[:4])]
            (one.path(rival) / "work" / "go.new").write_text(" ".join(map(str, folders)))
            (one.path(rival) / "work" / "go.new").chmod(0o644)
            (one.path(rival) / "work" / "go.new").rename(one.path(rival) / "work" / "go")
            await one.heard(Exited, rival)
            said = one.output(rival).splitlines()
            refusals = {line.split(" ", 1)[1] for line in said}
            assert len(said) == len(folders)
            assert refusals <= {"Read-only file system", "Permission denied"}
            large = base64.b64encode(bytes(700 * 1024)).decode()
            template = Template(command=("sleep", "600"), files=FILES)
            heavy = {"namespace": RIVAL, "secrets": SecretValues({"db/password": large})}
            await one.launched(template, **heavy)
            refused = await one.heard(NotLaunched, one.launch(template, **heavy))
            assert "files from Secrets of tenant rival on this node" in refused.process.reason
            victim = await one.launched(template, namespace=ACME, secrets=SEALED)
            assert in_memory(one, victim).read_text() == SECRET

    play(story())


def test_a_container_cannot_write_to_its_secret_files(plant: Plant) -> None:
    """Though it is root inside, where its other users may read what is for all."""
    script = (
        "echo x >> conf/password && echo LENGTHENED; touch $(cat where)/junk && echo MADE;"
        " cat conf/password; echo; cat open; echo; sleep 600"
    )
    files = (FILES[0], File("open", secret=SecretRef("db", "password"), mode="0644"))

    async def story(one: Workshop) -> None:
        uid = new_uid()
        folder = in_memory(one, Attempt(uid, 0)).parent
        template = plant.box(script, files=(*files, File("where", str(folder))))
        attempt = await one.launched(template, namespace=ACME, secrets=SEALED, uid=uid)
        assert await one.prints(attempt, 2) == [SECRET, SECRET]
        assert "Read-only file system" in one.output(attempt, "stderr")
        assert len(os.listdir(folder)) == 2
        assert folder.stat().st_mode & 0o777 == 0o711

    plant.run(story)


def test_secret_files_have_a_file_system_of_their_own_also_where_run_is_in_memory(
    tmp_path: Path,
) -> None:
    """What fills /run keeps no Secret from being written, and the other way round."""
    run = tmp_path / "run"
    run.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "test", str(run)], check=True)
    folder = run / "secrets"
    try:
        # Another agent of the machine shares it.
        for agent in ("n1", "n2"):
            kept = secret_files.find(tmp_path / agent, folder)
            assert kept is not None
            assert os.path.ismount(folder)
            path = kept.path(ACME, Attempt("u1", 0), "token")
            kept.write(path, b"x", 0o600, (4_242, 4_242))
        with suppress(OSError):
            (run / "junk").write_bytes(bytes(2 * 1024 * 1024))
        path = kept.path(RIVAL, Attempt("u2", 0), "token")
        kept.write(path, bytes(512 * 1024), 0o600, (4_343, 4_343))
        assert len(list(folder.glob("*/acme/*/files/*"))) == 2
    finally:
        subprocess.run(["umount", "--recursive", str(run)], check=True)


class Issuer:
    """Servers that issue tokens which have to be replaced at once."""

    def __init__(self) -> None:
        self.issued = 0

    async def fetch(self, namespace: str, name: str, attempt: Attempt, file: str) -> Fetched:
        self.issued += 1
        expires = datetime.now(UTC) + timedelta(seconds=0.2)
        return Fetched(f"{SECRET}-{self.issued}", expires, f"config-{SECRET}".encode())


@pytest.mark.parametrize("is_boxed", [False, True])
def test_a_renewed_service_token_is_in_memory_as_the_first_one_was(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_boxed: bool
) -> None:
    """And the work sees it, in a container as well, also when another agent renews it."""
    monkeypatch.setattr(service_tokens, "LOOK_S", 0.05)
    issuer = Issuer()

    async def story() -> None:
        script = "while :; do cat $HOLDFAST_TOKEN_FILE; echo; sleep 0.05; done"
        template = plant.box(script) if is_boxed else Template(command=("sh", "-c", script))
        template = msgspec.structs.replace(template, service_token=ServiceToken("token"))
        options = options_of(tmp_path, "--images", str(plant.image.parent))
        given = {"options": options, "fetch_token": issuer.fetch}
        async with workshop(tmp_path / "agent", leaves_work=True, **given) as one:
            attempt = await one.launched(template, namespace=ACME)
            await eventually(lambda: f"{SECRET}-2" in one.output(attempt))
            path = in_memory(one, attempt, "token")
            assert file_system(path) == "tmpfs"
            about = path.stat()
            assert (stat.S_IMODE(about.st_mode), about.st_uid != 0) == (0o600, True)
        before = issuer.issued
        async with workshop(tmp_path / "agent", **given) as two:
            await two.inventory()
            await eventually(lambda: f"{SECRET}-{before + 1}" in two.output(attempt))
            # The log has what the work printed; nothing else on the disk has it.
            assert on_disk(tmp_path) == [two.path(attempt) / "stdout"]

    play(story())
