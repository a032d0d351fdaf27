"""Writes of `bench/api`: creates one by one and in batches, beside the bare store."""

from __future__ import annotations

from typing import Any

import msgspec

from bench.api_rig import BATCHES_AT_ONCE, CONNECTIONS, ROUNDS, Rig, chunks, workload
from bench.bare_store import bare_store
from bench.harness import figure, percentile
from bench.http_load import request, through
from holdfast.model.errors import invariant
from holdfast.store.contract import Store

WRITES = 6_000
_encode = msgspec.json.encode


async def writes(rig: Rig, space: str, store: Store) -> None:
    lines = await rig.lines(CONNECTIONS)
    path = f"{space}/workloads"
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for turn in range(ROUNDS):
        bodies = [
            request("POST", path, _encode(workload(f"w{turn}-{n}")))
            for n in range(WRITES // ROUNDS)
        ]
        took, each, answers = await through(lines, iter(bodies), 201)
        ours.append((len(bodies) / took, 1e3 * percentile(each, 0.99)))
        bound, times = await bare_store(store, answers[0], len(bodies), 1, CONNECTIONS)
        theirs.append((bound, 1e3 * percentile(times, 0.99)))
    # Rate and latency come from the same round, the fastest one.
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
    """Create `count` workloads in batches, and return the seconds that it took."""
    path = f"{space}/workloads?results=names"
    documents = [workload(f"b{n}") for n in range(count)]
    lines = await rig.lines(BATCHES_AT_ONCE)
    took, _, answers = await through(lines, chunks(documents, path), 200)
    for answer in answers:
        codes = {item["code"] for item in msgspec.json.decode(answer)["items"]}
        invariant(codes == {201}, f"a create was refused: {answer[:300]!r}")
    return took
