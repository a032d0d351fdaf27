"""Raising the format of the plane, on an operator's request.

`authority` compares the format in every transaction, so an older server that still runs writes
nothing from the moment this commits. The server that was asked checks first whether an older part
is running (`host/api/plane/upgrade_routes`): no transaction could know that, and no safety
property depends on it.
"""

from __future__ import annotations

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.request_steps import ComparedRecord, PlacementStep
from holdfast.model import keys, plane_format
from holdfast.model.plane_format import PlaneFormat
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import RaiseFormat


def raise_format(draft: Draft, context: Context, request: RaiseFormat) -> Refusal | None:
    """Raise the plane's records to the next format."""
    if not request.word.strip():
        return Refusal(
            Reason.INVALID, "word: required: state the reason, for the audit", {"field": "word"}
        )
    found: PlaneFormat | None = draft.read(keys.plane_format())
    newest = plane_format.FORMAT
    # An empty plane gets the newest format with its first record.
    current = found.format if found is not None else newest
    if request.to > newest:
        return Refusal(
            Reason.INVALID,
            f"to: format {request.to}: this version of holdfast supports formats up to {newest}",
            {"field": "to"},
        )
    if request.to != current + 1:
        return Refusal(
            Reason.STALE_OBJECT,
            f"to: format {request.to}: the plane has format {current}, next is {current + 1}",
            {"format": str(current)},
        )
    draft.write(keys.plane_format(), PlaneFormat(request.to))
    return None


STEPS = (
    PlacementStep(
        "raise the format",
        "operator",
        "the format of the plane, and that no part of an older version lives",
        "another operator does the same, or an older part comes back: it writes nothing then",
        "the format in the transaction, which each transaction compares",
        request=RaiseFormat,
        handler=raise_format,
        compares=(ComparedRecord.FORMAT,),
    ),
)
