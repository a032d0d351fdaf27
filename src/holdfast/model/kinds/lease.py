"""Lease: who may act for a scope, under which epoch. It never proves that no other process acts."""

from __future__ import annotations

from holdfast.model.meta import Millis, Object, Part, Revision, Timestamp


class LeaseSpec(Part, frozen=True):
    """The lease.

    scope: what the holder may act on.
    holder: the identity that holds it; empty if it was released.
    epoch: grows by one with each takeover; transactions compare it in a key of its own.
    duration_ms: how long after the last seen renewal others may take over, by their own clocks.
    acquired: when this holder took it.
    renewed: when it was last renewed.
    renewals: how often it was renewed; observers detect a live holder by changes of this number,
        not by a clock.
    instance: the name of the holding process among those that share the identity.
    address: where peers reach the holder, if it serves peers.
    version: the holder's version of holdfast; empty if unknown.
    """

    scope: str
    holder: str = ""
    epoch: Revision = 0
    duration_ms: Millis = 10_000
    acquired: Timestamp | None = None
    renewed: Timestamp | None = None
    renewals: Revision = 0
    instance: str = ""
    address: str = ""
    version: str = ""


class Lease(Object, frozen=True, kw_only=True, tag="Lease"):
    """Who may act for a scope, under which epoch.

    spec: scope, holder and epoch.
    """

    spec: LeaseSpec


def lease_name(scope: str) -> str:
    """The name of a scope's Lease; scopes use `:` and `/`, which names cannot contain."""
    return scope.replace(":", "-").replace("/", "-").lower()
