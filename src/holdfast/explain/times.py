"""By when somebody moves: the bounds that components keep, and the moments that they count from."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.model.identity import CONTROLLER_PREFIX
from holdfast.model.kinds.node import Node

# A team looks at everything once a minute, a quarter more or less; a scheduler does so exactly.
CONTROLLER_LOOKS_MS = 75_000
SCHEDULER_LOOKS_MS = 60_000
# An agent compares its picture with the servers' this often, and may then have to be told twice.
AGENT_LOOKS_MS = 80_000
_NODES = f"{CONTROLLER_PREFIX}nodes/"


def after(moment: datetime | None, ms: int) -> datetime | None:
    """So long after a moment, if that is known."""
    return moment + timedelta(milliseconds=ms) if moment is not None else None


def next_of(moment: datetime, every_ms: int, now: datetime) -> datetime:
    """The next of the moments that follow each other at this distance."""
    if moment > now:
        return moment
    every = timedelta(milliseconds=every_ms)
    return moment + every * ((now - moment) // every + 1)


def judged_at(node: Node) -> datetime | None:
    """When controller:nodes last said something of a node."""
    said = [it.at for it in node.metadata.operations if it.id.startswith(_NODES)]
    return max(said, default=None)


def changed_at(node: Node) -> datetime | None:
    """When anybody did: a judgement, or the beginning of another life."""
    return max((it.at for it in node.metadata.operations), default=None)
