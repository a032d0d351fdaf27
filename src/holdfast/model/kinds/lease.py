"""Lease: who may act for a scope, under which epoch. It is never proof that nobody else does."""

from __future__ import annotations

from holdfast.model.meta import Millis, Object, Part, Revision, Timestamp


class LeaseSpec(Part, frozen=True):
    """The lease.

    scope: what the holder may act on.
    holder: the identity that holds it; empty when it was given back.
    epoch: grows by one with each takeover; transactions compare it in a key of its own.
    duration_ms: others may take over so long after they saw the last renewal, by their own clocks.
    acquired: when this holder took it.
    renewed: when it was last renewed.
    renewals: how often it was renewed; an observer sees life in this number changing, not in a
        clock.
    instance: which of the processes that share this identity, by the name that it was given.
    address: where its peers reach the holder, if it has peers that ask it for something.
    version: the version of holdfast that the holder runs; empty where it does not say.
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
    """The name of the Lease object of a scope; scopes use `:` and `/`, which names cannot have."""
    return scope.replace(":", "-").replace("/", "-").lower()
