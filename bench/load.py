"""One server under load: latencies, what is left at five times its peak, fairness, recovery.

One server process over TLS and one generator process (`load_generator`) on the same cores. Ten
tenants patch, get and list their workloads, each under a certificate of its own; a hundred nodes
and some schedulers renew meanwhile. Requests fall due by the clock whatever the server does, and
latencies count from then. The peak is measured in the same run, with every connection busy all the
time; "five times" and "60 %" are of that. In a storm each connection is a client of its own, which
stays away for as long as a refusal says, as ours and kubectl do; the same with clients that never
stay away stands beside it. The stall is of a real etcd, which is stopped by a signal
for 30 s while clients with the retry machine that ships go on.

Curves of each part are written as SVG to HOLDFAST_BENCH_PLOTS (build/load by default).
HOLDFAST_BENCH_PARTS names what to measure (steady,overload,fairness,stall); HOLDFAST_BENCH_SHORT=1
is a quick look: a third of all times.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
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
from bench.load_plot import Curve, Panel, Span, draw
from bench.load_results import Results
from bench.run import cpu_s
from holdfast.host.certificates import Authority
from holdfast.model.heartbeat import Renew
from holdfast.model.requests import AcquireLease, RenewLease, Term
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import DIE_WITH_PARENT, ROOT

IS_SHORT = bool(os.environ.get("HOLDFAST_BENCH_SHORT"))
PARTS = ("steady", "overload", "fairness", "stall")
PLOTS = Path(os.environ.get("HOLDFAST_BENCH_PLOTS", ROOT / "build" / "load"))
SCALE = 1 / 3 if IS_SHORT else 1.0
TENANTS = tuple(f"tenant-{n}" for n in range(10))
WORKLOADS = 200
NODES = 100
RENEWALS_PER_S = 1.0
SCHEDULERS = 4
# So many clients has each tenant.
CONNECTIONS = 100
# With every connection busy a server of one thread gains nothing by more of them.
PEAK_CONNECTIONS = 6
PEAK_S, PEAK_ROUNDS = 6.0 * SCALE, 3
STEADY_S = 30.0 * SCALE
CALM_S, STORM_S, AFTER_S = 10.0 * SCALE, 30.0 * SCALE, 15.0 * SCALE
# What happens in the first moments of a storm is in the picture, and not in the figures.
SETTLE_S = 3.0
OVERLOAD, STEADY = 5.0, 0.6
GREED = 50.0
# Whoever is answered later than this has gone; what he is told then is no goodput.
USEFUL_MS = 1_000.0
BEFORE_STALL_S, STALL_S, AFTER_STALL_S = 20.0, 30.0 if not IS_SHORT else 10.0, 90.0 * SCALE
# Normal is what it was before, to a twentieth, and stays so for this long.
WINDOW_S = 5.0
_encode = msgspec.json.encode


class Client(msgspec.Struct, frozen=True):
    """Somebody with a certificate."""

    name: str
    file: str


class Plane:
    """A server with everything that the load asks for, and its clients."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig, self._folder = rig, folder
        self.tenants: dict[str, Client] = {}
        self._leases: list[tuple[Client, bytes]] = []
        self._runs = 0

    @property
    def pid(self) -> int:
        process = self._rig.plane._process
        if process is None:
            raise RuntimeError("the server runs")
        # What starts it replaces itself by it.
        return process.pid

    def _client(self, name: str, *groups: str) -> Client:
        issued = Authority.open(self._rig.plane.data / "pki").issue(name, groups=groups)
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
            asked = request("POST", f"{GROUP}/terms", _encode(RenewLease(term)))
            self._leases.append((client, asked))

    def leases(self) -> tuple[Stream, ...]:
        """Agents and schedulers, who renew whatever happens."""
        rates = ((0.0, RENEWALS_PER_S),)
        return tuple(
            Stream(client.name, client.file, 1, (Piece("lease", text),), rates)
            for client, text in self._leases
        )

    async def run(
        self,
        streams: Sequence[Stream],
        seconds: float,
        meanwhile: Callable[[float], Any] | None = None,
    ) -> tuple[Results, float]:
        """Let a generator run; what it saw, and the CPU seconds of the server meanwhile.

        `meanwhile` is called with the moment of the beginning, and awaited.
        """
        self._runs += 1
        plan = Load(
            self._rig.plane.port,
            str(self._rig.plane.data / "pki" / "ca.crt"),
            seconds,
            tuple(streams),
            seed=self._runs,
        )
        asked, told = (self._folder / f"{self._runs}.{it}" for it in ("json", "npz"))
        asked.write_bytes(_encode(plan))
        command = [sys.executable, "-m", "bench.load_generator", str(asked), str(told)]
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
                raise RuntimeError(f"the generator has ended with {code}")
            spent = cpu_s(self.pid) - before
        finally:
            process.kill()
            process.wait()
        return Results(told, [it.name for it in streams]), spent


