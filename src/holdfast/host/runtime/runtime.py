"""Performs an agent's words with real processes, for the agent's shell.

    runtime = Runtime(data / "replicas", node="n1", address="10.0.0.7")
    shell = Shell(agent, identity, folder=…, performers=runtime.performers)
    await runtime.start(shell.post, shell.fail)

Effects of one replica are performed one after the other, those of different replicas side by
side; what becomes of them is posted to the machine. Stopping the runtime stops no work: the shims
hold it, and the next runtime over the same directory finds it there by `LookAround`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from holdfast.agent.words import (
    Attempt,
    Clear,
    Exited,
    Extend,
    Halt,
    Inventory,
    Item,
    Launch,
    Launched,
    LookAround,
    NotLaunched,
    Probe,
)
from holdfast.host import clock
from holdfast.host.runtime import limits_closing, records, shim_binary
from holdfast.host.runtime import ports as free_ports
from holdfast.host.runtime.attempts import Attempts, Choices
from holdfast.host.runtime.cgroups_found import find as find_groups
from holdfast.host.runtime.containers_awaited import Images
from holdfast.host.runtime.following import Following
from holdfast.host.runtime.held import Held
from holdfast.host.runtime.line import open_line
from holdfast.host.runtime.probing import Probing
from holdfast.host.runtime.starting import Options, Place, StartedBefore, start
from holdfast.host.runtime.turns import Turns
from holdfast.model.errors import HoldfastError, InvariantBroken, invariant
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import Runtime as RuntimeKind

# Starting work waits for the disk and for forks: more of it at once makes nothing faster.
THREADS_MAX = 4

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Runtime:
    """The work of one node. Lives on the event loop that it is started on."""

    def __init__(
        self,
        folder: Path,
        *,
        node: str,
        address: str = "127.0.0.1",
        isolation: str | None = None,
        options: Options | None = None,
    ) -> None:
        """`folder` is for this agent alone; `address` is where others reach the work's ports.

        `isolation` is the strongest that can be had unless one is named.
        """
        self._options = options or Options()
        self._attempts = Attempts(folder)
        self._node, self._address, self._isolation = node, address, isolation
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="runtime")
        self._images = Images(folder, self._options.images)
        self._held: dict[Attempt, Held] = {}
        # The last `Extend`, for work that is adopted after it.
        self._until_ms: int | None = None
        self._turns = Turns(self._report)
        self._place: Place | None = None
        self._post: Callable[[Any], None] = lambda stimulus: None
        self._fail: Callable[[BaseException], None] = lambda bug: None
        self._following: Following | None = None
        self._probing: Probing | None = None

    @property
    def performers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """What a shell gives to its machine's effects."""
        return {
            Launch: self._launch,
            Extend: self._extend,
            Halt: self._halt,
            Probe: self._probe,
            Clear: self._clear,
            LookAround: self._look_around,
        }

    async def start(
        self, post: Callable[[Any], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Find the shim and be ready. Unavailable when this machine cannot run work."""
        self._post, self._fail = post, fail
        program = await self._in_thread(shim_binary.find, self._isolation)
        await self._in_thread(self._attempts.prepare)
        options, boot = self._options, clock.boot_id()
        groups = await self._in_thread(find_groups, self._node, self._attempts.root, options.cgroup)
        self._place = Place(self._node, boot, program, self._attempts, groups, options)
        self._probing = Probing(self._place, self._address)
        self._following = Following(self._attempts, groups, boot, self._in_thread)

    async def stop(self) -> None:
        """Let go of everything. The work runs on, held by its shims."""
        await self._turns.cancel()
        for held in self._held.values():
            held.let_go()
        self._held.clear()
        await asyncio.to_thread(self._pool.shutdown)
        self._images.close()
        if self._place is not None:
            await asyncio.to_thread(self._place.groups.retire)

    def _limits(self, held: Held) -> dict[str, str]:
        """What is really enforced on this work."""
        program = self._ready().program
        proc = "own" if program.has_own_proc else "host"
        return {**held.choices.limits, "isolation": program.isolation, "proc": proc}

    def _ready(self) -> Place:
        if self._place is None:
            raise InvariantBroken("the runtime was not started")
        return self._place

    def _report(self, bug: BaseException) -> None:
        # Whoever hears of bugs is known only from `start` on.
        self._fail(bug)

    async def _in_thread(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    # Effects -------------------------------------------------------------------------------------

    def _launch(self, effect: Launch) -> None:
        held = Held(effect.attempt, self._ready().boot)
        invariant(effect.attempt not in self._held, f"{effect.attempt} was launched before")
        self._held[effect.attempt] = held
        self._turns.follow(effect.attempt.uid, self._start(effect, held))

    def _extend(self, effect: Extend) -> None:
        self._until_ms = effect.deadline_ms
        for held in self._held.values():
            held.extend(effect.deadline_ms)

    def _halt(self, effect: Halt) -> None:
        self._turns.follow(effect.attempt.uid, self._stop(effect))

    def _probe(self, effect: Probe) -> None:
        self._turns.begin(self._ask(effect))

    async def _ask(self, effect: Probe) -> None:
        if self._probing is None:
            raise InvariantBroken("the runtime was not started")
        self._post(await self._probing.ask(effect, self._held.get(effect.attempt)))

    def _clear(self, effect: Clear) -> None:
        self._turns.follow(effect.uid, self._remove(effect.uid))

    def _look_around(self, effect: LookAround) -> None:
        self._turns.begin(self._take_stock(self._turns.pending()))

    async def _start(self, effect: Launch, held: Held) -> None:
        place = self._ready()
        try:
            held.ports = free_ports.choose(effect.template.ports)
            addresses = held.ports.addresses(self._address)
            held.choices = _choices(effect, addresses, held.ports.picked)
            image = await self._images.of(effect.template, place.groups)
            numbers, choices = held.ports.numbers, held.choices
            near = await self._in_thread(start, effect, place, numbers, choices, image)
        except StartedBefore:
            del self._held[effect.attempt]
            held.let_go()
            await self._take_over(effect.attempt)
            return
        except (HoldfastError, OSError) as error:
            del self._held[effect.attempt]
            held.let_go()
            reason = f"NotStarted: {_sentence(error)}"
            self._post(NotLaunched(effect.attempt, Process(reason=reason)))
            return
        held.connect(await open_line(near))
        self._turns.begin(self._watch(held))

    async def _take_over(self, attempt: Attempt) -> None:
        """To say that it does not run would be a lie on which a second copy could be started."""
        held, ended = await self._find(attempt)
        if ended is None or ended.started_at is not None:
            self._post(Launched(attempt, held.process))
        if ended is not None:
            kind = Exited if ended.started_at is not None else NotLaunched
            self._post(kind(attempt, ended))

    async def _watch(self, held: Held) -> None:
        """Tell the agent when it begins and when it has ended."""
        following, line = self._follow(), held.line
        if line is not None and not held.is_known and await line.begun:
            await following.learn(held)
            self._tell_launched(held)
        end = await self._closed(held.attempt, await following.until_end(held))
        failure = held.line.failure if held.line is not None else None
        del self._held[held.attempt]
        held.is_over.set()
        held.let_go()
        if end is None or (not end.is_started and not held.is_known):
            process = records.ended(end) if end is not None else _never(failure)
            self._post(NotLaunched(held.attempt, process))
            return
        if not held.is_known:
            # It was over before we heard of its beginning.
            await following.learn(held)
            self._tell_launched(held)
        self._post(Exited(held.attempt, records.ended(end)))

    async def _closed(self, attempt: Attempt, end: records.Exit | None) -> records.Exit | None:
        groups = self._ready().groups
        return await self._in_thread(limits_closing.close, groups, self._attempts, attempt, end)

    def _tell_launched(self, held: Held) -> None:
        held.is_known = True
        held.process = self._process(held)
        self._post(Launched(held.attempt, held.process))

    def _process(self, held: Held) -> Process:
        if held.state is None:
            return Process(limits=self._limits(held), addresses=held.choices.addresses)
        return records.running(held.state, self._limits(held), held.choices.addresses)

    def _follow(self) -> Following:
        if self._following is None:
            raise InvariantBroken("the runtime was not started")
        return self._following

    async def _stop(self, effect: Halt) -> None:
        held = self._held.get(effect.attempt)
        if held is None:
            held, ended = await self._find(effect.attempt)
            if ended is not None:
                self._post(Exited(effect.attempt, ended))
                return
        held.stop(effect.grace_ms)
        self._turns.begin(self._see_to_it(held, held.overdue_in_s()))

    async def _see_to_it(self, held: Held, overdue_s: float) -> None:
        """A shim that is itself stopped or stuck is ended, and its work with it."""
        try:
            await asyncio.wait_for(held.is_over.wait(), overdue_s)
        except TimeoutError:
            await self._follow().end_shim(held)

    async def _remove(self, uid: str) -> None:
        running = [attempt for attempt in self._held if attempt.uid == uid]
        invariant(not running, f"{running} was to be cleared away and runs")
        try:
            await self._in_thread(self._attempts.clear, uid)
        except OSError as error:
            # What is left is found by the next LookAround, which asks for this again.
            _log.warning("replica %s cannot be cleared away: %s", uid, error)

    # Looking around ------------------------------------------------------------------------------

    async def _take_stock(self, before: tuple[asyncio.Task[None], ...]) -> None:
        if before:
            await asyncio.wait(before)
        items = []
        for uid in await self._in_thread(self._attempts.uids):
            item = await self._latest(uid)
            if item is not None:
                items.append(item)
        groups = self._ready().groups
        await self._in_thread(limits_closing.sweep, groups, self._attempts, frozenset(self._held))
        self._post(Inventory(tuple(items)))

    async def _latest(self, uid: str) -> Item | None:
        """The latest attempt that ever began."""
        for number in await self._in_thread(self._attempts.numbers, uid):
            attempt = Attempt(uid, number)
            held, ended = self._held.get(attempt), None
            if held is None:
                held, ended = await self._find(attempt)
            if ended is not _NOTHING:
                whose = held.choices
                process = held.process if ended is None else ended
                return Item(attempt, process, ended is None, whose.namespace, whose.name)
        return None

    async def _find(self, attempt: Attempt) -> tuple[Held, Process | None]:
        """Work of an earlier agent: adopted when it runs, else also how it ended."""
        held = Held(attempt, self._ready().boot)
        if self._until_ms is not None:
            held.extend(self._until_ms)
        end, is_over = await self._follow().adopt(held)
        if is_over:
            end = await self._closed(attempt, end)
            return held, records.ended(end) if end is not None else _NOTHING
        held.is_known = True
        held.process = self._process(held)
        self._held[attempt] = held
        self._turns.begin(self._watch(held))
        return held, None


def _choices(of: Launch, addresses: dict[str, str], picked: tuple[str, ...]) -> Choices:
    template = of.template
    return Choices(
        of.namespace,
        of.name,
        addresses,
        picked,
        user=template.user,
        working_dir=template.working_dir,
        is_boxed=template.runtime is RuntimeKind.CONTAINER,
    )


_NOTHING = Process(reason="NotStarted: nothing of this attempt is here")


def _never(failure: tuple[int, str] | None) -> Process:
    if failure is None:
        return Process(reason="NotStarted: its shim ended before it had begun anything")
    error, step = failure
    return Process(reason=f"NotStarted: its shim failed at {step}: {os.strerror(error).lower()}")


def _sentence(error: Exception) -> str:
    """What went wrong, without the paths of this machine."""
    if isinstance(error, OSError) and error.errno is not None:
        return f"its directory cannot be prepared: {os.strerror(error.errno).lower()}"
    return str(error)
