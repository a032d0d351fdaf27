"""Supervises running attempts, each from its start or its adoption to its proven end.

Made by `runtime` when it starts; `starting` comes before it, `end_watch` proves the ends. What
becomes of the work is posted to the agent. An attempt is held here exactly as long as it runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.agent.runtime_protocol import (
    DISK_EXCEEDED,
    DISK_PRESSURE,
    OPENING_MS,
    Attempt,
    Exited,
    Inventory,
    Item,
    Launched,
    NotLaunched,
    PortsOpened,
    Sampled,
)
from holdfast.host.runtime import listeners, shim_records, survivors
from holdfast.host.runtime.cgroups import disk, oom, removal
from holdfast.host.runtime.cgroups import groups as cgroups
from holdfast.host.runtime.cgroups.limits import CPU, MEMORY
from holdfast.host.runtime.cgroups.samples import EVERY_S, Sampler
from holdfast.host.runtime.containers import containers
from holdfast.host.runtime.end_watch import EndWatch
from holdfast.host.runtime.held import HeldAttempt
from holdfast.host.runtime.job_queue import DiskThreads, JobQueue
from holdfast.host.runtime.starting import StartContext
from holdfast.model.kinds.replica import Process
from holdfast.model.quantity import Resource, render

# How long runc may take to make a container on a busy machine before it counts as running anyway.
MADE_S, MADE_LOOK_S = 10.0, 0.02

# `Process.reason` begins with this when another user listens on a port of the work.
PORT_TAKEN = "PortTaken"
# The longest time for which an address may lead to another user. A check takes less than 1 ms.
PORTS_LOOK_S = 0.5
# Work is not ready before it has opened its ports, so work that has just begun is checked more
# often.
OPENING_S, OPENING_LOOK_S = OPENING_MS / 1000, 0.05
# How long the disk guard waits for the end of work before it looks for more to end.
ENDED_S = 10.0

_log = logging.getLogger(__name__)

InThread = Callable[..., Awaitable[Any]]


class Supervisor:
    """All work that runs on one node, as this agent process knows it."""

    def __init__(
        self,
        place: StartContext,
        jobs: JobQueue,
        disk_threads: DiskThreads,
        post: Callable[[Any], None],
        in_thread: InThread,
    ) -> None:
        self._place, self._jobs, self._disk_threads = place, jobs, disk_threads
        self._post, self._in_thread = post, in_thread
        self.held: dict[Attempt, HeldAttempt] = {}
        # The last `Extend`, for work that is adopted after it.
        self._until_ms: int | None = None
        # Work that is about to open its ports; the event is set when there is more of it.
        self._opening: list[HeldAttempt] = []
        self._has_begun = asyncio.Event()
        self._end_watch = EndWatch(place.attempts, place.groups, place.boot, in_thread)

    def extend(self, deadline_ms: int) -> None:
        """Let all work run until then, also work that is adopted later."""
        self._until_ms = deadline_ms
        for held in self.held.values():
            held.extend(deadline_ms)

    def let_go(self) -> None:
        """Leave all work to its shims."""
        for held in self.held.values():
            held.let_go()
        self.held.clear()

    async def watch(self, held: HeldAttempt) -> None:
        """Report to the agent when the attempt begins and when it has ended."""
        line = held.line
        if line is not None and not held.is_known and await line.begun:
            await self._end_watch.learn(held)
            await self._until_entered(held)
            await self._set_oom(held)
            if not held.choices.ports_by_name or await self._are_own_ports(held):
                self._tell_launched(held)
        if held.choices.disk_bytes:
            self._jobs.begin(self._mind_disk(held))
        end = await self._closed(held, await self._end_watch.until_end(held))
        failure = held.line.failure if held.line is not None else None
        del self.held[held.attempt]
        held.is_over.set()
        held.let_go()
        if end is None or (not end.is_started and not held.is_known):
            process = shim_records.ended_process(end) if end is not None else _never(failure)
            self._post(NotLaunched(held.attempt, process))
            return
        if not held.is_known:
            # It ended before the shim reported its beginning.
            await self._end_watch.learn(held)
            self._tell_launched(held)
        self._post(Exited(held.attempt, shim_records.ended_process(end)))

    async def mind_ports(self) -> None:
        """Report which work has opened its ports, and end work if another user listens on its port:
        the address of work must never lead to another user.
        """
        clock, all_s = asyncio.get_running_loop(), 0.0
        while True:
            self._has_begun.clear()
            now_s = clock.time()
            self._opening = [it for it in self._opening if _is_opening(it, now_s)]
            watched = self._opening
            if now_s >= all_s:
                all_s = now_s + PORTS_LOOK_S
                watched = [held for held in self.held.values() if held.choices.ports_by_name]
            if watched:
                await self._are_own_ports(*watched)
            if self._opening:
                await asyncio.sleep(min(OPENING_LOOK_S, PORTS_LOOK_S))
                continue
            # `wait_for` may lose a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(PORTS_LOOK_S):
                    await self._has_begun.wait()

    async def _are_own_ports(self, *watched: HeldAttempt) -> bool:
        """Whether no address of the work leads to another user's listener; if one does, end it."""
        try:
            ports = frozenset(port for held in watched for port in held.choices.listens)
            known = await self._in_thread(listeners.look, self._place.address, ports)
        except OSError as error:
            # It worked when the agent started, and is retried soon.
            _log.warning("cannot list the listeners of this node and their users: %s", error)
            return True
        is_own = True
        for held in watched:
            user = held.choices.uid
            taken = known.foreign(held.choices.listens, user) if user is not None else ""
            if taken and not held.stopped_for:
                _log.warning("another user listens on %s of %s", taken, held.attempt)
                held.stopped_for = f"{PORT_TAKEN}: {taken} is used by other work of this node"
                held.stop(0)
            is_own = is_own and not taken
            if user is not None and not held.stopped_for:
                self._note_opened(held, known, user)
        return is_own

    def _note_opened(self, held: HeldAttempt, known: listeners.Listeners, user: int) -> None:
        ports = held.choices.ports_by_name
        opened = [it for it in held.unopened_ports if known.is_own(ports[it], user)]
        held.opened.update(opened)
        if opened and held.is_known:
            self._post(PortsOpened(held.attempt, held.unopened_ports))

    async def _mind_disk(self, held: HeldAttempt) -> None:
        """End the attempt when it exceeds its disk limit."""
        most, tenant = held.choices.disk_bytes, held.choices.namespace
        while not held.is_over.is_set():
            used, took_s = await self._disk_threads.run(tenant, self._disk_use, held, most)
            if used.is_beyond(most):
                _log.warning("%s exceeds its disk limit and is ended", held.attempt)
                held.stopped_for = DISK_EXCEEDED
                held.stop(0)
                return
            with suppress(TimeoutError):
                count = sum(it.choices.namespace == tenant for it in self.held.values())
                pause_s = max(disk.LOOK_S, disk.REST * took_s * count)
                await asyncio.wait_for(held.is_over.wait(), pause_s)

    async def mind_space(self) -> None:
        """Keep room on the disk, also where work has no limit of its own.

        Work within what is set aside for it is never ended: then something else fills the disk.
        """
        root, before = self._place.attempts.root, disk.DiskShortage.NOTHING
        while True:
            lack: disk.DiskShortage = await self._in_thread(disk.lack, root)
            found = await self._largest(lack) if lack is not disk.DiskShortage.NOTHING else None
            if found is not None:
                held, used = found
                held.stopped_for = _pressed(lack, used, held.choices.disk_aside_bytes)
                _log.warning("%s is ended: %s", held.attempt, held.stopped_for)
                held.stop(0)
                # `wait_for` may lose a cancellation that comes together with the end.
                with suppress(TimeoutError):
                    async with asyncio.timeout(ENDED_S):
                        await held.is_over.wait()
            elif lack not in (before, disk.DiskShortage.NOTHING):
                _log.warning("the disk below %s lacks %s, not because of work", root, lack.value)
            before = lack
            await asyncio.sleep(disk.SPACE_LOOK_S)

    async def _largest(self, lack: disk.DiskShortage) -> tuple[HeldAttempt, disk.Use] | None:
        """The attempt that exceeds what is set aside for it on the disk by the most."""
        running = [it for it in self.held.values() if it.state is not None and not it.stopped_for]
        looks = (self._disk_threads.run(it.choices.namespace, self._disk_use, it) for it in running)
        found = []
        for held, (used, _) in zip(running, await asyncio.gather(*looks), strict=True):
            found.append((used.excess(lack, held.choices.disk_aside_bytes), held, used))
        excess, largest, its = max(found, key=lambda it: it[0], default=(0, None, disk.Use()))
        return (largest, its) if largest is not None and excess > 0 else None

    def _disk_use(self, held: HeldAttempt, enough: int = disk.UNBOUNDED) -> tuple[disk.Use, float]:
        """What the attempt has on the disk, and how many seconds the measurement took."""
        attempt, began_s = held.attempt, time.monotonic()
        folder = self._place.attempts.root / attempt.uid / str(attempt.number)
        return disk.use(folder, self._processes(held), enough), time.monotonic() - began_s

    def _processes(self, held: HeldAttempt) -> list[int]:
        """The processes of an attempt, as far as they are visible."""
        groups = self._place.groups
        found = groups.processes(held.attempt) if groups.controllers else []
        if not found and held.state is not None:
            found = survivors.descendants(held.state.shim.pid)
        return found

    async def _until_entered(self, held: HeldAttempt) -> None:
        """Wait until a container's program runs: a container in the making is not probed."""
        line, state = held.line, held.state
        if not held.choices.is_boxed or state is None or line is None:
            return
        until_s = asyncio.get_running_loop().time() + MADE_S
        asked = (state.work.pid, cgroups.name(held.attempt), held.choices.oci_runtime)
        while not line.ended.done() and asyncio.get_running_loop().time() < until_s:
            if await self._in_thread(containers.has_begun, *asked):
                return
            await asyncio.sleep(MADE_LOOK_S)

    async def sample_for_ever(self) -> None:
        """Tell the agent every few seconds what the work uses."""
        groups = self._place.groups
        sampler = Sampler(
            groups.seat(MEMORY),
            groups.seat(CPU),
            lambda attempt: self._processes(self.held[attempt]) if attempt in self.held else (),
        )
        while True:
            attempts = [it for it, held in self.held.items() if held.is_known]
            now_ms = int(asyncio.get_running_loop().time() * 1_000)
            self._post(Sampled(await self._in_thread(sampler.sample, attempts, now_ms)))
            await asyncio.sleep(EVERY_S)

    async def _set_oom(self, held: HeldAttempt) -> None:
        """Tell the kernel how early to kill it when memory is short. The shim keeps its own value:
        it holds the deadline.
        """
        shim = held.state.shim.pid if held.state is not None else 0
        score = held.choices.oom_score
        if score is not None:
            held.oom = await self._in_thread(
                oom.adjust, lambda: [pid for pid in self._processes(held) if pid != shim], score
            )

    async def take_over(self, attempt: Attempt) -> None:
        """Hold an attempt that may run: to report that it does not could start a second copy."""
        held, ended = await self.find(attempt)
        if ended is None or ended.started_at is not None:
            self._post(Launched(attempt, held.process, held.unopened_ports))
        if ended is not None:
            kind = Exited if ended.started_at is not None else NotLaunched
            self._post(kind(attempt, ended))

    async def end_shim(self, held: HeldAttempt) -> None:
        """Kill a shim that does not do its duty, and its work with it."""
        await self._end_watch.end_shim(held)

    async def _closed(
        self, held: HeldAttempt, end: shim_records.Exit | None
    ) -> shim_records.Exit | None:
        groups, attempts = self._place.groups, self._place.attempts
        what = (groups, attempts, held.attempt, end, held.stopped_for)
        closed: shim_records.Exit | None
        if held.stopped_for:
            # What it has on the disk may be removed.
            lane = held.choices.namespace
            closed = await self._disk_threads.run(lane, removal.close, *what)
        else:
            closed = await self._in_thread(removal.close, *what)
        if self._place.secret_files is not None:
            await self._in_thread(self._place.secret_files.remove, held.attempt)
        return closed

    def _tell_launched(self, held: HeldAttempt) -> None:
        self._now_known(held)
        self._post(Launched(held.attempt, held.process, held.unopened_ports))

    def _now_known(self, held: HeldAttempt) -> None:
        held.is_known, held.known_s = True, asyncio.get_running_loop().time()
        held.process = self._process(held)
        if held.unopened_ports:
            self._opening.append(held)
            self._has_begun.set()

    def _process(self, held: HeldAttempt) -> Process:
        if held.state is None:
            return Process(limits=self._limits(held), addresses=held.choices.addresses)
        return shim_records.running_process(held.state, self._limits(held), held.choices.addresses)

    def _limits(self, held: HeldAttempt) -> dict[str, str]:
        """The limits that are actually enforced on this work."""
        program = self._place.program
        proc = "own" if program.has_own_proc else "host"
        user = {"user": held.choices.runs_as} if held.choices.runs_as else {}
        killed = {"oom": held.oom} if held.oom else {}
        return {
            **held.choices.limits,
            **killed,
            **user,
            "isolation": program.isolation,
            "proc": proc,
        }

    # Looking around ------------------------------------------------------------------------------

    async def take_stock(self, before: tuple[asyncio.Task[None], ...]) -> None:
        """Report all attempts that are here, once all earlier jobs are done."""
        if before:
            await asyncio.wait(before)
        await self._end_strays()
        items = []
        for uid in await self._in_thread(self._place.attempts.uids):
            item = await self._latest(uid)
            if item is not None:
                items.append(item)
        groups = self._place.groups
        await self._in_thread(removal.sweep, groups, self._place.attempts, frozenset(self.held))
        if self._place.secret_files is not None:
            known = (self._place.attempts, frozenset(self.held))
            await self._in_thread(self._place.secret_files.sweep, *known)
        self._post(Inventory(await self._with_ports(items)))

    async def _with_ports(self, items: list[Item]) -> tuple[Item, ...]:
        """The attempts with their open ports checked: a published port stays so across agents."""
        opening = [it for it in self.held.values() if it.unopened_ports]
        if opening:
            await self._are_own_ports(*opening)
        unopened = {it.attempt: it.unopened_ports for it in self.held.values()}
        return tuple(
            msgspec.structs.replace(it, unopened=unopened.get(it.attempt, ())) for it in items
        )

    async def _end_strays(self) -> None:
        """End work of this agent whose directory is gone: nothing could stop it later.

        To take it for never started could start a second copy.
        """
        place = self._place
        for attempt in await self._in_thread(_strays, place, frozenset(self.held)):
            _log.warning("%s runs without its directory and is ended", attempt)
            held, _ = await self.find(attempt)
            if held.attempt in self.held:
                await held.is_over.wait()

    async def _latest(self, uid: str) -> Item | None:
        """The latest attempt that ever began."""
        for number in await self._in_thread(self._place.attempts.numbers, uid):
            attempt = Attempt(uid, number)
            held, ended = self.held.get(attempt), None
            if held is None:
                held, ended = await self.find(attempt)
            if ended is not _NOTHING:
                whose = held.choices
                process = held.process if ended is None else ended
                return Item(
                    attempt, process, ended is None, whose.namespace, whose.name, whose.grace_ms
                )
        return None

    async def find(self, attempt: Attempt) -> tuple[HeldAttempt, Process | None]:
        """Work of an earlier agent: adopted if it runs, else with how it ended."""
        held = HeldAttempt(attempt, self._place.boot)
        if self._until_ms is not None:
            held.extend(self._until_ms)
        end, is_over = await self._end_watch.adopt(held)
        if is_over:
            end = await self._closed(held, end)
            return held, shim_records.ended_process(end) if end is not None else _NOTHING
        await self._set_oom(held)
        self._now_known(held)
        self.held[attempt] = held
        self._jobs.begin(self.watch(held))
        return held, None


