"""How a server process ends when it cannot start or cannot go on: with a sentence and code 1."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
from pathlib import Path

import pytest

from holdfast.host.client import AsyncClient
from holdfast.model.errors import HoldfastError
from holdfast.observe.retry import RetryPolicy
from tests.free_ports import free_ports
from tests.live.plane_process import PlaneProcess, until, workload
from tests.patience import PATIENCE_S

HASTY = RetryPolicy(tries_max=2, looks_max=2, deadline_ms=3_000, try_ms=1_000)


def ended(process: PlaneProcess) -> str:
    """What a server says that cannot start."""
    spawned = process.spawn()
    try:
        assert spawned.wait(PATIENCE_S) == 1, process.log
        assert "Traceback" not in process.log
        return process.log
    finally:
        process.kill()


def test_an_etcd_that_is_not_there_is_named(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    process = PlaneProcess(tmp_path / "data", "--store", f"etcd://127.0.0.1:{port}")
    assert "no etcd member answers" in ended(process)


def test_a_damaged_store_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    store = tmp_path / "data" / "store.db"
    store.write_bytes(b"this is no store" * 1_000)
    assert "is not a Holdfast store" in ended(PlaneProcess(tmp_path / "data"))
    assert store.read_bytes() == b"this is no store" * 1_000


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in ended(
            PlaneProcess(tmp_path / "data", port=port)
        )


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="no prlimit on this machine")
def test_a_server_whose_disk_fails_ends_with_the_stores_own_sentence(tmp_path: Path) -> None:
    """[INV11]"""

    async def story() -> None:
        # No file may grow beyond this: the disk is full for this process alone.
        wrap = ("prlimit", "--fsize=300000", "--")
        process = PlaneProcess(tmp_path / "data", wrap=wrap)
        try:
            await process.start()
            async with process.client(policy=HASTY) as client:
                with pytest.raises(HoldfastError):
                    await _fill(client)
            assert await process.ended() == 1
            assert "The store" in process.log
            assert "has stopped" in process.log
        finally:
            process.kill()

    asyncio.run(story())


async def _fill(client: AsyncClient) -> None:
    for number in range(2_000):
        await client.create(workload(f"w{number}"))


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        process = PlaneProcess(tmp_path / "data")
        try:
            await process.start()
            # A connection that never finishes its request holds a stop up.
            access = process.access().context()
            _, writer = await asyncio.open_connection("127.0.0.1", process.port, ssl=access)
            writer.write(b"POST /apis/holdfast.dev/v1/requests HTTP/1.1\r\nHost: x\r\n")
            writer.write(b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
            await writer.drain()
            process.signal(signal.SIGTERM)
            await until(lambda: not _listens(process.port), PATIENCE_S)
            process.signal(signal.SIGTERM)
            assert await process.ended() == 130
            writer.close()
        finally:
            process.kill()

    asyncio.run(story())


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
