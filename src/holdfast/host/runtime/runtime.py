"""Performs an agent's effects with real processes, for the agent's shell.

    runtime = NodeRuntime(data / "replicas", node="n1", address="10.0.0.7")
    shell = Shell(agent, identity, folder=…, performers=runtime.performers)
    await runtime.start(shell.post, shell.fail)

Effects of one replica are performed in order, those of different replicas concurrently; results are
posted to the machine. Stopping the runtime stops no work: the shims hold it, and the next runtime
over the same directory finds it there by `LookAround`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, assert_never, get_args

from holdfast.agent.runtime_protocol import (
    Attempt,
    Clear,
    Exited,
    Extend,
    Halt,
    Launch,
    LookAround,
    NotLaunched,
    RunProbe,
    RuntimeEffect,
)
from holdfast.host.process import clock
from holdfast.host.runtime import ports as free_ports
from holdfast.host.runtime import safe_paths, secret_files, shim_binary
from holdfast.host.runtime.attempts import AttemptFolders, Choices
from holdfast.host.runtime.cgroups.detect import find as find_groups
from holdfast.host.runtime.cgroups.limits import oom_score
from holdfast.host.runtime.confinement import confinement
from holdfast.host.runtime.containers.image_waits import Images
from holdfast.host.runtime.held import HeldAttempt, open_line
from holdfast.host.runtime.job_queue import DiskThreads, JobQueue
from holdfast.host.runtime.logs.ended import EndedLogs
from holdfast.host.runtime.probing import Probing
from holdfast.host.runtime.service_tokens import FetchToken, TokenFiles
from holdfast.host.runtime.starting import RuntimeOptions, StartContext, StartedBefore, start
from holdfast.host.runtime.supervisor import Supervisor
from holdfast.model.errors import HoldfastError, InvariantBroken, Unavailable, invariant
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import Runtime as RuntimeKind

# Starting work waits for the disk and for forks: more starts at once would not be faster.
THREADS_MAX = 4
# No tenant has this name. Nothing waits for the jobs that run under it.
_NOBODY = ""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class NodeRuntime:
    """The work of one node. Lives on the event loop that it is started on."""

    def __init__(
        self,
        folder: Path,
        *,
        node: str,
        address: str = "127.0.0.1",
        isolation: str | None = None,
        options: RuntimeOptions | None = None,
        fetch_token: FetchToken | None = None,
    ) -> None:
        """`folder` is for this agent alone; `address` is where others reach the work's ports.

        `isolation` is the strongest available unless one is named. `fetch_token` gets the service
        tokens of replicas from the servers.
        """
        self._options = options or RuntimeOptions()
        self._attempts = AttemptFolders(folder)
        self.ended_logs = EndedLogs(self._attempts)
        self._node, self._address, self._isolation = node, address, isolation
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="runtime")
        told = self._options
        self._images = Images(folder, told.images, told.tenant_images_bytes)
        self._jobs, self._disk_threads = JobQueue(self._report), DiskThreads()
        self._tokens = TokenFiles(self._attempts, fetch_token, self._in_thread)
        self._place: StartContext | None = None
        self._post: Callable[[Any], None] = lambda stimulus: None
        self._fail: Callable[[BaseException], None] = lambda bug: None
        self._started: Supervisor | None = None
        self._probing: Probing | None = None

    @property
    def performers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """The function for each effect that the machine's shell calls."""
        return dict.fromkeys(get_args(RuntimeEffect), self._perform)

    async def start(
        self, post: Callable[[Any], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Find the shim and prepare. Raises Unavailable when this machine cannot run work."""
        self._post, self._fail = post, fail
        await self._in_thread(safe_paths.check)
        program = await self._in_thread(shim_binary.find, self._isolation)
        await self._in_thread(self._attempts.prepare)
        options, boot = self._options, clock.boot_id()
        groups = await self._in_thread(find_groups, self._node, self._attempts.root, options.cgroup)
        confined = await self._in_thread(confinement, options.rules, program, self._attempts)
        kept = await self._in_thread(secret_files.find, self._attempts.root)
        place = (self._node, boot, program, self._attempts, groups, options, confined)
        self._place = StartContext(*place, self._address, kept)
        self._tokens.kept = kept
        self._probing = Probing(self._place, self._address)
        self._started = Supervisor(
            self._place, self._jobs, self._disk_threads, post, self._in_thread
        )
        self._jobs.begin(self._started.mind_ports())
        self._jobs.begin(self._started.mind_space())
        self._jobs.begin(self._started.sample_for_ever())
        self._jobs.begin(self._tokens.renew_for_ever(self._started.held))
        self._jobs.begin(self._images.sweep_for_ever())

    def refresh_tokens(self) -> None:
        """Replace the service tokens of all work soon."""
        self._tokens.refresh()

    async def stop(self) -> None:
        """Release everything. The work runs on, held by its shims."""
        await self._jobs.cancel()
        if self._started is not None:
            self._started.let_go()
        await asyncio.to_thread(self._pool.shutdown)
        await asyncio.to_thread(self._disk_threads.close)
        self._images.close()
        if self._place is not None:
            await asyncio.to_thread(self._place.groups.retire)
            if self._place.secret_files is not None:
                await asyncio.to_thread(self._place.secret_files.retire)

    def _ready(self) -> StartContext:
        if self._place is None:
            raise InvariantBroken("the runtime was not started")
        return self._place

    @property
    def place(self) -> StartContext:
        """What every start on this node needs. Only after `start`."""
        return self._ready()

    def running_attempt(self, attempt: Attempt) -> HeldAttempt | None:
        """A running attempt, for logs and commands."""
        return self._supervisor.held.get(attempt)

    @property
    def _supervisor(self) -> Supervisor:
        if self._started is None:
            raise InvariantBroken("the runtime was not started")
        return self._started

    def _report(self, bug: BaseException) -> None:
        # The function that takes bugs is known only from `start` on.
        self._fail(bug)

    async def _in_thread(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    # Effects -------------------------------------------------------------------------------------

    def _perform(self, effect: RuntimeEffect) -> None:
        match effect:
            case Launch():
                self._launch(effect)
            case Extend():
                self._extend(effect)
            case Halt():
                self._halt(effect)
            case RunProbe():
                self._probe(effect)
            case Clear():
                self._clear(effect)
            case LookAround():
                self._look_around(effect)
            case _:
                assert_never(effect)

    def _launch(self, effect: Launch) -> None:
        held = HeldAttempt(effect.attempt, self._ready().boot)
        invariant(
            effect.attempt not in self._supervisor.held, f"{effect.attempt} was launched before"
        )
        self._supervisor.held[effect.attempt] = held
        self._jobs.follow(effect.attempt.uid, self._start(effect, held))

    def _extend(self, effect: Extend) -> None:
        self._supervisor.extend(effect.deadline_ms)

    def _halt(self, effect: Halt) -> None:
        self._jobs.follow(effect.attempt.uid, self._stop(effect))

    def _probe(self, effect: RunProbe) -> None:
        self._jobs.begin(self._ask(effect))

    async def _ask(self, effect: RunProbe) -> None:
        if self._probing is None:
            raise InvariantBroken("the runtime was not started")
        self._post(await self._probing.ask(effect, self._supervisor.held.get(effect.attempt)))

    def _clear(self, effect: Clear) -> None:
        self._jobs.follow(effect.uid, self._remove(effect.uid))

    def _look_around(self, effect: LookAround) -> None:
        self._jobs.begin(self._supervisor.take_stock(self._jobs.pending()))

    async def _start(self, effect: Launch, held: HeldAttempt) -> None:
        place = self._ready()
        try:
            self._check_alone(effect)
            held.ports = free_ports.choose(effect.template.ports)
            addresses = held.ports.addresses(self._address)
            held.choices = _choices(effect, addresses, held.ports)
            image = await self._images.of(effect, place)
            effect = await self._tokens.with_first(effect)
            numbers, choices = held.ports.numbers, held.choices
            words = (effect, place, numbers, choices, image)
            if effect.attempt.number:
                # Files that earlier attempts left on the disk are removed first.
                near = await self._disk_threads.run(effect.namespace, start, *words)
            else:
                near = await self._in_thread(start, *words)
        except StartedBefore:
            del self._supervisor.held[effect.attempt]
            held.let_go()
            await self._supervisor.take_over(effect.attempt)
            return
        except (HoldfastError, OSError) as error:
            del self._supervisor.held[effect.attempt]
            held.let_go()
            reason = f"NotStarted: {_sentence(error)}"
            self._post(NotLaunched(effect.attempt, Process(reason=reason)))
            return
        held.connect(await open_line(near))
        self._jobs.begin(self._supervisor.watch(held))

    def _check_alone(self, effect: Launch) -> None:
        """Refuse a second tenant's work where all work has one user, whatever is bound here."""
        if self._ready().has_users:
            return
        known = (held.choices.namespace for held in self._supervisor.held.values())
        if any(it not in ("", effect.namespace) for it in known):
            raise Unavailable(
                "this node does not isolate tenants, and work of another tenant runs on it"
            )

    async def _stop(self, effect: Halt) -> None:
        held = self._supervisor.held.get(effect.attempt)
        if held is None:
            held, ended = await self._supervisor.find(effect.attempt)
            if ended is not None:
                self._post(Exited(effect.attempt, ended))
                return
        held.stop(effect.grace_ms)
        self._jobs.begin(self._see_to_it(held, held.overdue_in_s()))

    async def _see_to_it(self, held: HeldAttempt, overdue_s: float) -> None:
        """End a shim that is stopped or stuck, and its work with it."""
        try:
            await asyncio.wait_for(held.is_over.wait(), overdue_s)
        except TimeoutError:
            await self._supervisor.end_shim(held)

    async def _remove(self, uid: str) -> None:
        running = [attempt for attempt in self._supervisor.held if attempt.uid == uid]
        invariant(not running, f"{running} was to be removed and still runs")
        try:
            await self._in_thread(self.ended_logs.keep, uid)
        except OSError as error:
            # Logs are worth less than the room that the rest takes.
            _log.warning("the logs of replica %s cannot be kept: %s", uid, error)
        try:
            await self._disk_threads.run(_NOBODY, self._attempts.clear, uid)
        except OSError as error:
            # The next LookAround finds what is left, and the agent asks for this again.
            _log.warning("the files of replica %s cannot be removed: %s", uid, error)


def _choices(of: Launch, addresses: dict[str, str], ports: free_ports.Ports) -> Choices:
    template = of.template
    listens = (f"{it.protocol.value}/{ports.numbers[it.name]}" for it in template.ports)
    return Choices(
        of.namespace,
        of.name,
        addresses,
        ports.picked_ports,
        listens=tuple(listens),
        user=template.user,
        working_dir=template.working_dir,
        is_boxed=template.runtime is RuntimeKind.CONTAINER,
        grace_ms=of.grace_ms,
        token_file=template.service_token.file if template.service_token is not None else "",
        oom_score=oom_score(template, _machine_bytes()),
    )


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _sentence(error: Exception) -> str:
    """The error as a message, without the paths of this machine."""
    if isinstance(error, OSError) and error.errno is not None:
        return f"its directory cannot be prepared: {os.strerror(error.errno).lower()}"
    return str(error)
