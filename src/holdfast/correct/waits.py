"""Waits that began at a moment which is written down, counted on our own clock.

Stamps are made by other computers, and calendars are set forwards and back; a wait until a stamp
plus a pause could take a month, or no time at all. So a wait is counted on the controller's
monotonic clock from when it first saw the stamp: it is never longer than its own pause from then
on, whatever becomes of any calendar. How much of the pause was over before that, only the calendars
can say. They are asked once, when the stamp is first seen, where an early end does no harm or is
checked by the commit.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime

from holdfast.model.kinds.reservation import Reservation
from holdfast.model.time import Instant, wall_ms


class Waits:
    """Since when, on our own clock, things wait: by their uid and what they wait for."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[datetime, int]] = {}

    def left_ms(
        self, uid: str, what: str, began: datetime, pause_ms: int, now: Instant, *, credit: bool
    ) -> int:
        """How much is left of a pause that began at this stamp; 0 when it is over.

        With `credit`, what has passed by the calendar when it is first seen counts.
        """
        key = uid, what
        known = self._since.get(key)
        if known is None or known[0] != began:
            told_ms = now.wall_ms - wall_ms(began) if credit else 0
            known = began, now.monotonic_ms - min(max(0, told_ms), pause_ms)
            self._since[key] = known
        return max(0, known[1] + pause_ms - now.monotonic_ms)

    def forget(self, uid: str, what: str) -> None:
        """It waits no more."""
        self._since.pop((uid, what), None)

    def forget_all_but(self, uids: Container[str]) -> None:
        """Forget those that are gone."""
        self._since = {key: since for key, since in self._since.items() if key[0] in uids}


def held_left_ms(held: Reservation, waits: Waits, late_ms: int, now: Instant) -> int:
    """How much is left of the time that a reservation is held for, and so much more."""
    made, ends_ms = held.metadata.creation_timestamp, wall_ms(held.spec.deadline) + late_ms
    if made is None:
        return max(0, ends_ms - now.wall_ms)
    for_ms = ends_ms - wall_ms(made)
    return waits.left_ms(held.metadata.uid, "held", made, for_ms, now, credit=True)
