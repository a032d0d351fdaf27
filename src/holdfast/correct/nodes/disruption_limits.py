"""What holds controller:nodes back when too much goes silent at once.

When most of a zone is silent, the observer, or its way there, is the likelier culprit than so many
machines: nothing is marked or fenced there then. Otherwise so many per zone and window of time, so
that a mistake of ours stays small until somebody notices.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.kinds.node import Node, NodePhase

# From this share of a zone on, its silence is taken for our own deafness.
SILENT_PERCENT_MAX = 55
# In a zone with fewer nodes a share means nothing.
ZONE_NODES_MIN = 3
MARKS_PER_ZONE_MAX = 4
MARKS_WINDOW_MS = 10_000

_EXPECTED = (NodePhase.READY, NodePhase.SUSPECT, NodePhase.UNKNOWN)


def zone_of(node: Node) -> str:
    """The failure domain that a node belongs to."""
    return f"{node.spec.region}/{node.spec.zone}"


def has_agent(node: Node) -> bool:
    """Whether an agent ever presented itself for this node, or only an operator made it.

    A node that begins with a registration is in its first life; one that an operator made is in
    none, until its agent says what it is.
    """
    status = node.status
    return bool(status.incarnation or status.agent_version or status.boot_id or status.address)


class DisruptionLimits:
    """See the module's docstring. `held` says for each zone that is held back why it is."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self._steps: dict[str, list[tuple[int, str]]] = {}

    def weigh(self, zone: str, nodes: Sequence[tuple[Node, bool]]) -> str:
        """Why nothing may be marked in a zone, if so. `nodes` are all of it: is each silent?

        Those that are given up already, and those that no agent ever spoke for, are not expected
        to be heard and say nothing about our ears.
        """
        expected = [
            is_silent
            for node, is_silent in nodes
            if node.status.phase in _EXPECTED and has_agent(node)
        ]
        silent = sum(expected)
        if len(expected) < ZONE_NODES_MIN or silent * 100 < len(expected) * SILENT_PERCENT_MAX:
            self.held.pop(zone, None)
            return ""
        reason = f"{silent} of {len(expected)} nodes of zone {zone} are silent"
        self.held[zone] = reason
        return reason

    def admits(self, zone: str, step: str, now_ms: int) -> bool:
        """Whether one more step may be taken in a zone now. The same step counts once."""
        recent = [it for it in self._steps.get(zone, ()) if now_ms - it[0] < MARKS_WINDOW_MS]
        known = any(it[1] == step for it in recent)
        if not known and len(recent) < MARKS_PER_ZONE_MAX:
            recent.append((now_ms, step))
            known = True
        self._steps[zone] = recent
        return known
