"""Asks a running piece of work how it is, whenever one of its probes is due.

`crew` calls this before it decides the next step of the work; what comes back reaches the work's
`Health` as a `Probed`.
"""

from __future__ import annotations

from typing import Any

from holdfast.agent.probes import action_of, resolved, unknown_port
from holdfast.agent.words import Attempt, Probe
from holdfast.agent.work import Phase, Work
from holdfast.model.machine import Rng


def ask(work: Work, now_ms: int, rng: Rng, out: list[Any]) -> int | None:
    """Put what is due to `out`. Returns when the next probe is."""
    work.watch(rng)
    health = work.health
    if health is None or work.phase is not Phase.RUNNING:
        return None
    for kind, spec in health.due(now_ms):
        action = action_of(spec)
        where = resolved(action, work.process) if action is not None else None
        if where is not None:
            timeout_ms = spec.timeout_seconds * 1_000
            out.append(Probe(Attempt(work.uid, work.attempt), kind, where, timeout_ms))
        else:
            what = unknown_port(action) if action is not None else "it asks nothing"
            health.heard(kind, False, what, now_ms)
    return health.next_ms
