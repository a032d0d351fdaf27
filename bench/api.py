"""What one API server does over TLS: reads, writes, batches, binds, watches, memory.

One server process on SQLite with a sync for each commit, and the generator beside it on the same
cores. Each figure stands beside a bound of the same run: a bare aiohttp server over TLS with the
same body for reads, the bare store in this process for writes. For what is a limit on time or on
memory the bound is the same work with nobody to serve it.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.harness import figure, percentile
from bench.http_load import Connection, connect, rate, request, through
from holdfast.commit.operations import operation_id
from holdfast.host.certificates import Authority
from holdfast.model.errors import invariant
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.meta import ObjectMeta, Quantity
from holdfast.model.requests import AcquireLease, Bind, RegisterNode, Target, Term
from holdfast.model.transaction import ABSENT, Committed, Compare, Put, Transaction
from holdfast.store.contract import Store
from holdfast.store.etcd import EtcdConfig, EtcdStore
from holdfast.store.sqlite import SqliteStore
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import PlaneProcess

GROUP = "/apis/holdfast.dev/v1"
CONNECTIONS = 32
GET_S = 2.0
ROUNDS = 3
WRITES = 6_000
BATCH = 500
BATCHES_AT_ONCE = 2
BINDS = 3_000
BIND_NODES = 50
NODES = 980
EVERYTHING_WATCHERS = 20
EVENTS_PER_S = 500
WATCH_S = 8.0
OBJECTS = 100_000
# A tenant may have so many workloads.
TENANT_WORKLOADS = 10_000
# As large as a bound replica.
ROW = b"x" * 1_500
_encode = msgspec.json.encode


def _document(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": kind,
        "metadata": {"name": name, **more.pop("metadata", {})},
        **more,
    }


def _workload(name: str) -> dict[str, Any]:
    resources = {"cpu": "100m", "memory": "128Mi"}
    template = {"command": ["sleep", "60"], "resources": resources}
    return _document("Workload", name, spec={"replicas": 1, "template": template})


def _chunks(documents: list[Any], path: str) -> Iterator[bytes]:
    for at in range(0, len(documents), BATCH):
        yield request("POST", path, _encode(documents[at : at + BATCH]))


class Rig:
    """A server process and connections to it under several names."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self.plane = PlaneProcess(folder / "data", *options)
        self._lines: list[Connection] = []

    async def __aenter__(self) -> Rig:
        await self.plane.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for line in self._lines:
            line.close()
        self.plane.kill()

    def tls(self, name: str = "admin", *groups: str) -> ssl.SSLContext:
        """The TLS of somebody; the administrator's if nobody is named."""
        access = self.plane.access()
        if name != "admin":
            issued = Authority.open(self.plane.data / "pki").issue(name, groups=groups)
            access = msgspec.structs.replace(access, certificate=issued.certificate, key=issued.key)
        return access.context()

    async def lines(self, count: int, name: str = "admin") -> list[Connection]:
        made = await connect(self.plane.port, self.tls(name), count)
        self._lines += made
        return made

    async def ask(self, line: Connection, path: str, body: Any) -> Any:
        code, answer = await line.ask(request("POST", path, _encode(body)))
        invariant(200 <= code < 300, f"{path}: {code} {answer[:300]!r}")
        return msgspec.json.decode(answer)

    async def tenant(self, line: Connection, name: str) -> str:
        """A tenant with room for everything here; the path of its namespace."""
        await self.ask(line, f"{GROUP}/tenants", _document("Tenant", name))
        quota = _document("Quota", "default", spec={"hard": {"cpu": "1000000"}})
        space = f"{GROUP}/namespaces/{name}"
        await self.ask(line, f"{space}/quotas", quota)
        return space

    def rss_mb(self) -> float:
        """Resident memory of the server."""
        process = self.plane._process
        invariant(process is not None, "the server runs")
        text = Path(f"/proc/{process.pid}/status").read_text()  # type: ignore[union-attr]
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024


# Reads. -------------------------------------------------------------------------------------------


class Bare:
    """A bare server over TLS in a process of its own, with one body."""

    def __init__(self, rig: Rig, body: bytes) -> None:
        file = rig.plane.data.with_suffix(".body")
        file.write_bytes(body)
        pki = rig.plane.data / "pki"
        parts = (str(pki / "server.crt"), str(pki / "server.key"), str(file))
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
    await rig.ask(lines[0], f"{space}/workloads", _workload("seen"))
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


