"""What controllers and schedulers say of themselves: the heartbeat of each, many in one pulse.

A process sends one to every server every few seconds (`host/component/pulse_sender.py`). Servers
keep the last of each in memory and write nothing (`host/server/component_pulses.py`); `holdfast
status` and the servers' metrics show them. Nothing is decided by them: who acts is a matter of
leases, and the commit's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

# All that others send has bounds: far more parts than there are controllers, and the longest names.
BEATS_MAX = 64
# Of a backlog: pairs of tenant and reason, priority classes, and zones of pools by resource.
WAITS_MAX, AGES_MAX, ROOMS_MAX = 1_000, 256, 1_000
# What is beyond a bound is counted together, under this name.
OTHERS = "(others)"
_Name = Annotated[str, Meta(min_length=1, max_length=253)]
_Label = Annotated[str, Meta(max_length=253)]
_Number = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
_Sentence = Annotated[str, Meta(max_length=1_024)]


class PendingCount(msgspec.Struct, frozen=True):
    """So many replicas of a tenant wait for this reason; one that has several counts for each."""

    tenant: _Name
    reason: _Name
    replicas: _Number


class FreeCapacity(msgspec.Struct, frozen=True):
    """What is free of a resource on the open nodes of one zone of one pool, in internal units.

    fragments: the part of it in pieces into which none of the work that was seen lately fits.
    """

    region: _Label
    zone: _Label
    pool: _Label
    resource: _Name
    free: _Number
    fragments: _Number


class Backlog(msgspec.Struct, frozen=True):
    """What waits for a place with a scheduler, and the room there is.
    `propose/queue/scheduling_queue.py`.

    oldest_ms: how long the oldest of each priority class has waited.
    """

    waits: Annotated[tuple[PendingCount, ...], Meta(max_length=2 * WAITS_MAX)] = ()
    oldest_ms: Annotated[dict[_Name, _Number], Meta(max_length=AGES_MAX)] = {}
    rooms: Annotated[tuple[FreeCapacity, ...], Meta(max_length=ROOMS_MAX)] = ()


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """One controller or scheduler, as it was when the pulse was sent.

    scope: the lease that it acts under, such as controller:nodes, and so its name.
    epoch: of that lease; 0 where another process acts and this one stands by.
    looks: how often it looked at a key, and how long ago it last did, if ever.
    waiting: keys that wait to be looked at, or for an answer; not all of them are due.
    overdue_ms: for how long the key that is due longest has waited.
    sent: requests, with what became of them: accepted, refused by reason, down (did not happen, by
        fault), unknown (no answer).
    last_error: the last refusal or fault, and how long ago that was.
    backlog: what waits for a place; of a scheduler that acts.
    """

    scope: _Name
    epoch: _Number = 0
    looks: _Number = 0
    looked_ago_ms: _Number | None = None
    waiting: _Number = 0
    overdue_ms: _Number = 0
    sent: _Number = 0
    accepted: _Number = 0
    down: _Number = 0
    unknown: _Number = 0
    refused: Annotated[dict[_Name, _Number], Meta(max_length=128)] = {}
    last_error: _Sentence = ""
    last_error_ago_ms: _Number | None = None
    backlog: Backlog | None = None


class Pulse(msgspec.Struct, frozen=True, omit_defaults=True):
    """All beats of one process.

    process: which of its kind, such as `controllers main`.
    up_ms: for how long it lives.
    picture_ms: how old its picture of the plane is.
    relists: how often it had to list a kind anew, because what it missed was not kept any more.
    missed: how many objects only such a list, or the resync, brought to light.
    """

    process: _Name
    beats: Annotated[tuple[Beat, ...], Meta(max_length=BEATS_MAX)] = ()
    up_ms: _Number = 0
    picture_ms: _Number = 0
    relists: _Number = 0
    missed: _Number = 0


class ReceivedPulse(msgspec.Struct, frozen=True):
    """A pulse as a server remembers it: from whom, and how long ago it came."""

    sender: str
    age_ms: int
    pulse: Pulse


class Pulses(msgspec.Struct, frozen=True):
    """All that a server has felt lately, and for how long it has been there to do so."""

    server: str
    listening_ms: int
    felt: tuple[ReceivedPulse, ...] = ()
