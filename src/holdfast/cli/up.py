"""`holdfast up`: a whole plane on this machine, in the foreground, until Ctrl-C.

Its parts are separate processes (`local_plane`, `supervised_process`); this process only starts and
restarts them and reports what happens. Killing it ends them; the next `up` continues on the same
data.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click
from rich.console import Console

from holdfast.cli.command_table import Section
from holdfast.cli.exit_codes import ExitCode, complain, invalid_as_usage_error, plain, run
from holdfast.cli.plane_parts import REGION, server_options
from holdfast.cli.processes.local_plane import LocalPlane, LocalPlanePlan, data_directory_lock
from holdfast.host.process.foreground import forget_inherited, is_ignored
from holdfast.host.server.server_options import server_arguments, settings_of
from holdfast.host.server.settings import MEMORY, ServerSettings
from holdfast.model.errors import HoldfastError, invalid_option
from holdfast.model.plane import PlaneRole

SECTION = Section.START
AGENTS = 3
AGENTS_MAX = 64


@click.command(
    short_help="Run a whole plane on this machine.",
    epilog="Example: holdfast up --data /srv/holdfast --listen 0.0.0.0:6443 --agents 1",
)
@server_options
@click.option(
    "--agents",
    type=click.IntRange(0, AGENTS_MAX),
    default=AGENTS,
    show_default=True,
    help="The number of nodes on this machine, each with an equal share of it.",
)
def up(agents: int, **given: Any) -> int:
    """Run a whole plane on this machine: server, scheduler, controllers and some nodes.

    A second `up` on the same data continues where the first one stopped.
    """

    async def command() -> int:
        with invalid_as_usage_error():
            settings = settings_of(argparse.Namespace(**given))
            settings.check()
            if agents and settings.plane.role is PlaneRole.GLOBAL:
                raise invalid_option("--agents", str(agents), "a global plane has no nodes: use 0")
        plan = LocalPlanePlan(
            data=settings.data,
            listen=given["listen"],
            pki=settings.pki_directory,
            server=server_arguments(given),
            agents=agents,
            region=settings.plane.region or REGION,
        )
        with data_directory_lock(plan.data):
            return await _Up(plan, settings).run()

    return run(command())


def _named(agents: int) -> str:
    """All parts except the server, for messages."""
    if not agents:
        return "the scheduler and the controllers"
    return f"the scheduler, the controllers and {agents} node{'s' if agents > 1 else ''}"


class _Up:
    """One run of the command."""

    def __init__(self, plan: LocalPlanePlan, settings: ServerSettings) -> None:
        self._plan, self._settings = plan, settings
        self._console = Console(highlight=False, markup=False, soft_wrap=True)
        self._plane = LocalPlane(plan, self._report)
        self._signalled = asyncio.Event()

    async def run(self) -> int:
        self._listen_to_signals()
        plane = self._plane
        upkeep = [
            asyncio.create_task(plane.bound_logs()),
            asyncio.create_task(plane.keep_certificates()),
        ]
        try:
            if not await self._until_signal(self._start()):
                await self._signalled.wait()
            code = ExitCode.DONE
        except HoldfastError as error:
            code = complain(error.message)
        finally:
            for task in upkeep:
                task.cancel()
            with self._doing("Stopping"):
                await plane.stop()
        if code is ExitCode.DONE:
            self._say_stopped()
        return code

    def _listen_to_signals(self) -> None:
        def on_signal() -> None:
            if self._signalled.is_set():
                # A second signal ends everything at once. No acknowledged write is lost by that.
                self._console.show_cursor()
                os._exit(ExitCode.INTERRUPTED)
            self._signalled.set()

        forget_inherited(keep=(signal.SIGHUP,))
        ends = [signal.SIGINT, signal.SIGTERM]
        if not is_ignored(signal.SIGHUP):
            # Under `nohup` the plane continues when its terminal closes.
            ends.append(signal.SIGHUP)
        for number in ends:
            asyncio.get_running_loop().add_signal_handler(number, on_signal)

    async def _until_signal(self, start: Any) -> bool:
        """Run the start unless a signal comes first. Returns whether one did."""
        starting = asyncio.create_task(start)
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return True
        starting.result()
        return False

    async def _start(self) -> None:
        plane, began = self._plane, time.monotonic()
        with self._doing("Starting the server"):
            await plane.start_server()
        self._say(f"The server is ready at {plane.url}")
        others = _named(self._plan.agents)
        with self._doing(f"Starting {others}"):
            await plane.start_others()
        with self._doing("Waiting for nodes to be ready"):
            count = await plane.nodes_ready()
        if count < self._plan.agents:
            # They may still become ready: a fenced node comes back in a new incarnation.
            self._report(
                f"only {count} of {self._plan.agents} nodes are ready so far; check `holdfast get "
                f"nodes` and the logs in {self._plan.logs}"
            )
        took_s = time.monotonic() - began
        self._say(f"{others[0].upper()}{others[1:]} are running; start took {took_s:.1f} s")
        self._invite()

    def _invite(self) -> None:
        kubeconfig = shlex.quote(str(self._plan.kubeconfig.absolute()))
        self._say(
            f"\nIn another terminal:\n"
            f"    export KUBECONFIG={kubeconfig}\n"
            f"    holdfast status                          health of all parts\n"
            f"    holdfast apply -f examples/hello.yaml    (or: kubectl apply -f …)\n"
            f"    holdfast apply -f examples/first-job.yaml\n"
            f"    holdfast get workloads,replicas,endpoints,nodes    (or: kubectl get …)\n\n"
            f"Logs are in {self._plan.logs}. Ctrl-C stops everything; the data is kept."
        )

    def _say_stopped(self) -> None:
        if self._settings.store.startswith(MEMORY):
            self._say("Stopped. No data was kept: the store was in memory.")
            return
        fence = self._settings.fence
        alone_s = fence.self_stop_after_ms / 1_000
        last_s = alone_s + (fence.grace_ms + fence.kill_bound_ms) / 1_000
        self._say(
            f"Stopped. Running work continues without the plane for {alone_s:g} s and has stopped "
            f"after {last_s:g} s, unless `holdfast up` is started again before. Work with "
            "`onDisconnect: keep` continues."
        )

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Show what is in progress while it takes its time."""
        if self._console.is_terminal:
            with self._console.status(f"{what} …"):
                yield
        else:
            self._say(f"{what} …")
            yield

    def _say(self, text: str) -> None:
        self._console.print(text)

    def _report(self, text: str) -> None:
        # The reader of the output may have gone; the caller must continue nevertheless.
        with suppress(OSError):
            self._console.print(f"{time.strftime('%H:%M:%S')} {plain(text)}")
