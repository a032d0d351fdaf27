"""Reads of `bench/api`: gets and lists, beside a bare server with the same body."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec

from bench.api_rig import CONNECTIONS, ROUNDS, TENANT_WORKLOADS, Rig, workload
from bench.harness import figure
from bench.http_load import connect, rate, request
from holdfast.model.errors import invariant

GET_S = 2.0


class Bare:
    """A bare server over TLS in its own process, which always answers with one body."""

    def __init__(self, rig: Rig, body: bytes) -> None:
        file = rig.server.data.with_suffix(".body")
        file.write_bytes(body)
        shown = (str(rig.pki / f"server-{rig.server.name}.{it}") for it in ("crt", "key"))
        parts = (*shown, str(file))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.http_bare", *parts], stdout=subprocess.PIPE, text=True
        )
        invariant(self._process.stdout is not None, "its port is read")
        self.port = int(self._process.stdout.readline())  # type: ignore[union-attr]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


async def reads(rig: Rig, space: str) -> None:
    one = request("GET", f"{space}/workloads/seen")
    lines = await rig.lines(CONNECTIONS)
    await rig.ask(lines[0], f"{space}/workloads", workload("seen"))
    _, body = await lines[0].ask(one)
    bare = Bare(rig, body)
    try:
        others = await connect(bare.port, rig.tls(), CONNECTIONS)
        ours, theirs = 0.0, 0.0
        for _ in range(ROUNDS):
            ours = max(ours, await rate(lines, one, 200, GET_S))
            theirs = max(theirs, await rate(others, one, 200, GET_S))
    finally:
        bare.end()
    figure(
        "api.get",
        ours,
        "requests/s",
        peer="a bare aiohttp server over TLS with the same body",
        peer_value=theirs,
        goal="ratio >= 0.5",
        connections=CONNECTIONS,
    )


async def lists(rig: Rig, space: str) -> None:
    one = request("GET", f"{space}/workloads")
    (line,) = await rig.lines(1)
    _, body = await line.ask(one)
    bare = Bare(rig, body)
    try:
        (other,) = await connect(bare.port, rig.tls(), 1)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(5):
            for times, asked in ((ours, line), (theirs, other)):
                began = time.perf_counter()
                await asked.ask(one)
                times.append(1e3 * (time.perf_counter() - began))
    finally:
        bare.end()
    count = len(msgspec.json.decode(body)["items"])
    invariant(count == TENANT_WORKLOADS, f"{count} objects were listed")
    figure(
        "api.list_10k_ms",
        min(ours),
        "ms",
        peer="a bare aiohttp server over TLS with the same body",
        peer_value=min(theirs),
        goal="<= 300",
        megabytes=round(len(body) / 1e6, 1),
    )
