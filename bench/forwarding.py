"""Two servers over one etcd with writes at both: forwarding to one, or each deciding by itself.

The servers, etcd and the load share the cores of one machine, so a rate says little here. The
figure is how many groups of requests are refused because the other server was faster, and are
decided again: that share grows with each further server. No server can forward to one that
advertises an address without a listener, so the others decide by themselves.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from pathlib import Path

import msgspec

from bench.api_rig import Rig
from bench.harness import figure, percentile
from bench.http_load import request, through
from holdfast.model.errors import invariant
from tests.etcd_cluster import EtcdCluster
from tests.free_ports import free_ports
from tests.live.process_plane import plane_on_etcd

WRITES = 4_000
CONNECTIONS = 16
# The holder's address comes with a renewal; a lease of six seconds has three of them.
SETTLED_S = 5.0
_COUNTED = re.compile(
    r'^holdfast_(store_conflicts_total|store_txns_total\{outcome="committed"\}'
    r"|forwards_taken_total) (\S+)$",
    re.MULTILINE,
)


class Measured(msgspec.Struct):
    """The counts of two servers."""

    rate: float
    p99_ms: float
    conflicts: float
    committed: float
    forwarded: float


async def _counted(rig: Rig) -> dict[str, float]:
    """The sum of both servers' counters."""
    total: dict[str, float] = {}
    for server in rig.processes:
        _, text = await server.fetch("/metrics")
        for name, value in _COUNTED.findall(text):
            total[name] = total.get(name, 0.0) + float(value)
    return total


def _bodies(space: str, server: int) -> list[bytes]:
    document = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "spec": {"template": {"command": ["sleep", "60"]}},
    }
    named = ({**document, "metadata": {"name": f"w{server}-{n}"}} for n in range(WRITES // 2))
    return [request("POST", f"{space}/workloads", msgspec.json.encode(it)) for it in named]


async def _write(rig: Rig) -> Measured:
    (line,) = await rig.lines(1)
    space = await rig.tenant(line, "acme")
    await asyncio.sleep(SETTLED_S)
    lines = [await rig.lines(CONNECTIONS, server=server) for server in rig.processes]
    bodies = [_bodies(space, server) for server in range(2)]
    before = await _counted(rig)
    began = time.perf_counter()
    done = await asyncio.gather(
        *(through(some, iter(wanted), 201) for some, wanted in zip(lines, bodies, strict=True))
    )
    took = time.perf_counter() - began
    after = await _counted(rig)
    conflicts, committed, forwarded = (
        after[name] - before[name]
        for name in (
            "store_conflicts_total",
            'store_txns_total{outcome="committed"}',
            "forwards_taken_total",
        )
    )
    each = [seconds for _, times, _ in done for seconds in times]
    return Measured(WRITES / took, 1e3 * percentile(each, 0.99), conflicts, committed, forwarded)


async def measure(folder: Path, *, forwarding: bool) -> Measured:
    with EtcdCluster(folder / "etcd") as cluster:
        nowhere = () if forwarding else ("--advertise", f"https://127.0.0.1:{free_ports(1)[0]}")
        async with Rig(folder, *nowhere, plane=plane_on_etcd(cluster)) as rig:
            measured = await _write(rig)
    wanted = WRITES // 2 if forwarding else 0
    invariant(measured.forwarded == wanted, f"{measured.forwarded} were forwarded, not {wanted}")
    return measured


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for part in ("alone", "together"):
            Path(name, part).mkdir()
        alone = asyncio.run(measure(Path(name, "alone"), forwarding=False))
        together = asyncio.run(measure(Path(name, "together"), forwarding=True))
    peer = "the same servers, each deciding by itself"
    figure(
        "forwarding.conflicts",
        together.conflicts / (together.conflicts + together.committed),
        "of all groups",
        peer=peer,
        peer_value=alone.conflicts / (alone.conflicts + alone.committed),
        goal="<= 0.05",
        writes=WRITES,
    )
    figure(
        "forwarding.write",
        together.rate,
        "creates/s",
        peer=peer,
        peer_value=alone.rate,
        durability="power",
        p99_ms=round(together.p99_ms, 1),
        p99_ms_peer=round(alone.p99_ms, 1),
    )


if __name__ == "__main__":
    main()
