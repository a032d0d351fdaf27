"""Processes of a plane that only a benchmark needs: `python -m bench.scheduling.parts KIND …`.

`controllers` runs some of the controllers, since the others would find all nodes without agents
silent. `blind` is a scheduler that takes the nodes in turn without evaluating them: with it in
place of the real one, a plane shows the bound without deciding.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import deque
from itertools import cycle
from pathlib import Path
from typing import Any

from holdfast.correct.controller import Controller
from holdfast.correct.status import StatusController
from holdfast.correct.workload.controller import WorkloadController
from holdfast.host.client.api_client import ApiClient
from holdfast.host.component import build
from holdfast.host.component.build import ComponentSettings
from holdfast.host.component.component_process import Component
from holdfast.host.pki.component_credentials import access_of
from holdfast.host.process.foreground import say, until_signal
from holdfast.model.access import identity as who
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.machine import Answered, Rng, Wake
from holdfast.model.read_requests import Get
from holdfast.model.requests import AcquireLease, Bind, RenewLease, Target
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.observe.inflight import Inflight
from holdfast.observe.leader_election import LeaderElection
from holdfast.observe.watch_events import Follow

CONTROLLERS: tuple[type[Controller], ...] = (WorkloadController, StatusController)
BINDS_MAX = 512


class Blind:
    """Binds every pending replica to the next node, and retries nothing."""

    def __init__(self, name: str, rng: Rng) -> None:
        identity = who.scheduler(name).name
        self._cache = Cache([Follow("nodes"), Follow("replicas")], rng, resync_ms=3_600_000)
        self._election = LeaderElection(f"scheduler:{name}", identity, instance=name)
        self._asks: Inflight[None] = Inflight(BINDS_MAX + 2)
        self._identity = identity
        self._line: deque[Replica] = deque()
        self._nodes: Any = None

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        stepped = self._cache.step(stimulus, now)
        effects = stepped.effects
        for change in stepped.changes:
            if isinstance(change.after, Replica) and change.after.status.state is State.PENDING:
                self._line.append(change.after)
        if isinstance(stimulus, Answered):
            sent = self._asks.answered(stimulus.call)
            if sent is not None and isinstance(sent.request, Get | AcquireLease | RenewLease):
                more = self._election.answered(sent.request, stimulus.body, sent.sent_ms, now)
                if more is not None:
                    effects.append(self._asks.ask(more, None, now.monotonic_ms))
        due = self._election.due(now)
        if due is not None:
            effects.append(self._asks.ask(due, None, now.monotonic_ms))
            effects.append(Wake("blind", max(now.monotonic_ms + 1, self._election.next_ms)))
        return [*effects, *self._binds(now)]

    def _binds(self, now: Instant) -> list[Any]:
        term = self._election.term
        if term is None or not self._cache.is_ready:
            return []
        if self._nodes is None:
            nodes: list[Node] = list(self._cache.all("nodes"))
            self._nodes = cycle([(node.name, node.metadata.uid) for node in nodes])
        effects = []
        while self._line and self._asks.room > 2:
            replica = self._line.popleft()
            name, uid = next(self._nodes)
            metadata = replica.metadata
            bind = Bind(
                Target(metadata.namespace, metadata.name, metadata.uid, 0),
                name,
                uid,
                term,
                operation=f"{self._identity}/{metadata.uid}/0/bind",
            )
            effects.append(self._asks.ask(bind, None, now.monotonic_ms))
        return effects


async def _component(arguments: argparse.Namespace) -> Component:
    origin = ComponentSettings(servers=(arguments.server,), pki=arguments.pki, name=arguments.name)
    if arguments.kind == "controllers":
        return await build.controllers(origin, tuple(it() for it in CONTROLLERS))
    identity = who.scheduler(arguments.name)
    access = await asyncio.to_thread(access_of, origin.servers, origin.pki, identity.name)
    machine = Blind(arguments.name, random.SystemRandom())
    return Component("blind scheduler", machine, identity, ApiClient({identity.name: access}))


async def _run(arguments: argparse.Namespace) -> int:
    component = await _component(arguments)
    return await until_signal(
        component, lambda: say(f"The {component.title} works with {arguments.server}")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("controllers", "blind"))
    parser.add_argument("--server", required=True)
    parser.add_argument("--pki", type=Path, required=True)
    parser.add_argument("--name", default="bench")
    return asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
