"""Requests that hold and release capacity, for the tests of reservations."""

from __future__ import annotations

from typing import Any

from holdfast.model.access.identity import Identity
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.requests import DropReservation, HoldCapacity
from tests.furnished import Furnished
from tests.plane import SCHEDULER

ONE = {"cpu": 1000, "memory": 2**30, "replicas": 1}


def used(it: Furnished) -> dict[str, int]:
    found: dict[str, int] = it.plane.ledger("node-a").used
    return found


def hold(
    it: Furnished,
    *claims: Claim,
    intent: Intent = Intent.RECOVERY,
    of: Any = None,
    least: int = 0,
    after_s: float = 60,
    operation: str = "",
    identity: Identity = SCHEDULER,
) -> HoldCapacity:
    of = of or it.web
    owner = ReservationOwner(type(of).__name__, of.name, of.metadata.uid)
    deadline = it.plane.at(after_s)
    return HoldCapacity(
        of.namespace, owner, intent, claims, deadline, it.term(identity), least, operation
    )


def drop(it: Furnished, held: Any, identity: Identity = SCHEDULER, **more: Any) -> DropReservation:
    return DropReservation(
        held.namespace, held.name, held.metadata.uid, "over", it.term(identity), **more
    )
