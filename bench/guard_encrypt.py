"""Encryption at rest: what it costs a durable write of a Secret of 1 KiB.

Two servers, one that encrypts and one that does not, each with its own file on the same disk, take
the same writes over TLS in turn, a few at a time: what else the machine does lasts longer than a
turn, and so meets both alike. What is compared is the median of all writes of the one with the
median of all writes of the other, so that those which met a stall count for no more than others.
`bench.guard` shows it beside its other figures.
"""

from __future__ import annotations

import asyncio
import base64
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.api_rig import GROUP, Rig, document
from bench.harness import figure
from bench.http_load import Connection, request
from holdfast.model.errors import invariant

SECRET_BYTES = 1_024
WRITERS = 4
# Of each writer in one turn. The first waits for a server that was idle meanwhile; it is not
# counted.
WRITES = 5
ROUNDS = 250
WARM = 5


def secret(name: str) -> dict[str, Any]:
    data = {"value": base64.b64encode(os.urandom(SECRET_BYTES)).decode()}
    return document("Secret", name, data=data)


async def overhead(folder: Path) -> dict[str, float]:
    """Microseconds for a write with and without, and how much more it is in percent."""
    async with Rig(folder / "plain", "--no-encryption") as plain, Rig(folder / "with") as sealed:
        lines = [await it.lines(WRITERS) for it in (plain, sealed)]
        took_us: tuple[list[float], list[float]] = ([], [])
        before = [0.0, 0.0]
        for turn in range(WARM + ROUNDS):
            if turn == WARM:
                before = [_cpu_s(it.plane.pid) for it in (plain, sealed)]
            # Whoever goes second finds the disk busy with what the first has left.
            for which in (0, 1) if turn % 2 else (1, 0):
                found = await _written(lines[which], f"r{turn}")
                if turn >= WARM:
                    took_us[which].extend(found)
        used = [_cpu_s(it.plane.pid) - at for it, at in zip((plain, sealed), before, strict=True)]
    plain_us, encrypted_us = map(statistics.median, took_us)
    return {
        "cpu_overhead_pct": 100 * (used[1] / used[0] - 1),
        "plain_us": plain_us,
        "encrypted_us": encrypted_us,
        "overhead_pct": 100 * (encrypted_us / plain_us - 1),
    }


async def _written(lines: list[Connection], prefix: str) -> list[float]:
    """Microseconds of each write but the first ones, by all lines at once."""
    path = f"{GROUP}/namespaces/default/secrets"
    took_us: list[float] = []

    async def one(line: Connection, at: int) -> None:
        names = [f"{prefix}-{at}-{number}" for number in range(WRITES)]
        bodies = [request("POST", path, msgspec.json.encode(secret(it))) for it in names]
        for number, body in enumerate(bodies):
            began = time.perf_counter()
            code, answer = await line.ask(body)
            invariant(code == 201, f"{code} {answer[:200]!r}")
            if number:
                took_us.append(1e6 * (time.perf_counter() - began))

    await asyncio.gather(*(one(line, at) for at, line in enumerate(lines)))
    return took_us


def _cpu_s(pid: int) -> float:
    """What a process has used of the cores, which others on the machine do not add to."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures() -> None:
    """Print what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(overhead(Path(folder)))
    figure(
        "guard.encrypt.write_overhead_pct",
        found["overhead_pct"],
        "%",
        peer="the same writes without encryption, in us each",
        peer_value=found["plain_us"],
        ratio=found["encrypted_us"] / found["plain_us"],
        goal="<= 5",
        durability="power",
        encrypted_us=round(found["encrypted_us"], 1),
        cpu_overhead_pct=round(found["cpu_overhead_pct"], 2),
    )


if __name__ == "__main__":
    figures()
