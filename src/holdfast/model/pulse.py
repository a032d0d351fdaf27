"""What controllers and schedulers say of themselves: the heartbeat of each, many in one pulse.

A process sends one to every server every few seconds (`host/pulsing.py`). Servers keep the last of
each in memory and write nothing (`host/pulses.py`); `holdfast status` and the servers' metrics show
them. Nothing is decided by them: who acts is a matter of leases, and the commit's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

# All that others send has bounds: far more parts than there are controllers, and the longest names.
BEATS_MAX = 64
_Name = Annotated[str, Meta(min_length=1, max_length=253)]
_Number = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
_Sentence = Annotated[str, Meta(max_length=1_024)]


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


class Pulse(msgspec.Struct, frozen=True, omit_defaults=True):
    """All beats of one process.

    process: which of its kind, such as `controllers main`.
    up_ms: for how long it lives.
    picture_ms: how old its picture of the plane is.
    """

    process: _Name
    beats: Annotated[tuple[Beat, ...], Meta(max_length=BEATS_MAX)] = ()
    up_ms: _Number = 0
    picture_ms: _Number = 0


class Felt(msgspec.Struct, frozen=True):
    """A pulse as a server remembers it: from whom, and how long ago it came."""

    sender: str
    age_ms: int
    pulse: Pulse


class Pulses(msgspec.Struct, frozen=True):
    """All that a server has felt lately, and for how long it has been there to do so."""

    server: str
    listening_ms: int
    felt: tuple[Felt, ...] = ()
