"""Validates leases: epochs only grow, and a new holder always has a new epoch."""

from __future__ import annotations

from holdfast.model.kinds.lease import Lease
from holdfast.model.validation import text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.moments import in_order

DURATION_MS_MIN = 100
DURATION_MS_MAX = 3_600_000


def lease(obj: Lease, at: FieldPath) -> None:
    spec, at = obj.spec, at["spec"]
    text.token(at["scope"], spec.scope)
    if spec.holder:
        text.token(at["holder"], spec.holder)
        if spec.epoch == 0:
            at["epoch"].wrong(0, "must be at least 1 while the lease is held")
    if not DURATION_MS_MIN <= spec.duration_ms <= DURATION_MS_MAX:
        at["durationMs"].wrong(
            spec.duration_ms, f"must be from {DURATION_MS_MIN} to {DURATION_MS_MAX}"
        )
    if spec.instance:
        text.token(at["instance"], spec.instance)
    if spec.address:
        text.url(at["address"], spec.address)
    if spec.version:
        text.token(at["version"], spec.version)
    in_order(at["renewed"], spec.acquired, spec.renewed, "acquired")


def lease_update(old: Lease, new: Lease, at: FieldPath) -> None:
    """The epoch identifies a stale holder, so two holders must not share an epoch."""
    before, after = old.spec, new.spec
    at = at["spec"]
    if after.epoch not in (before.epoch, before.epoch + 1):
        at["epoch"].wrong(
            after.epoch, f"must stay {before.epoch} or, for a takeover, be {before.epoch + 1}"
        )
    elif after.epoch == before.epoch:
        if after.holder and after.holder != before.holder:
            at["holder"].wrong(after.holder, "must come with the next epoch when it changes")
        if after.renewals < before.renewals:
            at["renewals"].wrong(after.renewals, f"must not fall below {before.renewals}")
