"""The production shell of a machine: it feeds it stimuli and performs its effects.

A server, a scheduler or an agent is a machine in a shell. Stimuli wait in one queue and are handled
one by one; the effects of a step are performed strictly in order before the next step, and
`Persist` is on disk before the effect after it. Calls then run concurrently (`pending_calls`),
watches of the store and streams of others deliver one item at a time (`store_watches`,
`opened_streams`), wake-ups use CLOCK_BOOTTIME (`Alarms`). The simulator performs the same effects
in `sim/lives` with the same machines.

A machine that raises has found a bug of ours. The shell stops, waiting callers get OutcomeUnknown,
and `wait` and `stop` raise the exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, assert_never

import msgspec

from holdfast.host.process import clock
from holdfast.host.process.clock import monotonic_ms
from holdfast.host.process.files import PersistedFiles
from holdfast.host.process.opened_streams import NoSources, OpenedStream, OpenedStreams, Sources
from holdfast.host.process.peers import NoPeers, Peers
from holdfast.host.process.pending_calls import PendingCalls
from holdfast.host.process.pending_requests import PendingRequest, PendingRequests
from holdfast.host.process.served_streams import ServedStream, ServedStreams
from holdfast.host.process.store_watches import StoreWatch, StoreWatches
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError, InvariantBroken, invariant, unexpected
from holdfast.model.machine import (
    Answer,
    ArchiveRecord,
    Ask,
    Effect,
    End,
    FateOf,
    Leave,
    Machine,
    Open,
    Persist,
    Push,
    Range,
    Started,
    Stimulus,
    Txn,
    Unwatch,
    Wake,
    Watch,
    Woken,
)
from holdfast.store.contract import Store

# Wake-ups on CLOCK_BOOTTIME, for the shell of one machine.
#
# The event loop's own timers stop while the computer is suspended, and would be late by that time.
# A timerfd on CLOCK_BOOTTIME is due the moment the computer resumes. Python supports it only from
# 3.13 on, so it is called through the C library here.

_CLOCK_BOOTTIME = 7
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Alarms:
    """Named wake-ups. Setting one again replaces it."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        self._ring = ring
        self._numbers = itertools.count()
        # Name -> number of the valid entry; replaced ones stay in the heap until they are due.
        self._current: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._armed_ms: int | None = None
        self._loop = asyncio.get_running_loop()
        self._fd = _checked(_libc.timerfd_create(_CLOCK_BOOTTIME, _TFD_FLAGS))
        self._loop.add_reader(self._fd, self._due)

    def set(self, name: str, at_ms: int) -> None:
        """Ring this name at a reading of the monotonic clock, or at once when that is past."""
        number = next(self._numbers)
        self._current[name] = number
        heapq.heappush(self._heap, (at_ms, number, name))
        self._arm()

    def close(self) -> None:
        """Ring nothing any more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._heap.clear()
        self._current.clear()

    def _due(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            # It was set again between its ringing and our reading.
            return
        self._armed_ms = None
        now_ms = monotonic_ms()
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, number, name = heapq.heappop(self._heap)
            if self._current.get(name) == number:
                del self._current[name]
                due.append(name)
        self._arm()
        for name in due:
            self._ring(name)

    def _arm(self) -> None:
        """Set the timer to the first valid entry, unless it is set to it already."""
        while self._heap and self._current.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        if not self._heap or self._heap[0][0] == self._armed_ms:
            return
        self._armed_ms = self._heap[0][0]
        # Zero would disarm the timer; a past moment rings at once.
        at_ns = max(1, self._armed_ms * 1_000_000)
        value = _Timespec(at_ns // 1_000_000_000, at_ns % 1_000_000_000)
        new = _Itimerspec(_Timespec(0, 0), value)
        _checked(_libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(new), None))


# Other tasks of the event loop get their turn after this many steps, or after the step in which
# this much time has passed.
STEPS_PER_TURN = 64
TURN_S = 0.002

Performer = Callable[[Any], None]


# The effects of a machine beyond those of all machines, such as an agent's to its runtime.
OwnEffect = TypeVar("OwnEffect")


class ShellLimits(msgspec.Struct, frozen=True):
    """How much may be in progress at once."""

    # Unanswered requests, taken in by the machine or not.
    asks_max: int = 20_000
    # The machine's own calls: transactions, reads, requests to others.
    calls_max: int = 10_000
    watches_max: int = 1_000
    # Streams that others opened.
    streams_max: int = 10_000
    # Streams that the machine opened.
    readings_max: int = 1_000


DEFAULT_LIMITS = ShellLimits()


class Shell:
    """Runs one machine on the event loop it is started on. Use as an async context manager."""

    def __init__(
        self,
        machine: Machine[Stimulus, Effect | OwnEffect],
        identity: Identity,
        *,
        store: Store | None = None,
        folder: Path | None = None,
        peers: Peers | None = None,
        sources: Sources | None = None,
        limits: ShellLimits = DEFAULT_LIMITS,
        performers: Mapping[type[OwnEffect], Performer] | None = None,
    ) -> None:
        """`identity` is the machine's towards its peers, `folder` is for what it persists.

        `peers` are those that it may ask, `sources` those that it may watch; `performers` perform
        the effects of this kind of machine only, and answer through `post`. They come first: one
        for an effect of all machines replaces the shell's own.
        """
        self._machine: Machine[Stimulus, Any] = machine
        self._identity = identity
        self._durable = PersistedFiles(folder) if folder is not None else None
        self._line: deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False
        self._bug: BaseException | None = None
        self._main: asyncio.Task[None] | None = None
        self._alarms: Alarms | None = None
        self._asks = PendingRequests(post=self._post, asks_max=limits.asks_max)
        self._calls = PendingCalls(
            identity,
            store,
            peers if peers is not None else NoPeers(),
            post=self._post,
            fail=self._fail,
            calls_max=limits.calls_max,
        )
        self._watches = StoreWatches(
            store, post=self._post, fail=self._fail, watches_max=limits.watches_max
        )
        self._readings = OpenedStreams(
            identity,
            sources if sources is not None else NoSources(),
            post=self._post,
            fail=self._fail,
            readings_max=limits.readings_max,
        )
        self._streams = ServedStreams(post=self._post, streams_max=limits.streams_max)
        self._performers: dict[type[Any], Performer] = dict(performers or {})

    # Start and stop ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what was persisted, and start the machine."""
        invariant(self._main is None, f"{self._identity.name} was started before")
        durable = await asyncio.to_thread(self._durable.load) if self._durable is not None else {}
        self._alarms = Alarms(lambda name: self._post(Woken(name)))
        # Before any request that came in early.
        self._line.appendleft(Started(durable, clock.boot_id()))
        self._arrived.set()
        self._main = asyncio.create_task(self._live())

    async def stop(self, grace_s: float = 0.0) -> None:
        """Accept nothing new, answer pending requests within the grace period, then end.

        Raises what broke the machine, if something did.
        """
        self._asks.close()
        if self._main is None:
            return
        if grace_s > 0:
            await self._asks.drained(grace_s)
        self._stopping = True
        self._arrived.set()
        await self.wait()

    async def wait(self) -> None:
        """Wait until the machine has ended. Raises what broke it, if something did."""
        if self._main is not None:
            await asyncio.shield(self._main)

    async def __aenter__(self) -> Shell:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _live(self) -> None:
        try:
            while not self._stopping:
                if not self._line:
                    self._arrived.clear()
                    await self._arrived.wait()
                until = time.perf_counter() + TURN_S
                for _ in range(min(STEPS_PER_TURN, len(self._line))):
                    stimulus = self._next()
                    if stimulus is None or self._stopping:
                        continue
                    effects = self._machine.step(stimulus, clock.now())
                    if effects:
                        await self._perform(effects)
                    if time.perf_counter() >= until:
                        break
                if self._bug is not None:
                    raise self._bug
                await asyncio.sleep(0)
        finally:
            await self._shut()

    async def _shut(self) -> None:
        self._stopping = True
        if self._alarms is not None:
            self._alarms.close()
        await self._calls.cancel()
        await self._watches.cancel()
        await self._readings.cancel()
        self._asks.drop()
        self._streams.drop()
        self._line.clear()

    async def _perform(self, effects: Sequence[Effect]) -> None:
        """Perform the effects of one step, strictly in order."""
        for effect in effects:
            performer = self._performers.get(type(effect))
            if performer is not None:
                performer(effect)
                continue
            match effect:
                case Answer() | Push() | End():
                    self._reply(effect)
                case Ask() | Txn() | Range() | FateOf():
                    self._call(effect)
                case Wake():
                    self._wake(effect)
                case Persist():
                    await self._persist(effect)
                case Watch() | Unwatch() | Open() | Leave():
                    self._follow(effect)
                case ArchiveRecord():
                    # Evidence of a machine for which none is kept.
                    pass
                case _:
                    unexpected(effect, "this shell does not perform")

    def _reply(self, effect: Answer | Push | End) -> None:
        match effect:
            case Answer():
                self._asks.answer(effect)
            case Push():
                self._streams.push(effect)
            case End():
                self._streams.end(effect)
            case _:
                assert_never(effect)

    def _call(self, effect: Ask | Txn | Range | FateOf) -> None:
        match effect:
            case Ask():
                self._calls.ask(effect)
            case Txn():
                self._calls.txn(effect)
            case Range():
                self._calls.range(effect)
            case FateOf():
                self._calls.fate(effect)
            case _:
                assert_never(effect)

    def _follow(self, effect: Watch | Unwatch | Open | Leave) -> None:
        match effect:
            case Watch():
                self._watches.watch(effect)
            case Unwatch():
                self._watches.unwatch(effect)
            case Open():
                self._readings.open(effect)
            case Leave():
                self._readings.leave(effect)
            case _:
                assert_never(effect)

    def _next(self) -> Any:
        """Return the next stimulus, or None when its sender has given up."""
        first = self._line.popleft()
        if isinstance(first, PendingRequest):
            return self._asks.take(first)
        if isinstance(first, StoreWatch | OpenedStream):
            return first.take()
        return first

    def _post(self, stimulus: Any) -> None:
        self._line.append(stimulus)
        self._arrived.set()

    def _fail(self, bug: BaseException) -> None:
        self._bug = bug
        self._arrived.set()

    # Requests of others --------------------------------------------------------------------------

    async def ask(self, sender: str | Identity, body: Any, timeout_s: float) -> Any:
        """Return the machine's answer to a request of an authenticated sender.

        Raises Unavailable when the request was certainly not taken in, OutcomeUnknown when it was
        and no answer came in time, and whatever error the machine answers with.
        """
        inbound = self._asks.take_in(sender, body, timeout_s)
        try:
            answer = await inbound.future
        except asyncio.CancelledError:
            self._asks.withdraw(inbound)
            raise
        if isinstance(answer, HoldfastError):
            # One error may answer many callers, so it must not collect their tracebacks.
            raise answer.with_traceback(None)
        return answer

    def submit(self, sender: str | Identity, body: Any, timeout_s: float) -> asyncio.Future[Any]:
        """Ask without waiting: the future gets the answer, with errors as values."""
        return self._asks.submit(sender, body, timeout_s)

    @contextlib.contextmanager
    def submitted(
        self, sender: str | Identity, bodies: Iterable[Any], timeout_s: float
    ) -> Iterator[list[asyncio.Future[Any]]]:
        """Ask many things without waiting: each future gets an answer, with errors as values.

        A caller that leaves the block early withdraws the rest: the machine does not begin what it
        has not begun by then.
        """
        inbounds = [self._asks.take_in(sender, body, timeout_s) for body in bodies]
        try:
            yield [inbound.future for inbound in inbounds]
        finally:
            self._asks.withdraw(*inbounds)

    def open(self, sender: str | Identity, body: Any) -> ServedStream:
        """Open a stream to the machine, which pushes until either side ends it."""
        return self._streams.open(sender, body)

    # Performers of this machine's own ------------------------------------------------------------

    def post(self, stimulus: Any) -> None:
        """Give the machine the outcome of an effect. After its end it is ignored."""
        if not self._stopping:
            self._post(stimulus)

    def fail(self, bug: BaseException) -> None:
        """Report a bug in a performer: stop, and raise it from `wait` and `stop`."""
        self._fail(bug)

    # What concerns only the machine itself -------------------------------------------------------

    def _wake(self, effect: Wake) -> None:
        if self._alarms is not None:
            self._alarms.set(effect.name, effect.at_ms)

    async def _persist(self, effect: Persist) -> None:
        if self._durable is None:
            raise InvariantBroken(f"{self._identity.name} has no folder to persist {effect.key} in")
        # Calls before this effect are sent before it is performed.
        await asyncio.sleep(0)
        await asyncio.to_thread(self._durable.put, effect.key, effect.value)
