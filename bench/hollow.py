"""Hollow agents: many nodes in one process, whose work is simulated.

    python -m bench.hollow --server https://127.0.0.1:6443 --pki data/pki --prefix h --count 50

`bench/control` starts some. Everything up to the runtime is the shipped code: the agent's machine,
its shell, and its own connections over TLS under its own certificate, including the one on which
servers call it. Only the runtime is hollow: work starts after a moment, keeps its deadline and
stops on request, without a process. It has no logs and runs no commands.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.node_facts import NodeFacts
from holdfast.agent.runtime_protocol import (
    DEADLINE_PASSED,
    STOPPED,
    Attempt,
    Clear,
    Exited,
    Extend,
    Halt,
    Inventory,
    Launch,
    Launched,
    LookAround,
    NotLaunched,
    Probed,
    RunProbe,
)
from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.server_access import Access
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.process import clock
from holdfast.host.process.foreground import until_signal
from holdfast.host.process.shell import Shell
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.host.tunnel.agent_end import AgentTunnel
from holdfast.model.access import identity as who
from holdfast.model.kinds.replica import Process
from holdfast.model.time import timestamp

# The time that a shim and a small program take to start on an idle machine.
START_S = 0.02
STOP_S = 0.005
LOOK_S = 0.05
# How many nodes join at once. More of them in one process would delay each other's handshakes until
# these time out, which cannot happen to nodes with a machine each.
JOINING_MAX = 16

_PORT_FIRST = 20_000
_SIGTERM = 15


class HollowWork:
    """The runtime of one node without processes. It lives on the event loop of its shell."""

    def __init__(self, address: str, post: Callable[[Any], None]) -> None:
        self._address, self._post = address, post
        self._started = 0
        self._running: dict[Attempt, Process] = {}
        # Work with a deadline; on one node all deadlines are equal once they were extended.
        self._until_ms: dict[Attempt, int] = {}
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def performers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """The state that a shell shares with its machine's effects."""
        return {
            Launch: self._launch,
            Extend: self._extend,
            Halt: self._halt,
            RunProbe: lambda it: self._post(
                Probed(it.attempt, it.kind, it.attempt in self._running)
            ),
            Clear: lambda it: None,
            LookAround: lambda it: self._post(Inventory(())),
        }

    def close(self) -> None:
        """End everything, as a power failure does."""
        self._running.clear()
        if self._alarm is not None:
            self._alarm.cancel()

    def _launch(self, effect: Launch) -> None:
        asyncio.get_running_loop().call_later(START_S, self._begin, effect)

    def _begin(self, effect: Launch) -> None:
        now = clock.now()
        if effect.deadline_ms is not None and now.monotonic_ms >= effect.deadline_ms:
            self._post(NotLaunched(effect.attempt, Process(reason=DEADLINE_PASSED)))
            return
        self._started += 1
        ports = [port.name for port in effect.template.ports]
        process = self._running[effect.attempt] = Process(
            id=f"hollow/{self._started}/{now.monotonic_ms}",
            started_at=timestamp(now.wall_ms),
            addresses=dict.fromkeys(ports, f"{self._address}:{_PORT_FIRST + self._started}"),
        )
        if effect.deadline_ms is not None:
            self._until_ms[effect.attempt] = effect.deadline_ms
            self._arm()
        self._post(Launched(effect.attempt, process))

    def _extend(self, effect: Extend) -> None:
        for attempt, until_ms in self._until_ms.items():
            self._until_ms[attempt] = max(until_ms, effect.deadline_ms)

    def _arm(self) -> None:
        """Deadlines move far more often than they pass, so the timer checks them when it fires."""
        if self._alarm is None and self._until_ms:
            left_ms = min(self._until_ms.values()) - clock.monotonic_ms()
            later = asyncio.get_running_loop().call_later
            self._alarm = later(max(0.001, left_ms / 1_000), self._strike)

    def _strike(self) -> None:
        self._alarm = None
        now_ms = clock.monotonic_ms()
        for attempt in [it for it, until_ms in self._until_ms.items() if until_ms <= now_ms]:
            self._end(attempt, DEADLINE_PASSED)
        self._arm()

    def _halt(self, effect: Halt) -> None:
        asyncio.get_running_loop().call_later(STOP_S, self._end, effect.attempt, STOPPED)

    def _end(self, attempt: Attempt, why: str) -> None:
        process = self._running.pop(attempt, None)
        self._until_ms.pop(attempt, None)
        if process is None:
            self._post(Exited(attempt, Process(reason="NotFound")))
        else:
            ended = msgspec.structs.replace(process, reason=why, signal=_SIGTERM)
            self._post(Exited(attempt, ended))


