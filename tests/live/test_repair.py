"""Real servers over records that are wrong: they start, they serve everything else, and an operator
repairs the records with the command that users have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.main import root
from holdfast.commit.ledgers.recount import recount
from holdfast.host.client.request_calls import QUARANTINE_PATH
from holdfast.model import keys
from holdfast.model.access.identity import OPERATORS
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import ObjectMeta
from holdfast.model.quarantine import Quarantine
from holdfast.model.transaction import Compare, Put, Transaction
from holdfast.store.sqlite import SqliteStore
from tests.live.plane_process import PlaneProcess, workload

WEB = keys.key_of(workload("web"))
COUNTS = keys.objects_ledger("default")
BESIDE = "beside"


def command(server: PlaneProcess, *words: str) -> tuple[int, str]:
    """The exit code and the words of a command, run in this process."""
    config = str(server.data / "kubeconfig")
    ran = CliRunner().invoke(root, [*words, "--kubeconfig", config], standalone_mode=False)
    return int(ran.return_value if ran.exception is None else 1), ran.output


async def damage(data: Path, key: str, change: Callable[[bytes], bytes]) -> None:
    """Write over a record while no server runs."""
    store = await SqliteStore.open(data / "store.db")
    try:
        page = await store.range(key, key + "\0", limit=1)
        (record,) = page.records
        put = Put(key, change(record.value))
        await store.txn(Transaction((Compare(key, record.modified),), (put,)))
    finally:
        await store.close()


async def everything(data: Path) -> Any:
    store = await SqliteStore.open(data / "store.db")
    try:
        return (await store.range("", keys.END, limit=10_000)).records
    finally:
        await store.close()


def _newer(value: bytes) -> bytes:
    tree = msgspec.json.decode(value)
    tree["spec"]["type"] = "Mesh"
    return msgspec.json.encode(tree)


async def quarantine(server: PlaneProcess) -> list[str]:
    code, text = await server.fetch(QUARANTINE_PATH)
    assert code == 200, text
    return [it.key for it in msgspec.json.decode(text, type=Quarantine).records]


def test_a_server_lives_with_bad_records_and_an_operator_repairs_them(tmp_path: Path) -> None:
    """Objects beside them are served, created and changed; two commands end it."""
    asyncio.run(_lives(tmp_path))


async def _lives(tmp_path: Path) -> None:
    server = await PlaneProcess(tmp_path / "one").start()
    try:
        async with server.client() as client:
            await client.create(workload("web", replicas=0))
            # All that a tenant has is counted in one record, so the objects beside are another's.
            await client.create(Tenant(ObjectMeta(name=BESIDE)))
            beside = msgspec.structs.replace(workload("api", replicas=0).metadata, namespace=BESIDE)
            await client.create(
                msgspec.structs.replace(workload("api", replicas=0), metadata=beside)
            )
            await client.patch(Workload, "web", "default", {"spec": {"replicas": 0}})
        await server.stop()
        await damage(server.data, WEB, _newer)
        await damage(server.data, COUNTS, lambda value: b"{")
        await server.start()
        async with server.client() as client:
            await client.patch(Workload, "api", BESIDE, {"metadata": {"labels": {"a": "b"}}})
            for wish in (
                client.patch(Workload, "web", "default", {"metadata": {"labels": {"a": "b"}}}),
                client.create(workload("new", replicas=0)),
            ):
                with pytest.raises(HoldfastError, match="quarantine"):
                    await wish
            assert sorted(await quarantine(server)) == sorted([WEB, COUNTS])
        await _repaired(server)
        async with server.client() as client:
            await client.create(workload("new", replicas=0))
            await client.patch(Workload, "web", "default", {"metadata": {"labels": {"a": "b"}}})
        await server.stop()
        assert recount(await everything(server.data)) == []
    finally:
        server.kill()


async def _repaired(server: PlaneProcess) -> None:
    code, told = await asyncio.to_thread(command, server, "repair", "list")
    assert code == 1
    assert WEB in told
    code, told = await asyncio.to_thread(command, server, "status")
    assert code == 1
    assert f"repair show {COUNTS}" in told
    code, told = await asyncio.to_thread(command, server, "repair", "show", WEB)
    assert code == 0
    assert "RecordUnreadable" in told
    for action, key in (("restore", WEB), ("recount", COUNTS)):
        shown = await asyncio.to_thread(command, server, "repair", action, key)
        assert shown[0] == 0, shown
        assert "Nothing was changed" in shown[1]
        assert key in await quarantine(server)
        unsaid = await asyncio.to_thread(command, server, "repair", action, key, "--yes")
        assert unsaid[0] != 0
        words = ("repair", action, key, "--yes", "--reason", "ticket 7")
        done = await asyncio.to_thread(command, server, *words)
        assert done[0] == 0, done
        assert key not in await quarantine(server)
    code, told = await asyncio.to_thread(command, server, "repair", "list")
    assert (code, told.strip()) == (0, "No record is in quarantine.")


def test_a_server_starts_with_a_damaged_format_and_an_operator_mends_it(tmp_path: Path) -> None:
    """Nothing is written before that, and everything after it."""
    asyncio.run(_mended(tmp_path))


async def _mended(tmp_path: Path) -> None:
    server = await PlaneProcess(tmp_path / "one").start()
    key = keys.plane_format()
    try:
        await server.stop()
        await damage(server.data, key, lambda value: b"{")
        await server.start()
        async with server.client() as client:
            with pytest.raises(HoldfastError, match=f"repair restore {key}"):
                await client.create(workload("new", replicas=0))
        code, told = await asyncio.to_thread(command, server, "repair", "list")
        assert (code, key in told) == (1, True), told
        words = ("repair", "restore", key, "--yes", "--reason", "ticket 7")
        done = await asyncio.to_thread(command, server, *words)
        assert done[0] == 0, done
        async with server.client() as client:
            await client.create(workload("new", replicas=0))
    finally:
        server.kill()


def test_the_quarantine_is_for_operators(tmp_path: Path) -> None:
    asyncio.run(_guarded(tmp_path))


async def _guarded(tmp_path: Path) -> None:
    server = await PlaneProcess(tmp_path / "one").start()
    try:
        async with server.client_as("olga", OPERATORS) as olga:
            assert await olga.read(QUARANTINE_PATH)
        async with server.client_as("mallory") as mallory:
            with pytest.raises(HoldfastError, match="cannot get quarantine"):
                await mallory.read(QUARANTINE_PATH)
    finally:
        server.kill()
