"""Health reports of controllers and schedulers: a pulse holds one beat for each.

A process sends a pulse to every server every few seconds (`host/component/pulse_sender.py`).
Servers keep the last pulse of each process in memory and write nothing
(`host/server/component_pulses.py`); `holdfast status` and the servers' metrics show them. No
component decides by them: leases and the commit decide who may act.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.model.plane import Plane

# Everything that others send is bounded: far more beats than there are controllers, the longest
# names.
BEATS_MAX = 64
# The bounds of a backlog: pairs of tenant and reason, priority classes, zones of pools by resource.
WAITS_MAX, AGES_MAX, ROOMS_MAX = 1_000, 256, 1_000
# Tenants with fairness figures.
STANDINGS_MAX = 1_000
# Entries beyond a bound are counted together under this name.
OTHERS = "(others)"
_Name = Annotated[str, Meta(min_length=1, max_length=253)]
_Label = Annotated[str, Meta(max_length=253)]
_Number = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
_Part = Annotated[float, Meta(ge=0.0, le=1e6)]
_Sentence = Annotated[str, Meta(max_length=1_024)]


class PendingCount(msgspec.Struct, frozen=True):
    """How many replicas of a tenant wait for a reason. A replica with several counts for each."""

    tenant: _Name
    reason: _Name
    replicas: _Number


class FreeCapacity(msgspec.Struct, frozen=True):
    """The free amount of a resource on the open nodes of one zone of one pool, in internal units.

    fragments: the part of it in pieces that fit none of the recent work.
    """

    region: _Label
    zone: _Label
    pool: _Label
    resource: _Name
    free: _Number
    fragments: _Number


class TenantStanding(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fairness figures of a tenant, as parts of the plane; see `model/quota/fairness.py`.

    remembered: its decayed average share.
    lapsed_ms: how long it has been owed more than the tolerance; 0 if it is not.
    settle_by_ms: the wall time by which such a debt is settled.
    """

    tenant: _Name
    share: _Part
    entitlement: _Part
    remembered: _Part = 0.0
    lapsed_ms: _Number = 0
    settle_by_ms: _Number = 0


class PreemptionCount(msgspec.Struct, frozen=True):
    """How often preemptions for work of a priority class ended in some way.

    outcome: Made (the place is free for it), Refused by the commit, or GivenUp.
    """

    priority_class: _Name
    outcome: _Name
    number: _Number


class Backlog(msgspec.Struct, frozen=True):
    """The pending replicas of a scheduler, and the free capacity.

    `propose/queue/scheduling_queue.py` computes it.

    oldest_ms: how long the oldest replica of each priority class has waited.
    estimates: how many jobs with an estimated start were placed since the scheduler began.
    estimate_error_ms: by how much their first estimates were wrong together.
    fairness: the figures of the tenants of its share, the largest debts first.
    preemptions: since the scheduler started, as `in_turn`: how many of them stopped work of a
        workload that had stopped the preemptor's own.
    """

    waits: Annotated[tuple[PendingCount, ...], Meta(max_length=2 * WAITS_MAX)] = ()
    oldest_ms: Annotated[dict[_Name, _Number], Meta(max_length=AGES_MAX)] = {}
    rooms: Annotated[tuple[FreeCapacity, ...], Meta(max_length=ROOMS_MAX)] = ()
    estimates: _Number = 0
    estimate_error_ms: _Number = 0
    fairness: Annotated[tuple[TenantStanding, ...], Meta(max_length=STANDINGS_MAX)] = ()
    preemptions: Annotated[tuple[PreemptionCount, ...], Meta(max_length=3 * AGES_MAX)] = ()
    in_turn: _Number = 0


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one controller or scheduler when the pulse was sent.

    scope: its lease, such as controller:nodes, which is also its name.
    epoch: the epoch of that lease; 0 if another process holds it and this one stands by.
    looks: how many reconciles it ran; `looked_ago_ms` is the time since the last one.
    waiting: keys that wait for a reconcile or for an answer; not all of them are due.
    overdue_ms: how long the most overdue key has waited.
    sent: requests by outcome: accepted, refused by reason, down (did not happen, by fault), unknown
        (no answer).
    last_error: the last refusal or fault; `last_error_ago_ms` is the time since then.
    backlog: the pending replicas of an active scheduler.
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

    process: the name of the process, such as `controllers main`.
    up_ms: its uptime.
    picture_ms: the age of its snapshot of the plane.
    relists: how often it had to list a kind again because the missed history was compacted.
    missed: how many changes only such a list, or a resync, revealed.
    """

    process: _Name
    beats: Annotated[tuple[Beat, ...], Meta(max_length=BEATS_MAX)] = ()
    up_ms: _Number = 0
    picture_ms: _Number = 0
    relists: _Number = 0
    missed: _Number = 0


class ReceivedPulse(msgspec.Struct, frozen=True):
    """A pulse in a server's memory, with its sender and its age."""

    sender: str
    age_ms: int
    pulse: Pulse


class Pulses(msgspec.Struct, frozen=True):
    """The recent pulses that a server received, how long it has been listening, and the plane that
    it serves; an older server does not say which.
    """

    server: str
    listening_ms: int
    felt: tuple[ReceivedPulse, ...] = ()
    plane: Plane | None = None
