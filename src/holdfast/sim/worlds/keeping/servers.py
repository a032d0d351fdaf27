"""A server that confirms its lists, as a real one does before it tells what there is.

Whoever follows from the beginning is told all that was acknowledged before it asked: the store is
asked for its revision after the request has come, and the hub tells once it has seen that much. A
hub that stays behind says nothing, and whoever asked goes elsewhere when its patience ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.commit.context import Settings
from holdfast.model import keys
from holdfast.model.errors import HoldfastError
from holdfast.model.machine import Answer, Answered, Asked, End, Left, Opened, Range
from holdfast.model.time import Instant
from holdfast.observe.hub import Reach
from holdfast.sim.cell import Seat
from holdfast.sim.worlds.slice.servers import SimServer

# Beyond the numbers of all other calls of a server.
_CONFIRMS_FROM = 1 << 42
_READER = "reader"


class ConfirmingServer(SimServer):
    """See the module's docstring."""

    def __init__(self, seat: Seat, settings: Settings) -> None:
        super().__init__(seat, settings)
        self._confirms = _CONFIRMS_FROM
        # Streams that wait for the store's word, or for the hub, by the number of that question.
        self._unconfirmed: dict[int, Opened] = {}

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        match stimulus:
            case Answered(call=call) if call >= _CONFIRMS_FROM:
                return self._confirmed(stimulus, now)
            case Opened(body=follow) if follow.since is None:
                self._confirms += 1
                self._unconfirmed[self._confirms] = stimulus
                return [Range(self._confirms, keys.OBJECTS, keys.OBJECTS + "\0", 1)]
            case Left(stream=stream):
                for call, opened in list(self._unconfirmed.items()):
                    if opened.stream == stream:
                        del self._unconfirmed[call]
        return super().step(stimulus, now)

    def _confirmed(self, answered: Answered, now: Instant) -> list[Any]:
        opened = self._unconfirmed.get(answered.call)
        if opened is None:
            return []
        page = answered.body
        if isinstance(page, HoldfastError):
            del self._unconfirmed[answered.call]
            return [End(opened.stream, page)]
        return self._of_hub(Asked(answered.call, _READER, Reach(page.revision)), now)

    def _of_hub(self, stimulus: Any, now: Instant) -> list[Any]:
        effects: list[Any] = []
        for effect in super()._of_hub(stimulus, now):
            if type(effect) is Answer and effect.call >= _CONFIRMS_FROM:
                opened = self._unconfirmed.pop(effect.call, None)
                if opened is None:
                    continue
                if isinstance(effect.body, HoldfastError):
                    effects.append(End(opened.stream, effect.body))
                else:
                    effects += self._opened(opened, now)
                continue
            effects.append(effect)
        return effects
