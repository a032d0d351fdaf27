"""Keeps the certificates of a component from ending while it runs.

`components` starts one for each process; before it come the certificates of its start (`joining`,
`credentials`), after it `remote`, which asks with the new ones. Each is renewed in the middle part
of its life, at a moment of its own, so that a thousand agents of one day do not come on one day.
A renewal that fails is tried again, more often the less time is left; only the end is an end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from holdfast.host.certificates import RENEW_BY, RENEW_FROM, moment
from holdfast.host.client.access import Access
from holdfast.host.joining import MOMENT
from holdfast.model.errors import HoldfastError
from holdfast.model.machine import Rng

# A clock may be set, and a suspended computer counts no sleep: so often is looked at the time.
LOOK_S = 60.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.2, 3_600.0
# A renewal that failed is tried again after this part of the time that is left.
TRIES = 16

Renew = Callable[[str, Access], Awaitable[Access]]
Take = Callable[[str, Access], Awaitable[None]]


class Rotation:
    """See the module's docstring. `renew` makes the next access, or gives back the same one."""

    def __init__(
        self, accesses: Mapping[str, Access], renew: Renew, take: Take, rng: Rng | None = None
    ) -> None:
        self._renew, self._take = renew, take
        self._rng: Rng = rng if rng is not None else random.SystemRandom()
        self._accesses = {name: it for name, it in accesses.items() if it.certificate}
        # When each is renewed next, by the wall clock.
        self.due_s = {name: self._first(it) for name, it in self._accesses.items()}
        # Why one cannot be renewed, for whoever runs the component; empty when all can.
        self.trouble = ""

    async def run(self) -> None:
        """For as long as the component lives."""
        while self.due_s:
            now_s = _now_s()
            left_s = min(self.due_s.values()) - now_s
            await asyncio.sleep(min(LOOK_S, max(PAUSE_MIN_S, left_s)))
            for name in [name for name, at_s in self.due_s.items() if at_s <= _now_s()]:
                await self.turn(name)

    async def turn(self, name: str) -> None:
        """Renew one certificate now, and ask with it from now on."""
        before = self._accesses[name]
        try:
            after = await self._renew(name, before)
            if after.certificate == before.certificate:
                self._fail(name, "nobody has put a new one there")
                return
            await self._take(name, after)
        except HoldfastError as error:
            self._fail(name, error.message)
        except OSError as error:
            self._fail(name, error.strerror or str(error))
        else:
            self._accesses[name], self.due_s[name] = after, self._first(after)
            self.trouble = ""

    def _first(self, access: Access) -> float:
        share = RENEW_FROM + (RENEW_BY - RENEW_FROM) * self._rng.random()
        return moment(access.certificate, share).timestamp()

    def _fail(self, name: str, why: str) -> None:
        ends = moment(self._accesses[name].certificate, 1)
        left_s = ends.timestamp() - _now_s()
        word = "ends" if left_s > 0 else "ended"
        self.trouble = f"the certificate of {name} {word} at {ends:{MOMENT}}: {why}"
        pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, left_s / TRIES if left_s > 0 else LOOK_S))
        self.due_s[name] = _now_s() + pause_s * (0.5 + self._rng.random() / 2)


def _now_s() -> float:
    return datetime.now(UTC).timestamp()
