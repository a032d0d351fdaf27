"""Secrets at rest: in no file of a server, no backup and no etcd are they to be read.

The servers are processes of their own, the Secrets are written over TLS, and what they leave on
disks is searched byte by byte.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.main import root
from holdfast.host.audit.status_route import PATH, AuditStatus
from holdfast.host.server.encryption import FILE, WHOLE_FILE
from holdfast.model.kinds.secret import Secret
from holdfast.model.meta import ObjectMeta
from holdfast.store.sqlite.rows import checksum
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import PlaneProcess, until
from tests.patience import PATIENCE_S
from tests.unit.store.encryption.test_kms import GOOD

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("encryption")]

WORD = "correct-horse-battery-staple"
FORMS = (WORD.encode(), base64.b64encode(WORD.encode()))


def command(*words: str) -> tuple[int, str]:
    """The exit code and the words of `holdfast`, run in this process."""
    ran = CliRunner().invoke(root, list(words), standalone_mode=False)
    return int(ran.return_value if ran.exception is None else 1), ran.output


async def commanded(*words: str) -> tuple[int, str]:
    return await asyncio.to_thread(command, *words)


def secret(name: str = "db") -> Secret:
    data = {"password": base64.b64encode(WORD.encode()).decode()}
    return Secret(metadata=ObjectMeta(name=name, namespace="default"), data=data)


def holding(*folders: Path) -> list[str]:
    """The files in which the Secret can be read."""
    files = [it for folder in folders for it in sorted(folder.rglob("*")) if it.is_file()]
    return [it.name for it in files if any(form in it.read_bytes() for form in FORMS)]


@contextlib.asynccontextmanager
async def serving(data: Path, *options: str) -> AsyncIterator[PlaneProcess]:
    server = await PlaneProcess(data, *options).start()
    try:
        yield server
    finally:
        server.kill()


async def read(server: PlaneProcess, name: str = "db") -> str:
    async with server.client() as client:
        found = await client.get(Secret, name, "default")
        return base64.b64decode(found.data["password"]).decode()


async def write(server: PlaneProcess, *names: str) -> None:
    async with server.client() as client:
        for name in names or ("db",):
            await client.create(secret(name))


async def says(server: PlaneProcess, words: str) -> None:
    await until(lambda: words in server.log, PATIENCE_S)


async def written(server: PlaneProcess) -> None:
    """Until the audit has caught up."""
    while True:
        found = msgspec.json.decode((await server.fetch(PATH))[1], type=AuditStatus)
        if found.head.number and not found.lag:
            return
        await asyncio.sleep(0.2)


def test_no_file_of_a_server_and_no_backup_of_it_holds_a_secret(tmp_path: Path) -> None:
    """A plane from before has it in its files; this one encrypts what is there, and says so."""
    data, copy, back = tmp_path / "data", tmp_path / "copy", tmp_path / "back"

    async def story() -> None:
        async with serving(data, "--no-encryption") as old:
            await write(old)
            assert holding(data), "a search that finds nothing here finds nothing anywhere"
            code, said = await commanded("backup", str(copy), "--data", str(data))
            assert code == 1, said
            assert not copy.exists()
        async with serving(data) as server:
            await says(server, "records are encrypted with key 'key-1' now")
            await write(server, "later")
            assert [await read(server), await read(server, "later")] == [WORD, WORD]
            await written(server)
            code, said = await commanded("backup", str(copy), "--data", str(data))
            assert code == 0, said
        assert holding(copy) == []
        # Without the key of the plane: it is in `pki`, which is not part of a backup.
        code, said = await commanded("verify", str(copy))
        assert code == 0, said
        assert "encryption key 'key-1'" in said
        assert "Its audit is complete" in said
        back.mkdir(mode=0o700)
        shutil.copytree(data / "pki", back / "pki")
        code, said = await commanded("restore", str(copy), "--data", str(back))
        assert code == 0, said
        assert (await commanded("restore", str(copy), "--data", str(back)))[0] == 1
        async with serving(back) as restored:
            assert [await read(restored), await read(restored, "later")] == [WORD, WORD]
        assert holding(back) == []

    asyncio.run(story())


def test_a_new_plane_never_writes_a_secret_to_a_disk(tmp_path: Path) -> None:
    """Not in the store, its log, the audit or the records of decisions, while it runs and after."""
    data = tmp_path / "data"

    async def story() -> None:
        async with serving(data) as server:
            await write(server)
            async with server.client() as client:
                patch = {"stringData": {"more": WORD}}
                await client.patch(Secret, "db", "default", patch)
            assert await read(server) == WORD
            assert holding(data) == []
            await server.stop()
        assert holding(data) == []

    asyncio.run(story())


def test_a_server_without_the_key_does_not_start_and_says_why(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def story() -> None:
        async with serving(data) as server:
            await write(server)
        (data / "pki" / FILE).rename(tmp_path / "away")
        await refused(PlaneProcess(data), "encrypted with key 'key-1'")
        assert not (data / "pki" / FILE).exists(), "a new key would open nothing"
        await commanded("encryption", "add-key", str(tmp_path / "other"))
        wrong = PlaneProcess(data, "--encryption-key-file", str(tmp_path / "other"))
        await refused(wrong, "encrypted with key 'key-1'")
        async with serving(data, "--encryption-key-file", str(tmp_path / "away")) as again:
            assert await read(again) == WORD

    asyncio.run(story())


async def refused(server: PlaneProcess, words: str) -> None:
    server.spawn()
    assert await server.ended() == 1
    assert words in server.log
    assert server.log.count("\n") == 1, server.log


def test_keys_are_changed_while_servers_run_and_the_old_one_can_go(tmp_path: Path) -> None:
    """On etcd, with two servers that share a file of keys."""
    keys = tmp_path / "keys"

    async def story(cluster: EtcdCluster) -> None:
        await commanded("encryption", "add-key", str(keys), "--name", "old")
        pki = tmp_path / "pki"
        options = (
            *("--store", f"etcd://{','.join(cluster.endpoints)}", "--pki", str(pki)),
            *("--encryption-key-file", str(keys)),
        )
        async with (
            serving(tmp_path / "one", *options, "--name", "one") as one,
            serving(tmp_path / "two", *options, "--name", "two") as two,
        ):
            await write(one)
            assert await read(two) == WORD
            for words in (("add-key", str(keys), "--name", "new"), ("use-key", str(keys), "new")):
                assert (await commanded("encryption", *words))[0] == 0
            both = (one, two)
            await until(lambda: any("with key 'new' now" in it.log for it in both), PATIENCE_S)
            copy = tmp_path / "copy"
            store = ("--store", f"etcd://{','.join(cluster.endpoints)}")
            code, said = await commanded("backup", str(copy), *store, "--data", str(one.data))
            assert code == 0, said
            assert "encryption key 'new'" in said
            code, said = await commanded("verify", str(copy))
            assert "embedded" not in said
            assert (
                "etcdutl" in (await commanded("restore", str(copy), "--data", str(copy) + "d"))[1]
            )
            assert (await commanded("encryption", "remove-key", str(keys), "old"))[0] == 0
        async with serving(tmp_path / "one", *options, "--name", "one") as again:
            assert await read(again) == WORD
        assert holding(tmp_path) == []
        snapshot = copy / "etcd.snapshot"
        content = bytearray(snapshot.read_bytes())
        content[len(content) // 2] ^= 1
        snapshot.write_bytes(content)
        code, said = await commanded("verify", str(copy))
        assert code != 0

    with EtcdCluster(tmp_path / "etcd", size=1) as cluster:
        asyncio.run(story(cluster))


def test_a_key_service_of_the_operators_own_is_asked(tmp_path: Path) -> None:
    data, program = tmp_path / "data", tmp_path / "kms.py"
    program.write_text(GOOD)
    kms = shlex.join([sys.executable, str(program), "hsm-7"])

    async def story() -> None:
        async with serving(data, "--encryption-kms", kms) as server:
            await write(server)
        async with serving(data, "--encryption-kms", kms) as again:
            assert await read(again) == WORD
        assert holding(data) == []
        program.write_text("import sys; sys.exit('the vault is sealed')")
        await refused(PlaneProcess(data, "--encryption-kms", kms), "the vault is sealed")

    asyncio.run(story())


def test_a_secret_that_is_moved_or_forged_in_the_store_is_unreadable(tmp_path: Path) -> None:
    """Who may write to the store, and has no key, can neither give one tenant's Secret to another
    nor put a plain one of its own in place of one.
    """
    data = tmp_path / "data"

    async def story() -> None:
        async with serving(data) as server:
            await write(server, "db", "other", "forged")
            deadline = time.monotonic() + PATIENCE_S
            while not (data / WHOLE_FILE).exists():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            await server.stop()
        secrets = "objects/secrets/default"
        replaced(data / "store.db", f"{secrets}/other", stored(data / "store.db", f"{secrets}/db"))
        forged = Secret(metadata=ObjectMeta(name="forged", namespace="default"), data={})
        replaced(data / "store.db", f"{secrets}/forged", msgspec.json.encode(forged))
        async with serving(data) as again:
            assert await read(again) == WORD
            for name in ("other", "forged"):
                path = f"/apis/holdfast.dev/v1/namespaces/default/secrets/{name}"
                code, said = await again.fetch(path)
                assert (code, "RecordUnreadable" in said) == (503, True), said
            # All others are served as before.
            await write(again, "third")

    asyncio.run(story())


def stored(path: Path, key: str) -> bytes:
    connection = apsw.Connection(str(path))
    one = "SELECT value FROM log JOIN current USING (id) WHERE current.key = ?"
    value = connection.execute(one, (key,)).get
    connection.close()
    assert isinstance(value, bytes)
    return value


def replaced(path: Path, target: str, value: bytes) -> None:
    """Write another value under a key, as an attacker with the file does."""
    connection = apsw.Connection(str(path))
    connection.execute(
        "UPDATE log SET value = ?, checksum = ? WHERE id = (SELECT id FROM current WHERE key = ?)",
        (value, checksum(target, value), target),
    )
    connection.close()
