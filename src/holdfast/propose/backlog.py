"""What a scheduler tells of the work that waits and of the room there is: numbers for operators.

The shell of a scheduler asks this for each pulse, every few seconds (`host/components.py`); servers
show it (`host/pulses.py`). Nothing is decided by it. Whatever is counted here has a bound, so that
a backlog of any size costs a pulse a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np

from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.pulse import AGES_MAX, OTHERS, ROOMS_MAX, WAITS_MAX, Backlog, Room, Waits
from holdfast.model.time import Instant, wall_ms
from holdfast.observe.columns import Bools, Columns, gate_number
from holdfast.propose.board import Board
from holdfast.propose.fleet import Fleet
from holdfast.propose.queue import Entry, Queue
from holdfast.propose.view import Objects, budget_of

# So many of those that wait are looked at for one pulse; the rest is counted without a reason.
LOOKED_AT_MAX = 20_000
# Shapes of work that are compared with all nodes: those that were placed or looked at last.
SHAPES_MAX = 64
# Of one that was not looked at: not by its scheduler yet, or not for this pulse.
UNTRIED, UNCOUNTED = "Untried", "Uncounted"
_OPEN = gate_number(NodePhase.READY, draining=False, cordoned=False)


def backlog(queue: Queue, objects: Objects, fleet: Fleet, board: Board, now: Instant) -> Backlog:
    """See the module's docstring."""
    counts: dict[tuple[str, str], int] = {}
    ages: dict[str, int] = {}
    for looked_at, entry in enumerate(queue):
        if looked_at >= LOOKED_AT_MAX:
            _add(counts, (entry.tenant, UNCOUNTED))
            continue
        replica: Replica | None = objects.get("replicas", *entry.key)
        if replica is None:
            continue
        for reason in _reasons(entry, replica):
            _add(counts, (entry.tenant, reason))
        born = replica.metadata.creation_timestamp
        age_ms = max(0, now.wall_ms - wall_ms(born)) if born is not None else 0
        name = budget_of(replica)
        if name in ages or len(ages) < AGES_MAX:
            ages[name] = max(age_ms, ages.get(name, 0))
    return Backlog(_waits(counts), ages, tuple(islice(_rooms(fleet.columns, board), ROOMS_MAX)))


def _add(counts: dict[tuple[str, str], int], what: tuple[str, str]) -> None:
    counts[what] = counts.get(what, 0) + 1


def _reasons(entry: Entry, replica: Replica) -> Iterable[str]:
    pending = replica.status.pending
    return pending.reasons if pending is not None and pending.reasons else (UNTRIED,)


def _waits(counts: dict[tuple[str, str], int]) -> tuple[Waits, ...]:
    """The largest of them each, and what is beyond the bound together, by reason."""
    ordered = sorted(counts.items(), key=lambda it: (-it[1], it[0]))
    named, rest = ordered[:WAITS_MAX], ordered[WAITS_MAX:]
    others: dict[str, int] = {}
    for (_, reason), number in rest:
        others[reason] = others.get(reason, 0) + number
    found = [Waits(tenant, reason, number) for (tenant, reason), number in named]
    return (*found, *(Waits(OTHERS, reason, number) for reason, number in others.items()))


def _rooms(columns: Columns, board: Board) -> Iterable[Room]:
    """What is free on nodes that take work, and what of it is in pieces too small for any shape."""
    rows = columns.all
    is_open: Bools = columns.live[rows] & (columns.gate[rows] == _OPEN)
    shapes = board.shapes(SHAPES_MAX)
    is_fragment: Bools = is_open if shapes else np.zeros_like(is_open)
    for shape in shapes:
        fits = is_open.copy()
        for resource, units in shape:
            fits &= columns.free[resource, rows] >= units
        is_fragment = is_fragment & ~fits
    places = columns.place[rows]
    for number, place in enumerate(columns.places.values):
        here: Bools = is_open & (places == number)
        if not here.any():
            continue
        for resource, name in enumerate(columns.resources.values):
            if not columns.total[resource, rows][here].any():
                continue
            free = np.maximum(columns.free[resource, rows], 0)
            yield Room(*place, name, int(free[here].sum()), int(free[here & is_fragment].sum()))