# What tenants do. ---------------------------------------------------------------------------------


def mix(tenant: str, lists: float = 0.1) -> tuple[Piece, ...]:
    """Writes and reads by halves, and a few lists of everything that the tenant has."""
    space = f"{GROUP}/namespaces/{tenant}/workloads"
    return (
        Piece("write", _patch(space), 0.45, WORKLOADS),
        Piece("read", request("GET", f"{space}/w#"), 0.55 - lists, WORKLOADS, is_read=True),
        Piece("list", request("GET", space), lists, is_read=True),
    )


def intents(tenant: str, run: str) -> tuple[Piece, ...]:
    """What can be seen of a lost answer: objects remember each write under an id of its own."""
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
    """All tenants at these rates, and those who renew."""
    tenants = tuple(
        Stream(tenant, client.file, CONNECTIONS, mix(tenant), rates(tenant), is_polite=is_polite)
        for tenant, client in plane.tenants.items()
    )
    return (*tenants, *plane.leases())


# The parts. ---------------------------------------------------------------------------------------


async def peak(plane: Plane, pieces: Callable[[str], tuple[Piece, ...]] = mix) -> float:
    """Requests of tenants a second, with every connection busy all the time."""
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
    return max(found)


def costs(seen: Results, spent: float) -> dict[str, Any]:
    """What a figure rests on: the CPU of both sides, and how busy the machine was."""
    count = max(1, len(seen))
    return {
        "requests": count,
        "server_cpu_us_each": round(1e6 * spent / count),
        "generator_cpu_us_each": round(1e6 * seen.cpu_s / count),
        "generator_cpu_pct": round(100 * seen.cpu_s / seen.took_s),
        "load": load(),
    }


