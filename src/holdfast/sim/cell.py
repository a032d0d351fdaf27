"""Computers, and the machines that run on them.

A `Host` is a computer: it has clocks, a network name, a disk, and may be frozen or rebooted as a
whole. A `Cell` is one slot for a machine on a host. Crashes and restarts replace the machine in it;
the cell keeps what survives a restart (persisted values) and what only the shell knows about the
current life (timers, calls in flight).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model.access.identity import Identity
from holdfast.model.machine import Machine, Rng, Stimulus, Tokens
from holdfast.sim.virtual_clock import HostClock
from holdfast.sim.virtual_network import Path

# How long a machine is busy with a stimulus and its effects, in microseconds.
Burden = Callable[[Any, Sequence[Any]], int]

# More effects than any run performs: a fuse with this count never blows.
NEVER = 1 << 62


class Seat(msgspec.Struct, frozen=True):
    """What a factory needs to start one life of a machine."""

    name: str
    life: int
    rng: Rng
    tokens: Tokens


# A world performs effects of its own beside those of a shell, such as the facts that taps state.
SimulatedMachine = Machine[Stimulus, Any]
Factory = Callable[[Seat], SimulatedMachine]


class Alarm:
    """A deadline on a host's clock: what to call, and the event that does it."""

    __slots__ = ("a", "at_ms", "b", "event", "handler", "number")

    def __init__(self, at_ms: int, handler: Callable[[int, Any, Any], None], a: Any, b: Any):
        self.at_ms = at_ms
        self.handler = handler
        self.a = a
        self.b = b
        self.number = 0
        self.event = 0


class Host:
    """One computer."""

    __slots__ = (
        "alarms",
        "boots",
        "cells",
        "clock",
        "frozen",
        "name",
        "own_name",
        "paths",
        "region",
        "things",
        "up",
    )

    def __init__(self, name: str, region: str, clock: HostClock) -> None:
        self.name = name
        # Its name in its own plane, where the world has several: without the name of the plane.
        self.own_name = name
        self.region = region
        self.clock = clock
        self.up = True
        self.frozen = 0
        self.boots = 1
        self.cells: list[Cell] = []
        # Paths to other hosts by name, filled by the network at first use.
        self.paths: dict[str, Path] = {}
        # Deadlines that the computer itself keeps, not a machine on it (see `timers`).
        self.alarms: dict[int, Alarm] = {}
        # What worlds keep on a computer, by name: a process table, a disk.
        self.things: dict[str, Any] = {}

    @property
    def boot(self) -> str:
        return f"{self.name}/{self.boots}"


class Cell:
    """One slot for a machine."""

    __slots__ = (
        "abroad",
        "burden",
        "busy",
        "calls",
        "delivered",
        "delivery_faults",
        "delivery_permille",
        "durable",
        "factory",
        "fuse",
        "fuses",
        "held_until_us",
        "holds",
        "host",
        "identity",
        "inbound",
        "inbox",
        "life",
        "machine",
        "name",
        "paused",
        "performed",
        "prefix",
        "ready",
        "served",
        "store",
        "streams",
        "timers",
        "unfinished",
        "unguarded",
        "watches",
    )

    def __init__(
        self, name: str, host: Host, factory: Factory, identity: str | Identity, store: str | None
    ) -> None:
        self.name = name
        # What its name begins with in a world of several planes: its own plane, as `eu/`.
        self.prefix = ""
        # Who it is to the servers of other planes, by the name of the plane: its identity means
        # nothing there.
        self.abroad: dict[str, str | Identity] = {}
        self.host = host
        self.factory = factory
        self.identity = identity
        self.store = store
        self.machine: SimulatedMachine | None = None
        self.life = 0
        # What `Persist` wrote; it survives every crash.
        self.durable: dict[str, bytes] = {}
        # How many pauses hold this machine now.
        self.paused = 0
        # The CPU cost of its steps, for a machine that can be overloaded, and whether it is busy
        # now. Without a burden every step takes no time.
        self.burden: Burden | None = None
        self.busy = False
        # Alive, not paused and not busy: the one flag that the hot path reads.
        self.ready = False
        # Stimuli that arrived during a pause, or while it was busy, in order.
        self.inbox: list[Any] = []
        # name -> (event number, reading of the host's monotonic clock)
        self.timers: dict[str, tuple[int, int]] = {}
        # Outgoing calls by the machine's number; incoming calls by the shell's number.
        self.calls: dict[int, Any] = {}
        self.inbound: dict[int, Any] = {}
        # Watches on the store and streams to servers by the machine's own numbers; streams that
        # clients opened by the shell's number.
        self.watches: dict[int, Any] = {}
        self.streams: dict[int, Any] = {}
        self.served: dict[int, Any] = {}
        # Effects performed over all lives, the count at which the next planned crash or pause
        # strikes, and all of those to come: (count, kind, for_ms).
        self.performed = 0
        self.fuse = NEVER
        self.fuses: list[tuple[int, str, int]] = []
        # Effects of a step that a pause interrupted; they are performed before anything else.
        self.unfinished: Sequence[Any] = ()
        # A stale view: watches and streams deliver nothing to this machine before this time.
        self.held_until_us = 0
        # Deliveries of watches and streams over all lives, and for how long to hold the nth.
        self.delivered = 0
        self.holds: dict[int, int] = {}
        # Deliveries among them that no contract guards; the fault of the nth of them, and the
        # share of the others, in a thousand, that each kind of fault strikes.
        self.unguarded = 0
        self.delivery_faults: dict[int, str] = {}
        self.delivery_permille: dict[str, int] = {}

    def identity_at(self, server: Cell) -> str | Identity:
        """Who it is to this server; empty for one of a plane where it has no credentials."""
        if server.prefix == self.prefix:
            return self.identity
        return self.abroad.get(server.prefix.removesuffix("/"), "")

    def lay_fuse(self, count: int, kind: str, for_ms: int) -> None:
        """Plan a crash or a pause for when this number of effects has been performed."""
        if count > self.performed:
            bisect.insort(self.fuses, (count, kind, for_ms))
            self.fuse = self.fuses[0][0]

    def blow_fuse(self) -> tuple[str, int]:
        """Remove the fuse that was reached; return its kind, and for how long it lasts."""
        _, kind, for_ms = self.fuses.pop(0)
        self.fuse = self.fuses[0][0] if self.fuses else NEVER
        return kind, for_ms


class CallInFlight:
    """One `Ask`, `Txn`, `Range` or `FateOf` in flight."""

    __slots__ = ("armed", "asker", "at", "copies", "deadline_us", "effect", "number", "source")

    def __init__(self, asker: Cell, effect: Any, deadline_us: int) -> None:
        self.asker = asker
        self.effect = effect
        self.number: int = effect.call
        self.deadline_us = deadline_us
        # Whether its time-out is on the event heap.
        self.armed = False
        # How many copies of the request are under way or have arrived.
        self.copies = 1
        # The cell that holds the request and the number there, once it has arrived.
        self.at: tuple[Cell, int] | None = None
        # Where the answer comes from, once there is one.
        self.source = asker.host
