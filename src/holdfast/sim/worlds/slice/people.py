"""Who uses this plane: an operator that looks only when there is something to do."""

from __future__ import annotations

from typing import Any

from holdfast.model.time import Instant
from holdfast.sim.plan import Prompted
from holdfast.sim.worlds.authority.people import Operator


class Customer(Operator):
    """Rests between acts, so that a long calm costs nothing."""

    _is_up = False

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        effects = super().step(stimulus, now)
        if isinstance(stimulus, Prompted) and not self._is_up:
            effects = [*effects, *self._round(now)]
        return effects

    def _round(self, now: Instant) -> list[Any]:
        self._is_up = bool(self._acts)
        return super()._round(now) if self._is_up else []
