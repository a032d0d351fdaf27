"""A server on an event loop of its own, over a store with many objects, that says how long one turn
of its loop took.

The server runs in a thread. What its thread computes in one turn of the loop is how long all
others wait, whatever the machine is doing meanwhile; the client computes in another thread and does
not count.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.commit.record_encoding import encode
from holdfast.model import keys
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.transaction import Put, Transaction
from holdfast.store.memory import MemoryStore
from tests.plane import template
from tests.unit.host.api.api_rig import PATIENCE_S, ApiRig

PUTS_AT_ONCE = 1_000
WARM, BARE = 20, 100


class MeteredLoop(asyncio.SelectorEventLoop):
    """Knows what its turns cost its thread."""

    longest_s = 0.0
    all_s = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        took_s = time.thread_time() - began
        self.all_s += took_s
        self.longest_s = max(self.longest_s, took_s)


class MeteredServer:
    """See the module's docstring."""

    def __init__(self, loop: MeteredLoop, rig: ApiRig) -> None:
        self.loop, self.rig = loop, rig
        self.port = int(rig.url.rpartition(":")[2])

    def send(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, bytes]:
        """One request on a connection of its own, and its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def held_s(self, work: Callable[[], Any]) -> float:
        """The longest turn of the loop while this is done."""
        self._reset()
        work()
        return self.loop.longest_s

    def bare_s(self, path: str) -> float:
        """What a request for one small thing costs, in all of its turns."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        for number in range(WARM + BARE):
            if number == WARM:
                self._reset()
            connection.request("GET", path)
            assert connection.getresponse().read()
        connection.close()
        return self.loop.all_s / BARE

    def _reset(self) -> None:
        self.loop.longest_s = self.loop.all_s = 0.0


@contextmanager
def metered_server(replicas: int) -> Iterator[MeteredServer]:
    """A server with this many pending replicas of one tenant."""
    store = MemoryStore()
    for puts in _puts(replicas):
        store.keyspace.txn(Transaction((), puts))
    loop, ready = MeteredLoop(), threading.Event()
    rigs: list[ApiRig] = []
    over = asyncio.Event()

    async def serve() -> None:
        async with ApiRig(store) as rig:
            rigs.append(rig)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    # What was made so far stays; a collection that looks at it again would be no request's fault.
    gc.collect()
    gc.freeze()
    try:
        yield MeteredServer(loop, rigs[0])
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(PATIENCE_S)
        loop.close()
        gc.unfreeze()


def _puts(count: int) -> Iterator[tuple[Put, ...]]:
    web = Workload(
        ObjectMeta(name="web", namespace="acme", uid="uid-web"),
        spec=WorkloadSpec(template=template(), replicas=count),
    )
    yield (_put(web),)
    puts: list[Put] = []
    for number in range(count):
        puts.append(_put(_numbered(number, web.spec.template)))
        if len(puts) == PUTS_AT_ONCE or number == count - 1:
            yield tuple(puts)
            puts.clear()


def _numbered(number: int, made_of: Template) -> Replica:
    metadata = ObjectMeta(
        name=f"web-{number}-0", namespace="acme", uid=f"uid-{number}", labels={"app": "web"}
    )
    spec = ReplicaSpec(workload="web", workload_uid="uid-web", template=made_of, ordinal=number)
    return Replica(metadata, spec=spec)


def _put(obj: Object) -> Put:
    bare = msgspec.structs.replace(obj.metadata, resource_version="")
    return Put(keys.key_of(obj), encode(msgspec.structs.replace(obj, metadata=bare)))
