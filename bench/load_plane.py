"""A server with tenants, nodes and schedulers, and the load that they cause.

Every part of `bench/load` lets `Plane.run` send its streams and evaluates the result.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.api_binds import register
from bench.api_rig import GROUP, Rig, workload
from bench.harness import figure, load
from bench.http_load import request, through
from bench.load_generator import Load, Piece, Stream
from bench.load_results import Results
from bench.run import cpu_s
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.model.nodes.heartbeat import Renew
from holdfast.model.requests import AcquireLease, RenewLease, Term
from tests.live.part import DIE_WITH_PARENT, ROOT

IS_SHORT = bool(os.environ.get("HOLDFAST_BENCH_SHORT"))
SCALE = 1 / 3 if IS_SHORT else 1.0
TENANTS = tuple(f"tenant-{n}" for n in range(10))
WORKLOADS = 200
NODES = 100
RENEWALS_PER_S = 1.0
SCHEDULERS = 4
# The number of clients of each tenant.
CONNECTIONS = 100
# With every connection busy, a server of one thread gains nothing from more of them.
PEAK_CONNECTIONS = 6
PEAK_S, PEAK_ROUNDS = 6.0 * SCALE, 3
CALM_S, STORM_S, AFTER_S = 10.0 * SCALE, 30.0 * SCALE, 15.0 * SCALE
# The first moments of a storm are in the picture, and not in the figures.
SETTLE_S = 3.0
# The share of the peak in a calm period.
STEADY = 0.6
# The number of a renewal has eleven digits: three for the run, from 100 on so that none of them is
# a leading zero, and the eight that the generator counts.
_RUN_FIRST = 100
_NUMBER = 99_999_999_999
_encode = msgspec.json.encode


class Client(msgspec.Struct, frozen=True):
    """A client with a certificate."""

    name: str
    file: str


class Plane:
    """A server with all objects that the load needs, and its clients."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig, self._folder = rig, folder
        self.tenants: dict[str, Client] = {}
        self._leases: list[tuple[Client, bytes]] = []
        self._runs = self._renewing = 0

    @property
    def pid(self) -> int:
        # The launcher replaces itself by the server.
        return self._rig.server.pid

    def _client(self, name: str, *groups: str) -> Client:
        issued = CertificateAuthority.open(self._rig.pki).issue(name, groups=groups)
        file = self._folder / f"{name.replace(':', '-')}.pem"
        file.write_bytes(issued.certificate + issued.key)
        return Client(name, str(file))

    async def furnish(self) -> None:
        """Tenants with their workloads, nodes, and schedulers with their leases."""
        rig = self._rig
        (line,) = await rig.lines(1)
        for tenant in TENANTS:
            space = await rig.tenant(line, tenant)
            self.tenants[tenant] = self._client(f"user-of-{tenant}", f"tenant:{tenant}")
            documents = [workload(f"w{n:08d}") for n in range(WORKLOADS)]
            path = f"{space}/workloads?results=names"
            await through([line], iter([request("POST", path, _encode(documents))]), 200)
        for made in await register(rig, NODES):
            meta = made["metadata"]
            client = self._client(f"system:node:{meta['name']}")
            renew = Renew(meta["name"], meta["uid"], 1)
            path = f"{GROUP}/nodes/{meta['name']}/renewals"
            self._leases.append((client, request("POST", path, _encode(renew))))
        for n in range(SCHEDULERS):
            client = self._client(f"system:scheduler:s{n}")
            (scheduler,) = await rig.lines(1, client.name)
            answer = await rig.ask(
                scheduler, f"{GROUP}/requests", AcquireLease(f"scheduler:s{n}", 600_000)
            )
            term = Term(f"scheduler:s{n}", answer["objects"][0]["spec"]["epoch"])
            self._leases.append((client, renewal(term)))

    def leases(self) -> tuple[Stream, ...]:
        """Agents and schedulers, which always renew. For one run: the generator counts from the
        start in each, and a number that is not above the last one renews nothing.
        """
        self._renewing += 1
        rates = ((0.0, RENEWALS_PER_S),)
        return tuple(
            Stream(client.name, client.file, 1, (numbered(text, self._renewing),), rates)
            for client, text in self._leases
        )

    async def run(
        self,
        streams: Sequence[Stream],
        seconds: float,
        meanwhile: Callable[[float], Any] | None = None,
    ) -> tuple[Results, float]:
        """Run a generator; return its results, and the CPU seconds of the server meanwhile.

        `meanwhile` is called with the time of the start, and awaited.
        """
        self._runs += 1
        plan = Load(
            self._rig.server.port,
            str(self._rig.pki / "ca.crt"),
            seconds,
            tuple(streams),
            seed=self._runs,
        )
        asked, result = (self._folder / f"{self._runs}.{it}" for it in ("json", "npz"))
        asked.write_bytes(_encode(plan))
        command = [sys.executable, "-m", "bench.load_generator", str(asked), str(result)]
        process = await asyncio.to_thread(
            subprocess.Popen,
            [*DIE_WITH_PARENT, *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stdout=subprocess.PIPE,
        )
        try:
            await asyncio.to_thread(process.stdout.readline)  # type: ignore[union-attr]
            before = cpu_s(self.pid)
            if meanwhile is not None:
                await meanwhile(time.monotonic())
            code = await asyncio.to_thread(process.wait, seconds + 60.0)
            if code:
                raise RuntimeError(f"the generator ended with code {code}")
            spent = cpu_s(self.pid) - before
        finally:
            process.kill()
            process.wait()
        return Results(result, [it.name for it in streams]), spent


# Renewals. ----------------------------------------------------------------------------------------


def renewal(term: Term) -> bytes:
    """A renewal into which `numbered` inserts the number."""
    return request("POST", f"{GROUP}/terms", _encode(RenewLease(term, number=_NUMBER)))


def numbered(text: bytes, run: int) -> Piece:
    """The same request repeatedly; a renewal of a lease with a number above all before it."""
    return Piece("lease", text.replace(b"%d" % _NUMBER, b"%d@" % (_RUN_FIRST + run)))


# Requests of tenants. -----------------------------------------------------------------------------


def mix(tenant: str, lists: float = 0.1) -> tuple[Piece, ...]:
    """Half writes and half reads, and a few lists of all objects of the tenant."""
    space = f"{GROUP}/namespaces/{tenant}/workloads"
    return (
        Piece("write", _patch(space), 0.45, WORKLOADS),
        Piece("read", request("GET", f"{space}/w#"), 0.55 - lists, WORKLOADS, is_read=True),
        Piece("list", request("GET", space), lists, is_read=True),
    )


def intents(tenant: str, run: str) -> tuple[Piece, ...]:
    """How to read the outcome of a lost answer: objects store each write's operation id."""
    space = f"{GROUP}/namespaces/{tenant}/workloads"
    head, _, body = _patch(space).partition(b"\r\n\r\n")
    operation = f"\r\nX-Holdfast-Operation: {run}-{tenant}-@\r\n\r\n".encode()
    look = request("GET", f"{space}/w#")
    return (
        Piece("write", head + operation + body, 0.5, WORKLOADS, look=look),
        Piece("read", request("GET", f"{space}/w#"), 0.5, WORKLOADS, is_read=True),
    )


def _patch(space: str) -> bytes:
    body = b'{"metadata":{"annotations":{"bench/at":"00000000"}}}'
    made = request("PATCH", f"{space}/w#", body, "application/merge-patch+json")
    return made.replace(b'"00000000"', b'"@"')


def streams(
    plane: Plane,
    rates: Callable[[str], tuple[tuple[float, float], ...]],
    *,
    is_polite: bool = True,
) -> tuple[Stream, ...]:
    """All tenants at these rates, and the renewals."""
    tenants = tuple(
        Stream(tenant, client.file, CONNECTIONS, mix(tenant), rates(tenant), is_polite=is_polite)
        for tenant, client in plane.tenants.items()
    )
    return (*tenants, *plane.leases())


# The peak, and the conditions of the figures. -----------------------------------------------------


async def peak(plane: Plane, pieces: Callable[[str], tuple[Piece, ...]] = mix) -> float:
    """Requests of tenants per second, with every connection always busy: the median of some
    rounds, since machines that share their processors differ by half from minute to minute.
    """
    found = []
    busy = tuple(
        Stream(tenant, client.file, PEAK_CONNECTIONS, pieces(tenant))
        for tenant, client in plane.tenants.items()
    )
    for _ in range(PEAK_ROUNDS):
        seen, spent = await plane.run((*busy, *plane.leases()), PEAK_S)
        served = seen.good & seen.stream(*TENANTS)
        found.append(seen.rate(served, 0.5, PEAK_S))
        print(
            f"# peak {found[-1]:.0f}/s, {seen.codes(seen.stream(*TENANTS))}, "
            f"server {1e6 * spent / max(1, len(seen)):.0f} us, "
            f"generator {1e6 * seen.cpu_s / max(1, len(seen)):.0f} us, load {load()}",
            file=sys.stderr,
        )
    return statistics.median(found)


def ratio(
    name: str, value_ms: float, most: float, *, services: float, goal_ms: float, **more: Any
) -> None:
    """A figure in milliseconds, also as service times of this server in this run.

    With all connections busy it served `most` a second, which gives the service time. A machine of
    another speed has other milliseconds and should have the same ratio: the goal is the one in
    milliseconds at 0.4 ms per request, the machine for which that was set.
    """
    service_ms = 1_000 / most
    figure(
        f"{name}_services",
        value_ms / service_ms,
        "service times",
        peer="one service time at the peak, ms",
        peer_value=service_ms,
        ratio=value_ms / service_ms,
        goal=f"<= {services:.0f}",
        goal_services=services,
        goal_ms=goal_ms,
        value_ms=round(value_ms, 1),
        **more,
    )


def costs(seen: Results, spent: float) -> dict[str, Any]:
    """The conditions of a figure: the CPU of both sides, and how busy the machine was."""
    count = max(1, len(seen))
    return {
        "requests": count,
        "server_cpu_us_each": round(1e6 * spent / count),
        "generator_cpu_us_each": round(1e6 * seen.cpu_s / count),
        "generator_cpu_pct": round(100 * seen.cpu_s / seen.took_s),
        "load": load(),
    }
