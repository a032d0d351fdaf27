"""Validates deadlines and expiries without a clock, against other times of the same object."""

from __future__ import annotations

from datetime import datetime

from holdfast.model.meta import Object
from holdfast.model.validation.findings import FieldPath


def after_creation(at: FieldPath, moment: datetime | None, obj: Object) -> None:
    """Checks that a time is after the creation, if that is known."""
    created = obj.metadata.creation_timestamp
    if moment is not None and created is not None and moment <= created:
        at.wrong(moment, f"must be later than the creation at {created.isoformat()}")


def in_order(at: FieldPath, earlier: datetime | None, later: datetime | None, what: str) -> None:
    """Checks that one time is not before another; `what` names the earlier one's field."""
    if earlier is not None and later is not None and later < earlier:
        at.wrong(later, f"must not be before {what}")
