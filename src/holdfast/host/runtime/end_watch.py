"""Watches attempts until their end is proven, across broken connections and dead shims.

`supervisor` uses it for everything that was launched or found. The end of work is proven by its
exit record once the shim's lock is free, or, when the shim died without one, by finding that the
processes it named are gone. Nothing else is ever reported as an end.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.host.runtime import ports, survivors
from holdfast.host.runtime.attempts import AttemptFiles, AttemptFolders, exit_without_record
from holdfast.host.runtime.cgroups.groups import Cgroups
from holdfast.host.runtime.held import HeldAttempt, connect, open_line
from holdfast.host.runtime.shim_records import PROTOCOL, REBOOTED, Exit, ShimState

RETRY_MIN_S, RETRY_MAX_S = 0.01, 1.0
# How long a shim may live without accepting connections; starting and ending take milliseconds.
SILENT_MAX_S = 5.0
# How long an adopted shim may take to name its work's process.
STATUS_MAX_S = 2.0

_log = logging.getLogger(__name__)


class EndWatch:
    """See the module's docstring. One for the runtime of a node."""

    def __init__(
        self,
        attempts: AttemptFolders,
        groups: Cgroups,
        boot: str,
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._attempts, self._groups, self._boot = attempts, groups, boot
        self._in_thread = in_thread

    async def until_end(self, held: HeldAttempt) -> Exit | None:
        """Wait until it has ended. None when nothing was ever started."""
        while True:
            if held.line is not None:
                await held.line.ended
            end, is_over = await self._reach(held)
            if is_over:
                return end
            # Wait before connecting again to a shim that drops connections at once.
            await asyncio.sleep(RETRY_MIN_S)

    async def adopt(self, held: HeldAttempt) -> tuple[Exit | None, bool]:
        """Connect to the shim of an earlier agent, or find how its work ended: (end, is it over).

        Over without an end means that nothing was ever started. What is neither over nor connected
        could not be ended in time, and counts as running.
        """
        end, is_over = await self._reach(held, SILENT_MAX_S)
        if is_over or held.line is None:
            return end, is_over
        # The shim's own answer is more reliable than a file that others might have written.
        held.line.say("status")
        try:
            work = await asyncio.wait_for(asyncio.shield(held.line.work), STATUS_MAX_S)
        except TimeoutError:
            work = None
        # It may have been starting when its directory was read; by now its state is written.
        await self.learn(held)
        if held.state is not None and not held.state.is_neighbour:
            _log.warning(
                "the shim of %s uses protocol %d, this agent uses %d: its work may end at its "
                "deadline; install the version in between, and do not skip versions",
                held.attempt,
                held.state.protocol,
                PROTOCOL,
            )
        if work is not None and held.state is not None and work != held.state.work:
            _log.warning("the state file of %s names another process than its shim", held.attempt)
            held.state = msgspec.structs.replace(held.state, work=work)
        return None, False

    async def end_shim(self, held: HeldAttempt) -> None:
        """Kill a shim that does not do its duty; that closes its connection."""
        if held.state is not None:
            await self._in_thread(survivors.kill, held.state.shim, 0)

    async def _reach(
        self, held: HeldAttempt, patience_s: float = math.inf
    ) -> tuple[Exit | None, bool]:
        """Connect again, or find the end: (end, is it over)."""
        loop = asyncio.get_running_loop()
        began, pause_s = loop.time(), RETRY_MIN_S
        while True:
            seen = await self._look(held)
            if seen is None and await self._in_thread(self._end_unrecorded, held):
                return (exit_without_record(held.state) if held.state is not None else None), True
            if seen is None:
                seen = AttemptFiles(is_alive=True)
            if seen.is_alive:
                if await self._connect(held):
                    return None, False
                if loop.time() - began > SILENT_MAX_S:
                    await self.end_shim(held)
            elif seen.exit is not None:
                # The shim saw all of it end. What is still in its groups is killed now.
                if await self._in_thread(self._groups.kill, held.attempt):
                    return seen.exit, True
            elif held.state is None:
                return None, True
            else:
                end = await self._bury(held, held.state)
                if end is not None:
                    return end, True
            if loop.time() - began > 2 * patience_s:
                return None, False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _look(self, held: HeldAttempt) -> AttemptFiles | None:
        """The contents of its directory; None when there is none."""
        try:
            seen: AttemptFiles = await self._in_thread(self._attempts.look, held.attempt)
        except FileNotFoundError:
            return None
        except OSError as error:
            # An unreadable directory proves no end. Work of the agent's own user can cause this.
            _log.warning("the directory of %s cannot be read: %s", held.attempt, error)
            return AttemptFiles(is_alive=True)
        held.state, held.choices = seen.state or held.state, seen.choices
        return seen

    async def learn(self, held: HeldAttempt) -> None:
        """Read from the state file which processes the shim and its work are."""
        if held.state is None:
            await self._look(held)

    async def _connect(self, held: HeldAttempt) -> bool:
        try:
            near = await self._in_thread(connect, self._attempts, held.attempt)
        except OSError:
            # It is starting or ending, or its socket is gone.
            return False
        if not held.ports.picked_ports:
            held.ports = ports.take_back(held.choices.picked)
        held.connect(await open_line(near))
        return True

    def _end_unrecorded(self, held: HeldAttempt) -> bool:
        """End its processes after its directory is gone, which proves nothing about them."""
        if held.state is not None and held.state.boot == self._boot:
            return self._end_all(held, held.state)
        return survivors.end_unrecorded(held.attempt) and self._groups.kill(held.attempt)

    def _end_all(self, held: HeldAttempt, state: ShimState) -> bool:
        # The groups hold even processes that left their parents and dropped their variables.
        return survivors.end(held.attempt, state) and self._groups.kill(held.attempt)

    async def _bury(self, held: HeldAttempt, state: ShimState) -> Exit | None:
        """The end of work whose shim left no record; None while a process of it may still live."""
        if state.boot != self._boot:
            end = exit_without_record(state, REBOOTED)
        elif await self._in_thread(self._end_all, held, state):
            end = exit_without_record(state)
        else:
            return None
        try:
            await self._in_thread(self._attempts.record, held.attempt, end)
        except OSError as error:
            # It has ended all the same. The next agent will find that out again.
            _log.warning("the end of %s cannot be recorded: %s", held.attempt, error)
        return end
