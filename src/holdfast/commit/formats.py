"""Raising the format of the plane, as an operator says.

`authority` compares the format in every transaction, so an older server that still runs writes
nothing from the moment on at which this commits. Whether an older part lives is found out before
by the server that was asked (`host/api/upgrade`): no transaction could know that, and nothing that
is safe rests on it.
"""

from __future__ import annotations

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model import keys, plane_format
from holdfast.model.plane_format import PlaneFormat
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import RaiseFormat


def raise_format(draft: Draft, context: Context, request: RaiseFormat) -> Refusal | None:
    """Let the records of the plane have the next format."""
    if not request.word.strip():
        return Refusal(Reason.INVALID, "word: say why, for the audit", {"field": "word"})
    found: PlaneFormat | None = draft.read(keys.plane_format())
    newest = plane_format.FORMAT
    # A plane that nothing was written to gets the newest format with its first record.
    current = found.format if found is not None else newest
    if request.to > newest:
        return Refusal(
            Reason.INVALID,
            f"to: format {request.to}: this version of holdfast knows formats up to {newest}",
            {"field": "to"},
        )
    if request.to != current + 1:
        return Refusal(
            Reason.STALE_OBJECT,
            f"the plane has format {current}, which {request.to} does not follow; look again",
            {"format": str(current)},
        )
    draft.write(keys.plane_format(), PlaneFormat(request.to))
    return None