class HollowNode:
    """One node: the shipped agent on a hollow runtime."""

    def __init__(self, name: str, facts: NodeFacts, access: Access) -> None:
        identity = who.agent(name)
        self._api_client = ApiClient({identity.name: access})
        self.agent = Agent(name, facts, random.SystemRandom())
        self.work = HollowWork(facts.address, self._post)
        self.shell = Shell(
            self.agent,
            identity,
            peers=self._api_client,
            sources=self._api_client,
            performers=self.work.performers,
        )
        # It uses the runtime only for logs and commands.
        runtime = cast("NodeRuntime", self.work)
        self._tunnel = AgentTunnel(name, lambda: access, runtime, self._api_client.each_server)

    def _post(self, stimulus: Any) -> None:
        self.shell.post(stimulus)

    async def start(self) -> None:
        await self.shell.start()
        self._tunnel.start()

    async def stop(self) -> None:
        self.work.close()
        await self._tunnel.stop()
        await self.shell.stop()
        await self._api_client.close()


class HollowNodes:
    """All nodes of this process, started one after the other."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.nodes: list[HollowNode] = []

    def _make(self, number: int, authority: CertificateAuthority) -> HollowNode:
        given = self._arguments
        name = f"{given.prefix}{number}"
        issued = authority.issue(who.agent(name).name)
        access = Access(
            servers=tuple(given.server),
            ca=authority.pem,
            certificate=issued.certificate,
            key=issued.key,
        )
        facts = NodeFacts(
            region="eu",
            zone=f"eu-{number % given.zones}",
            capacity=dict(it.split("=") for it in given.capacity.split(",")),
            address=f"10.0.{number // 256}.{number % 256}",
            installation=name,
        )
        return HollowNode(name, facts, access)

    async def start(self) -> None:
        authority = CertificateAuthority.open(self._arguments.pki)
        for number in range(self._arguments.first, self._arguments.first + self._arguments.count):
            node = self._make(number, authority)
            await node.start()
            self.nodes.append(node)
            await asyncio.sleep(self._arguments.pause_ms / 1_000)
            await self._joined(all_but=JOINING_MAX)
        await self._joined(all_but=0)

    async def _joined(self, all_but: int) -> None:
        """Wait until the servers know all started nodes, except the last `all_but` ones."""
        for node in self.nodes[-2 * JOINING_MAX : len(self.nodes) - all_but]:
            while node.agent.life is None:  # noqa: ASYNC110 - machines have no events to wait for
                await asyncio.sleep(LOOK_S)

    async def wait(self) -> str:
        ends = [asyncio.create_task(node.shell.wait()) for node in self.nodes]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return f"a hollow agent has stopped: {[task.exception() for task in done]}"

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes))

    def greet(self) -> None:
        sys.stdout.write(f"The hollow nodes are {len(self.nodes)}\n")
        sys.stdout.flush()


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.hollow")
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--pki", type=Path, required=True, help="directory of the plane's CA")
    parser.add_argument("--prefix", default="h", help="prefix of node names, before the number")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--zones", type=int, default=3)
    parser.add_argument("--capacity", default="cpu=64,memory=64Gi")
    parser.add_argument("--pause-ms", type=int, default=0, help="between the starts of two nodes")
    return parser.parse_args(arguments)


async def main() -> int:
    nodes = HollowNodes(parsed())
    return await until_signal(nodes, nodes.greet)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
