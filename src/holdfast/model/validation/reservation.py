"""Validates reservations: an owner, an intent and a deadline."""

from __future__ import annotations

from holdfast.model.errors import Missing
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationPhase
from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.registry import kind_named
from holdfast.model.validation import amounts, names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.moments import after_creation
from holdfast.model.validation.replica import device_shares


def reservation(obj: Reservation, at: FieldPath) -> None:
    spec, at = obj.spec, at["spec"]
    owner = at["owner"]
    try:
        kind_named(spec.owner.kind)
    except Missing:
        owner["kind"].wrong(spec.owner.kind, "must be a kind of holdfast.dev/v1")
    names.dotted_name(owner["name"], spec.owner.name)
    text.token(owner["uid"], spec.owner.uid)
    after_creation(at["deadline"], spec.deadline, obj)
    if spec.capacity_class is CapacityClass.SOFT:
        at["capacityClass"].wrong(
            "soft", "must be hard or reclaimable: soft capacity cannot be charged"
        )
    gang = spec.intent is Intent.GANG
    if gang != bool(spec.min_available):
        at["minAvailable"].wrong(
            spec.min_available, "must be at least 1 for a gang and left out for any other intent"
        )


def reservation_status(obj: Reservation, at: FieldPath) -> None:
    claims = at["status"]["claims"]
    for index, claim in enumerate(obj.status.claims):
        place = claims[index]
        if claim.node:
            names.dotted_name(place["node"], claim.node)
        amounts.units(place["charge"], claim.charge)
        device_shares(place["devices"], claim.devices)
        names.unique(place["ports"], claim.ports)


def reservation_update(old: Reservation, new: Reservation, at: FieldPath) -> None:
    """A released reservation stays released; a new need gets a new reservation."""
    released = ReservationPhase.RELEASED
    if old.status.phase is released and new.status.phase is not released:
        at["status"]["phase"].wrong(new.status.phase.value, "cannot follow Released")
