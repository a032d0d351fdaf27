"""Lease: who may act for a scope, under which epoch. It never proves that no other process acts."""

from __future__ import annotations

from holdfast.model.kind_declaration import Kind, KindRules, Retention, Writers, count, moment, text
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Millis, Object, Part, Revision, Timestamp
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS


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
    observation_age_max_ms: the greatest age of an observation on which the holder may act, by the
        plane's settings at the last renewal.
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
    observation_age_max_ms: Millis = OBSERVATION_AGE_MAX_MS


class Lease(Object, frozen=True, kw_only=True, tag="Lease"):
    """Who may act for a scope, under which epoch.

    spec: scope, holder and epoch.
    """

    spec: LeaseSpec


def lease_name(scope: str) -> str:
    """The name of a scope's Lease; scopes use `:` and `/`, which names cannot contain."""
    return scope.replace(":", "-").replace("/", "-").lower()


# Longer than any holder is away and means to come back, so that people can still see who it was.
LEASE_RETENTION = Retention(86_400_000, "its last renewal")


def _lease_rules() -> KindRules:
    from holdfast.model.validation import lease

    return KindRules(lease.lease, update=lease.lease_update)


LEASE_KIND = Kind(
    Lease,
    "leases",
    rules=_lease_rules,
    retention=LEASE_RETENTION,
    # An operator removes a server that is gone: `ledgers/leaks.py`.
    writers=Writers(spec=(), removers=(Actor.GARBAGE, Actor.OPERATOR)),
    columns=(
        text("Holder", lambda o: o.spec.holder or "-", "who may act"),
        count("Epoch", lambda o: o.spec.epoch, "how often it was taken over"),
        moment("Renewed", lambda o: o.spec.renewed, "when it was last renewed"),
    ),
    namespaced=False,
    status=False,
    immutable=("spec.scope",),
)
