"""Encryption at rest: its cost for a durable write of a Secret of 1 KiB.

Two servers, one that encrypts and one that does not, each with its own file on the same disk, take
the same writes over TLS at the same moments, so other load on the machine affects both. The figure
compares the middle half of the writes of each, so that writes that met a stall do not count.
`bench.guard` shows it with its other figures.
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
WRITERS = 2
ROUNDS = 1_500
WARM = 20


def secret(name: str) -> dict[str, Any]:
    data = {"value": base64.b64encode(os.urandom(SECRET_BYTES)).decode()}
    return document("Secret", name, data=data)


async def overhead(folder: Path) -> dict[str, float]:
    """Microseconds for a write with and without encryption, and the difference in percent."""
    async with Rig(folder / "plain", "--no-encryption") as plain, Rig(folder / "with") as sealed:
        lines = [await it.lines(WRITERS) for it in (plain, sealed)]
        took_us: tuple[list[float], list[float]] = ([], [])
        before = [0.0, 0.0]
        for turn in range(WARM + ROUNDS):
            if turn == WARM:
                before = [_cpu_s(it.server.pid) for it in (plain, sealed)]
            # The first of the two requests finds an idle machine a little more often.
            order = (0, 1) if turn % 2 else (1, 0)
            writes = [
                (which, _written(lines[which][at], f"r{turn}-{at}"))
                for at in range(WRITERS)
                for which in order
            ]
            found = await asyncio.gather(*(write for _, write in writes))
            if turn >= WARM:
                for (which, _), us in zip(writes, found, strict=True):
                    took_us[which].append(us)
        used = [_cpu_s(it.server.pid) - at for it, at in zip((plain, sealed), before, strict=True)]
    plain_us, encrypted_us = map(_middle, took_us)
    return {
        "cpu_overhead_pct": 100 * (used[1] / used[0] - 1),
        "plain_us": plain_us,
        "encrypted_us": encrypted_us,
        "overhead_pct": 100 * (encrypted_us / plain_us - 1),
    }


async def _written(line: Connection, name: str) -> float:
    """The microseconds of one write."""
    path = f"{GROUP}/namespaces/default/secrets"
    body = request("POST", path, msgspec.json.encode(secret(name)))
    began = time.perf_counter()
    code, answer = await line.ask(body)
    invariant(code == 201, f"{code} {answer[:200]!r}")
    return 1e6 * (time.perf_counter() - began)


def _middle(took_us: list[float]) -> float:
    """The mean of the middle half."""
    ordered, quarter = sorted(took_us), len(took_us) // 4
    return statistics.fmean(ordered[quarter:-quarter])


def _cpu_s(pid: int) -> float:
    """The CPU seconds of a process, which do not depend on other processes of the machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures() -> None:
    """Print the figure."""
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