# Writes. ------------------------------------------------------------------------------------------


async def bare_store(
    store: Store, value: bytes, count: int, rows: int, in_flight: int
) -> tuple[float, list[float]]:
    """Rows a second that a store takes, so many in a transaction and so many at once; each time."""
    prefix = store.new_token()
    keys = (f"bare/{prefix}/{n:08d}" for n in range(count))
    each: list[float] = []

    async def work() -> None:
        while group := list(itertools.islice(keys, rows)):
            transaction = Transaction(
                tuple(Compare(key, ABSENT) for key in group),
                tuple(Put(key, value) for key in group),
            )
            sent = time.perf_counter()
            outcome = await store.txn(transaction, token=store.new_token())
            each.append(time.perf_counter() - sent)
            invariant(isinstance(outcome, Committed), "nobody else writes here")

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return count / (time.perf_counter() - began), each


async def writes(rig: Rig, space: str, store: Store) -> None:
    lines = await rig.lines(CONNECTIONS)
    path = f"{space}/workloads"
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for turn in range(ROUNDS):
        bodies = [
            request("POST", path, _encode(_workload(f"w{turn}-{n}")))
            for n in range(WRITES // ROUNDS)
        ]
        took, each, answers = await through(lines, iter(bodies), 201)
        ours.append((len(bodies) / took, 1e3 * percentile(each, 0.99)))
        bound, times = await bare_store(store, answers[0], len(bodies), 1, CONNECTIONS)
        theirs.append((bound, 1e3 * percentile(times, 0.99)))
    # Rate and latency are of the same round, the fastest one.
    (speed, slowest), (bound, bound_slowest) = max(ours), max(theirs)
    peer = "bare SQLite, as many in flight"
    more: dict[str, Any] = {"durability": "power", "best_of": ROUNDS, "connections": CONNECTIONS}
    figure("api.write", speed, "creates/s", peer=peer, peer_value=bound, goal=">= 2000", **more)
    figure(
        "api.write.p99_ms",
        slowest,
        "ms",
        peer=peer,
        peer_value=bound_slowest,
        goal="<= 50",
        **more,
    )


async def fill(rig: Rig, space: str, count: int) -> float:
    """So many workloads in batches; seconds."""
    path = f"{space}/workloads?results=names"
    documents = [_workload(f"b{n}") for n in range(count)]
    lines = await rig.lines(BATCHES_AT_ONCE)
    took, _, answers = await through(lines, _chunks(documents, path), 200)
    for answer in answers:
        codes = {item["code"] for item in msgspec.json.decode(answer)["items"]}
        invariant(codes == {201}, f"a create was refused: {answer[:300]!r}")
    return took


# Binds. -------------------------------------------------------------------------------------------


async def register(rig: Rig, count: int) -> list[dict[str, Any]]:
    """Nodes, each by its own agent."""
    found = []
    for n in range(count):
        name = f"node-{n}"
        (line,) = await connect(rig.plane.port, rig.tls(f"system:node:{name}"), 1)
        capacity: dict[str, Quantity] = {"cpu": "64", "memory": "4Ti", "replicas": "1000"}
        spec = NodeSpec(region="eu", zone="eu-a", capacity=capacity)
        asked = RegisterNode(Node(ObjectMeta(name=name), spec=spec))
        answer = await rig.ask(line, f"{GROUP}/requests", asked)
        found.append(answer["objects"][0])
        line.close()
    return found


class Binder:
    """Pending replicas of one workload, and binds for them."""

    def __init__(self, rig: Rig, nodes: list[dict[str, Any]]) -> None:
        self._rig, self._nodes = rig, nodes

    async def prepare(self, line: Connection, space: str, count: int) -> list[Bind]:
        rig = self._rig
        owner = await rig.ask(line, f"{space}/workloads", _workload("bound"))
        uid, template = owner["metadata"]["uid"], owner["spec"]["template"]
        documents = [
            _document(
                "Replica",
                f"bound-{n}-0",
                spec={"workload": "bound", "workloadUid": uid, "ordinal": n, "template": template},
            )
            for n in range(count)
        ]
        lines = await rig.lines(1, "system:controller:workload")
        path = f"{space}/replicas?results=names"
        _, _, answers = await through(lines, _chunks(documents, path), 200)
        items = [item for answer in answers for item in msgspec.json.decode(answer)["items"]]
        refused = [item for item in items if item["code"] != 201]
        invariant(not refused, f"a replica was refused: {refused[:1]}")
        (scheduler,) = await rig.lines(1, "system:scheduler:bench")
        lease = AcquireLease("scheduler:bench", 600_000)
        answer = await rig.ask(scheduler, f"{GROUP}/requests", lease)
        term = Term("scheduler:bench", answer["objects"][0]["spec"]["epoch"])
        namespace = space.rpartition("/")[2]
        return [self._bind(namespace, item["names"][0], n, term) for n, item in enumerate(items)]

    def _bind(self, namespace: str, made: dict[str, Any], n: int, term: Term) -> Bind:
        # The last ones go one to each node, the others to a few.
        node = self._nodes[n % min(BIND_NODES, len(self._nodes)) if n < BINDS else n - BINDS]
        return Bind(
            Target(namespace, made["name"], made["uid"], 0),
            node["metadata"]["name"],
            node["metadata"]["uid"],
            term,
            operation=operation_id("bench", made["uid"], 0, "bind"),
        )

    async def perform(self, binds: list[Bind]) -> float:
        """Seconds."""
        lines = await self._rig.lines(BATCHES_AT_ONCE, "system:scheduler:bench")
        chunks = _chunks(binds, f"{GROUP}/bindings?results=names")
        took, _, answers = await through(lines, chunks, 200)
        items = [item for answer in answers for item in msgspec.json.decode(answer)["items"]]
        refused = [item for item in items if item["code"] != 200]
        invariant(not refused, f"{len(refused)} binds were refused, such as {refused[:1]}")
        return took


async def binds_on_etcd(folder: Path) -> None:
    with EtcdCluster(folder / "etcd") as cluster:
        async with Rig(
            folder / "on-etcd", "--store", "etcd://" + ",".join(cluster.endpoints)
        ) as rig:
            (line,) = await rig.lines(1)
            space = await rig.tenant(line, "acme")
            binder = Binder(rig, await register(rig, BIND_NODES))
            took = await binder.perform(await binder.prepare(line, space, BINDS))
        bare = await EtcdStore.open(EtcdConfig(endpoints=cluster.endpoints, prefix="/bare/"))
        bound, _ = await bare_store(bare, ROW, 3 * BINDS, 30, 4)
        await bare.close()
    figure(
        "api.bind.etcd",
        BINDS / took,
        "binds/s",
        peer="bare etcd, three rows for each, ten in a transaction, four at once",
        peer_value=bound / 3,
        goal=">= 1500",
        durability="power",
        members=1,
    )


# Watches. -----------------------------------------------------------------------------------------


class Audience:
    """Many watchers, and how long each event took to reach each."""

    MARK = b'"message":"bench '

    def __init__(self) -> None:
        self.delays_ms: list[float] = []

    def hear(self, data: bytes) -> None:
        now, at = time.perf_counter_ns(), data.find(self.MARK)
        while at >= 0:
            sent = int(data[at + len(self.MARK) :].partition(b'"')[0] or 0)
            self.delays_ms.append((now - sent) / 1e6)
            at = data.find(self.MARK, at + 1)

    async def gather(self, rig: Rig, everything: int, nodes: int) -> list[Connection]:
        """So many watchers of everything, and one for each of so many nodes."""
        lines = await rig.lines(everything + nodes)
        # From now on: what is there already would be told first.
        now = "watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
        path = f"{GROUP}/replicas?{now}"
        for n, line in enumerate(lines):
            place = n - everything
            chosen = "" if place < 0 else f"&fieldSelector=status.binding.node%3Dnode-{place}"
            line.follow(request("GET", path + chosen), self.hear)
        await asyncio.sleep(2.0)
        return lines


async def heard(
    rig: Rig, binds: list[Bind], everything: int, nodes: int
) -> tuple[list[float], float]:
    """How long events took to reach their watchers, and how many a second there were."""
    audience = Audience()
    watchers = await audience.gather(rig, everything, nodes)
    lines = await rig.lines(CONNECTIONS, "system:controller:endpoints")
    waiting = itertools.cycle(binds)
    began, sent = time.perf_counter(), itertools.count()

    async def work(line: Connection) -> None:
        while (due := began + next(sent) / EVENTS_PER_S) < began + WATCH_S:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            target = next(waiting).target
            said = {"message": f"bench {time.perf_counter_ns()}", "status": "True"}
            serving = {"type": "Serving", "reason": "Published", **said}
            body = _encode({"status": {"conditions": [serving]}})
            path = f"{GROUP}/namespaces/{target.namespace}/replicas/{target.name}/status"
            kind = "application/merge-patch+json"
            code, answer = await line.ask(request("PATCH", path, body, kind))
            invariant(code == 200, f"{code}: {answer[:300]!r}")

    await asyncio.gather(*(work(line) for line in lines))
    events = EVENTS_PER_S * WATCH_S
    speed = events / (time.perf_counter() - began)
    await asyncio.sleep(1.0)
    wanted = events * (everything + (1 if nodes else 0))
    count = len(audience.delays_ms)
    invariant(count >= 0.98 * wanted, f"{count} of {wanted} deliveries were seen")
    if not nodes:
        for watcher in watchers:
            watcher.close()
    return audience.delays_ms, speed


async def watches(rig: Rig, binds: list[Bind]) -> None:
    """`binds` are of one replica on each node. The watchers stay, for they cost memory."""
    alone, _ = await heard(rig, binds, 1, 0)
    delays, speed = await heard(rig, binds, EVERYTHING_WATCHERS, NODES)
    figure(
        "api.watch.p99_ms",
        percentile(delays, 0.99),
        "ms",
        peer="the same with one watcher",
        peer_value=percentile(alone, 0.99),
        goal="<= 100",
        durability="power",
        # A server that cannot keep up is asked for less, so the rate belongs to the figure.
        events_per_s=round(speed),
        events_per_s_wanted=EVENTS_PER_S,
        median=round(percentile(delays, 0.5), 1),
        watchers=EVERYTHING_WATCHERS + NODES,
    )


# All of it. ---------------------------------------------------------------------------------------


async def measure(folder: Path) -> None:
    store = await SqliteStore.open(folder / "bare.db")
    async with Rig(folder) as rig:
        empty_mb = rig.rss_mb()
        (line,) = await rig.lines(1)
        space = await rig.tenant(line, "acme")
        await reads(rig, space)
        await writes(rig, space, store)
        await _batches(rig, line, store)
        binder = Binder(rig, await register(rig, NODES))
        binds = await binder.prepare(line, space, BINDS + NODES)
        took = await binder.perform(binds[:BINDS])
        bound, _ = await bare_store(store, ROW, 3 * BINDS, 3, 128)
        figure(
            "api.bind.batch",
            BINDS / took,
            "binds/s",
            peer="bare SQLite, three rows for each",
            peer_value=bound / 3,
            goal=">= 3500",
            durability="power",
            nodes=BIND_NODES,
        )
        await binder.perform(binds[BINDS:])
        objects = WRITES + len(binds) + NODES + TENANT_WORKLOADS
        for n in itertools.count(1):
            if objects >= OBJECTS:
                break
            await fill(rig, await rig.tenant(line, f"full-{n}"), TENANT_WORKLOADS)
            objects += TENANT_WORKLOADS
        await watches(rig, binds[BINDS:])
        figure(
            "api.rss_mb",
            rig.rss_mb(),
            "MB",
            peer="the same server at its start",
            peer_value=empty_mb,
            goal="<= 1000",
            objects=objects,
        )
    await store.close()
    await binds_on_etcd(folder)


async def _batches(rig: Rig, line: Connection, store: Store) -> None:
    space = await rig.tenant(line, "full-0")
    took = await fill(rig, space, TENANT_WORKLOADS)
    _, body = await line.ask(request("GET", f"{space}/workloads/b0"))
    bound, _ = await bare_store(store, body, TENANT_WORKLOADS, 100, 1)
    figure(
        "api.create.batch",
        TENANT_WORKLOADS / took,
        "objects/s",
        peer="bare SQLite in transactions of 100",
        peer_value=bound,
        goal=">= 4000",
        durability="power",
        batch=BATCH,
    )
    await lists(rig, space)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        asyncio.run(measure(Path(name)))


if __name__ == "__main__":
    main()