class CpuClock:
    """What a process has been charged for, over time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: list[tuple[float, float]] = []
        self.began = 0.0

    def watch(self, seconds: float) -> Callable[[float], Any]:
        """Look twice a second for as long."""

        async def look(began: float) -> None:
            while time.monotonic() < began + seconds:
                self._seen.append((time.monotonic(), cpu_s(self._pid)))
                await asyncio.sleep(0.5)

        return look

    def between(self, begin_s: float, end_s: float) -> float:
        """CPU seconds in this time."""
        inside = [cpu for at, cpu in self._seen if begin_s <= at - self.began <= end_s]
        return inside[-1] - inside[0] if inside else 0.0


async def steady(plane: Plane, most: float) -> None:
    """Latencies at 60 % of the peak."""
    rate = STEADY * most / len(TENANTS)
    seen, spent = await plane.run(streams(plane, lambda _: ((0.0, rate),)), STEADY_S)
    idle, _ = await plane.run(streams(plane, lambda _: ((0.0, 1.0),)), STEADY_S / 3)
    after = seen.between(1.0, STEADY_S)
    for kind, goal in (("write", "<= 50"), ("read", "<= 20")):
        figure(
            f"load.{kind}.p99_ms",
            seen.p_ms(seen.kind(kind) & after, 0.99),
            "ms",
            peer="the same at 10 requests a second",
            peer_value=idle.p_ms(idle.kind(kind), 0.99),
            goal=goal,
            durability="power",
            median=round(seen.p_ms(seen.kind(kind) & after, 0.5), 2),
            offered_per_s=round(STEADY * most),
            codes=seen.codes(seen.kind(kind)),
            list_p99_ms=round(seen.p_ms(seen.kind("list") & after, 0.99), 1),
            lease_p99_ms=round(seen.p_ms(seen.kind("lease") & after, 0.99), 1),
            **costs(seen, spent),
        )
    _plot_latency("steady", f"{STEADY:.0%} of the peak", seen, STEADY_S, ())


async def overload(plane: Plane, most: float) -> None:
    """Five times the peak, between two calm times; by clients that do as they are told, or not."""
    storm = Storm(*await _stormed(plane, most, is_polite=True), most)
    rude = Storm(*await _stormed(plane, most, is_polite=False), most)
    more = {"durability": "power", "peak_per_s": round(most), **storm.costs()}
    figure(
        "load.goodput_pct",
        100 * storm.goodput / most,
        "% of the peak",
        peer="the same with clients that never stay away",
        peer_value=100 * rude.goodput / most,
        goal=">= 80",
        offered=OVERLOAD,
        codes=storm.codes(),
        codes_rude=rude.codes(),
        **more,
    )
    figure(
        "load.lease_p99_ms",
        storm.lease_p99_ms(),
        "ms",
        peer="the same with clients that never stay away",
        peer_value=rude.lease_p99_ms(),
        goal="<= 250",
        served_pct=storm.leases_served_pct(),
        served_pct_rude=rude.leases_served_pct(),
        calm_p99_ms=round(storm.seen.p_ms(storm.leases & storm.calm, 0.99), 1),
        **more,
    )
    figure(
        "load.reject_p99_ms",
        storm.reject_p99_ms(),
        "ms from when it was sent",
        peer="the same with clients that never stay away",
        peer_value=rude.reject_p99_ms(),
        goal="<= 100",
        **more,
    )
    for name, one in (("overload", storm), ("overload-rude", rude)):
        title = f"{OVERLOAD:g} times the peak" + (", nobody stays away" if one is rude else "")
        spans = (Span(f"{OVERLOAD:g}x", storm.begin, storm.end),)
        _plot_latency(f"{name}-latency", title, one.seen, storm.whole, spans)
        _plot_goodput(f"{name}-goodput", title, one.seen, storm.whole, spans, most)


async def _stormed(
    plane: Plane, most: float, *, is_polite: bool
) -> tuple[Results, CpuClock, float]:
    share = most / len(TENANTS)
    calm, storm = STEADY * share, OVERLOAD * share
    rates = ((0.0, calm), (CALM_S, storm), (CALM_S + STORM_S, calm))
    clock = CpuClock(plane.pid)
    everybody = streams(plane, lambda _: rates, is_polite=is_polite)
    seen, spent = await plane.run(everybody, Storm.whole, clock.watch(Storm.whole))
    clock.began = seen.began
    return seen, clock, spent


class Storm:
    """What came of one storm between two calm times."""

    begin, end = CALM_S, CALM_S + STORM_S
    whole = CALM_S + STORM_S + AFTER_S

    def __init__(self, seen: Results, clock: CpuClock, spent: float, most: float) -> None:
        self.seen, self._clock, self._spent, self._most = seen, clock, spent, most
        self.tenants, self.leases = seen.stream(*TENANTS), seen.kind("lease")
        self.calm = seen.between(1.0, self.begin)
        self.inside = seen.between(self.begin + SETTLE_S, self.end)

    @property
    def goodput(self) -> float:
        """Good answers a second that came in time."""
        useful = self.seen.good & (self.seen.latency_ms <= USEFUL_MS) & self.tenants
        return self.seen.rate(useful, self.begin + SETTLE_S, self.end)

    def codes(self) -> dict[str, int]:
        return self.seen.codes(self.tenants & self.inside)

    def lease_p99_ms(self) -> float:
        return self.seen.p_ms(self.leases & self.inside, 0.99)

    def leases_served_pct(self) -> float:
        asked = self.leases & self.inside
        return round(100 * float((asked & self.seen.good).sum()) / max(1, int(asked.sum())), 2)

    def reject_p99_ms(self) -> float:
        refused = self.tenants & self.inside & self.seen.refused
        took_ms = 1e3 * (self.seen.done - self.seen.sent)[refused]
        return _quantile(took_ms, 0.99) if len(took_ms) else 0.0

    def costs(self) -> dict[str, Any]:
        """What the server spends on an answer, in the calm and in the storm."""
        calm, storm = (1.0, self.begin), (self.begin + SETTLE_S, self.end)
        each = [
            round(1e6 * self._clock.between(*it) / max(1, self.seen.done_in(*it)))
            for it in (calm, storm)
        ]
        more = {"server_cpu_us_calm": each[0], "server_cpu_us_storm": each[1]}
        return more | costs(self.seen, self._spent)


def fair_share(total: float, demands: dict[str, float], whose: str) -> float:
    """What somebody gets of a total that is divided fairly: nobody with less wants more."""
    left, waiting = total, dict(sorted(demands.items(), key=lambda it: it[1]))
    while waiting:
        level = left / len(waiting)
        name, demand = next(iter(waiting.items()))
        got = min(demand, level)
        if name == whose:
            return got
        left -= got
        del waiting[name]
    return 0.0


async def fairness(plane: Plane, most: float) -> None:
    """One tenant asks for fifty times as much as each of the others."""
    begin, end = CALM_S, CALM_S + STORM_S
    whole = end + AFTER_S
    usual = most / len(TENANTS)
    greedy = TENANTS[0]

    def rates(tenant: str) -> tuple[tuple[float, float], ...]:
        calm = STEADY * usual
        if tenant != greedy:
            return ((0.0, calm), (begin, usual), (end, calm))
        return ((0.0, calm), (begin, GREED * usual), (end, calm))

    seen, spent = await plane.run(streams(plane, rates), whole)
    got = {
        tenant: seen.rate(seen.good & seen.stream(tenant), begin + SETTLE_S, end)
        for tenant in TENANTS
    }
    demands = dict.fromkeys(TENANTS, usual) | {greedy: GREED * usual}
    share = fair_share(sum(got.values()), demands, greedy)
    figure(
        "load.fairness_excess_pct",
        100 * (got[greedy] - share) / share,
        "% of its share",
        peer="its share of all that was served, requests/s",
        peer_value=share,
        ratio=got[greedy] / share,
        goal="<= 10",
        greed=GREED,
        greedy_per_s=round(got[greedy], 1),
        others_per_s=round(sum(got.values()) / len(got), 1),
        poorest_per_s=round(min(got.values()), 1),
        usual_per_s=round(usual, 1),
        codes_of_others=seen.codes(seen.stream(*TENANTS[1:]) & seen.between(begin, end)),
        **costs(seen, spent),
    )
    curves = [
        Curve(
            f"{tenant}{', greedy' if tenant == greedy else ''}",
            *seen.per_second(seen.good & seen.stream(tenant), whole, step_s=1.0),
        )
        for tenant in TENANTS[:6]
    ]
    offered = Curve(
        "offered by the greedy", *seen.per_second(seen.stream(greedy), whole, by_due=True)
    )
    draw(
        PLOTS / "fairness.svg",
        f"One of {len(TENANTS)} tenants at {GREED:g} times the others",
        (
            Panel("served, six of the tenants", "requests/s", curves),
            Panel("offered", "requests/s", (offered,)),
        ),
        whole,
        (Span(f"{GREED:g}x", begin, end),),
    )


async def stall(folder: Path) -> None:
    """The store stands still for 30 s below clients that go on."""
    with EtcdCluster(folder / "etcd") as cluster:
        store = ("--store", "etcd://" + ",".join(cluster.endpoints))
        async with Rig(folder / "on-etcd", *store) as rig:
            plane = Plane(rig, folder)
            await plane.furnish()
            most = await peak(plane, lambda tenant: intents(tenant, "peak"))
            await _stalled(plane, cluster, most)


async def _stalled(plane: Plane, cluster: EtcdCluster, most: float) -> None:
    begin, end = BEFORE_STALL_S, BEFORE_STALL_S + STALL_S
    whole = end + AFTER_STALL_S
    rate = STEADY * most / len(TENANTS)
    tenants = tuple(
        Stream(
            tenant, client.file, CONNECTIONS, intents(tenant, "run"), ((0.0, rate),), retries=True
        )
        for tenant, client in plane.tenants.items()
    )
    times: list[float] = []

    async def strike(began: float) -> None:
        await asyncio.sleep(max(0.0, began + begin - time.monotonic()))
        cluster.pause(0)
        times.append(time.monotonic())
        await asyncio.sleep(STALL_S)
        cluster.resume(0)
        times.append(time.monotonic())

    seen, spent = await plane.run((*tenants, *plane.leases()), whole, strike)
    stopped, went = (at - seen.began for at in times)
    usual = seen.rate(seen.good & seen.stream(*TENANTS), 2.0, stopped)
    recovery = _recovery_s(seen, went, whole, usual)
    counts = [it for it in seen.intents if it is not None]
    begun, sent, failed = (
        sum(it.get(name, 0) for it in counts) for name in ("begun", "requests", "failed")
    )
    more = {"durability": "quorum", "offered_per_s": round(STEADY * most), **costs(seen, spent)}
    if recovery is None:
        left_s = whole - went
        print(f"load.recovery_s: no figure, not normal within {left_s:.0f} s at a load of {load()}")
    else:
        figure(
            "load.recovery_s",
            recovery,
            "s after the stall",
            peer="the stall",
            peer_value=went - stopped,
            goal="<= 60",
            usual_per_s=round(usual),
            codes_during=seen.codes(seen.between(stopped, went)),
            codes_after=seen.codes(seen.between(went, whole)),
            lease_p99_ms_after=round(
                seen.p_ms(seen.kind("lease") & seen.between(went + 10.0, whole), 0.99), 1
            ),
            **more,
        )
    figure(
        "load.requests_per_intent",
        sent / max(1, begun),
        "requests",
        peer="one for each",
        peer_value=1.0,
        goal="<= 1.2",
        intents=begun,
        failed_pct=round(100 * failed / max(1, begun), 1),
        seconds=round(whole),
        **more,
    )
    spans = (Span("the store stands still", stopped, went),)
    title = f"A store that stands still for {STALL_S:g} s"
    _plot_latency("stall-latency", title, seen, whole, spans)
    _plot_goodput("stall-goodput", title, seen, whole, spans, most)


def _recovery_s(seen: Results, went: float, whole: float, usual: float) -> float | None:
    """When everything was normal again, and stayed so to the end; None if it never was."""
    tenants = seen.stream(*TENANTS)
    normal_from = at = went
    while at + WINDOW_S <= whole - 1.0:
        inside = tenants & seen.between(at, at + WINDOW_S)
        good = seen.rate(seen.good & tenants, at, at + WINDOW_S)
        fast = seen.p_ms(inside & seen.good, 0.99) if (inside & seen.good).any() else 1e9
        share = (inside & seen.good).sum() / max(1, inside.sum())
        if good < 0.95 * usual or fast > 250.0 or share < 0.99:
            normal_from = at + WINDOW_S
        at += 1.0
    # A last look that was bad says nothing about when it would have been good.
    return None if normal_from >= at - 1.0 + WINDOW_S else normal_from - went


def _quantile(values: Any, share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


# Pictures. ----------------------------------------------------------------------------------------


def _plot_latency(
    name: str, title: str, seen: Results, whole: float, spans: Sequence[Span]
) -> None:
    panels = []
    for kind, limit, words in (
        ("lease", 250.0, "renewals, served"),
        ("write", 50.0, "writes, served"),
        ("read", 20.0, "reads, served"),
    ):
        mask = seen.kind(kind) & seen.good
        curves = [
            Curve(f"p{share:.0%}".rstrip("%"), *seen.latency(mask, whole, share))
            for share in (0.5, 0.99)
        ]
        panels.append(Panel(words, "ms from when due", curves, is_log=True, limit=limit))
    refused = seen.refused
    if refused.any():
        curves = [
            Curve(f"p{share:.0%}".rstrip("%"), *seen.latency(refused, whole, share))
            for share in (0.5, 0.99)
        ]
        panels.append(Panel("refused", "ms from when due", curves, is_log=True, limit=100.0))
    draw(PLOTS / f"{name}.svg", title, panels, whole, spans)


def _plot_goodput(
    name: str, title: str, seen: Results, whole: float, spans: Sequence[Span], most: float
) -> None:
    tenants, leases = seen.stream(*TENANTS), seen.kind("lease")
    curves = [
        Curve("offered", *seen.per_second(tenants, whole, by_due=True), faint=True),
        Curve("served", *seen.per_second(tenants & seen.good, whole)),
        Curve("refused (429)", *seen.per_second(tenants & seen.refused, whole), faint=True),
        Curve(
            "failed otherwise",
            *seen.per_second(tenants & ~seen.good & ~seen.refused, whole),
            faint=True,
        ),
    ]
    renewals = [
        Curve("offered", *seen.per_second(leases, whole, step_s=1.0, by_due=True), faint=True),
        Curve("served", *seen.per_second(leases & seen.good, whole, step_s=1.0)),
    ]
    panels = (
        Panel("tenants; the line is the peak", "requests/s", curves, limit=round(most)),
        Panel("renewals", "requests/s", renewals),
    )
    draw(PLOTS / f"{name}.svg", title, panels, whole, spans)


async def measure(folder: Path, parts: Sequence[str]) -> None:
    if set(parts) - {"stall"}:
        async with Rig(folder / "on-sqlite") as rig:
            plane = Plane(rig, folder)
            await plane.furnish()
            most = await peak(plane)
            for name, part in (("steady", steady), ("overload", overload), ("fairness", fairness)):
                if name in parts:
                    await part(plane, most)
    if "stall" in parts:
        await stall(folder)


def main() -> None:
    """Print every figure."""
    parts = os.environ.get("HOLDFAST_BENCH_PARTS", ",".join(PARTS)).split(",")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        asyncio.run(measure(Path(name), parts))


if __name__ == "__main__":
    main()
