"""Who uses this plane: an operator that looks only when there is something to do."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.kinds.template import ExecAction, Probe, Probes
from holdfast.model.kinds.workload import Workload
from holdfast.model.requests import Create
from holdfast.model.time import Instant
from holdfast.sim.plan import Prompted
from holdfast.sim.worlds.authority.looks import Look
from holdfast.sim.worlds.authority.people import Operator

_PROBE = Probe(exec=ExecAction(("alive",)), period_seconds=2, failure_threshold=1)


class Customer(Operator):
    """Rests between acts, so that a long calm costs nothing."""

    _is_up = False

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        effects = super().step(stimulus, now)
        if isinstance(stimulus, Prompted) and not self._is_up:
            effects = [*effects, *self._round(now)]
        return effects

    def _request(self, look: Look, act: dict[str, Any]) -> Any:
        request = super()._request(look, act)
        if isinstance(request, Create) and isinstance(request.object, Workload):
            request = Create(_with(request.object, act))
        return request

    def _round(self, now: Instant) -> list[Any]:
        self._is_up = bool(self._acts)
        return super()._round(now) if self._is_up else []


def _with(workload: Workload, act: dict[str, Any]) -> Workload:
    """The workload with a grace, perhaps a liveness probe, and how long its owner waits for it."""
    template = workload.spec.template
    template = msgspec.structs.replace(
        template,
        grace_seconds=act["grace"],
        probes=Probes(liveness=_PROBE) if act.get("probed") else template.probes,
        replace_after_seconds=act.get("replace_after"),
    )
    spec = msgspec.structs.replace(workload.spec, template=template)
    return msgspec.structs.replace(workload, spec=spec)
