"""Encryption at rest: what it costs a durable write of a Secret of 1 KiB.

Two servers, one that encrypts and one that does not, each with its own file on the same disk, take
the same writes over TLS in turn. What is compared is the median over the rounds of what a write
takes on one and on the other, taken next to each other in time.
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
WRITES = 200
ROUNDS = 21


def secret(name: str) -> dict[str, Any]:
    data = {"value": base64.b64encode(os.urandom(SECRET_BYTES)).decode()}
    return document("Secret", name, data=data)


async def overhead(folder: Path) -> dict[str, float]:
    """Microseconds for a write with and without, and how much more it is in percent."""
    async with Rig(folder / "plain", "--no-encryption") as plain, Rig(folder / "with") as sealed:
        lines = [await it.lines(WRITERS) for it in (plain, sealed)]
        for number, side in enumerate(lines):
            await _written(side, f"warm-{number}")
        ratios, took_us = [], ([], [])  # type: ignore[var-annotated]
        before = [_cpu_s(it.plane.pid) for it in (plain, sealed)]
        for turn in range(ROUNDS):
            both = [0.0, 0.0]
            # Whoever goes second finds the disk busy with what the first has left.
            for which in (0, 1) if turn % 2 else (1, 0):
                both[which] = await _written(lines[which], f"r{turn}")
                took_us[which].append(1e6 * both[which])
            ratios.append(both[1] / both[0])
        used = [_cpu_s(it.plane.pid) - at for it, at in zip((plain, sealed), before, strict=True)]
    return {
        "cpu_overhead_pct": 100 * (used[1] / used[0] - 1),
        "plain_us": statistics.median(took_us[0]),
        "encrypted_us": statistics.median(took_us[1]),
        "overhead_pct": 100 * (statistics.median(ratios) - 1),
    }


async def _written(lines: list[Connection], prefix: str) -> float:
    """Seconds for one of many writes by all lines at once."""
    path = f"{GROUP}/namespaces/default/secrets"
    bodies = [
        [
            request("POST", path, msgspec.json.encode(secret(f"{prefix}-{at}-{it}")))
            for it in _each()
        ]
        for at in range(len(lines))
    ]

    async def one(line: Connection, asked: list[bytes]) -> None:
        for body in asked:
            code, answer = await line.ask(body)
            invariant(code == 201, f"{code} {answer[:200]!r}")

    began = time.perf_counter()
    await asyncio.gather(*(one(*it) for it in zip(lines, bodies, strict=True)))
    return (time.perf_counter() - began) / WRITES


def _cpu_s(pid: int) -> float:
    """What a process has used of the cores, which others on the machine do not add to."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _each() -> range:
    return range(WRITES // WRITERS)


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