def _pressed(lack: disk.DiskShortage, used: disk.Use, aside: int) -> str:
    """The reason for ending work because the disk of its node runs low."""
    size = "more than can be measured"
    if used.bytes < disk.UNBOUNDED:
        size = f"{used.bytes >> 20}Mi in {used.entries} files"
    return (
        f"{DISK_PRESSURE}: the node's disk runs out of {lack.value}, and this work has {size} on "
        f"it with {render(Resource.DISK, aside)} set aside; state what it needs in resources.disk"
    )


def _is_opening(held: HeldAttempt, now_s: float) -> bool:
    is_new = now_s < held.known_s + OPENING_S
    return is_new and not held.is_over.is_set() and bool(held.unopened_ports)


def _strays(place: StartContext, held: Container[Attempt]) -> list[Attempt]:
    """Attempts without a directory of which a process runs, in a group or elsewhere."""
    running = [it for it in place.groups.attempts() if place.groups.is_used(it)]
    running += survivors.attempts_below(place.attempts.root)
    return [it for it in dict.fromkeys(running) if it not in held and not place.attempts.has(it)]


_NOTHING = Process(reason="NotStarted: the node has nothing of this attempt")


def _never(failure: tuple[int, str] | None) -> Process:
    if failure is None:
        return Process(reason="NotStarted: its shim ended before it started the work")
    error, step = failure
    return Process(reason=f"NotStarted: its shim failed at {step}: {os.strerror(error).lower()}")
