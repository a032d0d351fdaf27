"""Limits controller:nodes when many nodes go silent at once.

When most of a zone is silent, the observer or its network is the likelier cause than that many
machines: then nothing is marked or fenced there. Otherwise only a few nodes per zone and time
window are, so that a mistake of this controller stays small until an operator notices.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.kinds.node import Node, NodePhase

# From this share of silent nodes on, the observer counts as the cause.
SILENT_PERCENT_MAX = 55
# In a zone with fewer nodes, a share means nothing.
ZONE_NODES_MIN = 3
MARKS_PER_ZONE_MAX = 4
MARKS_WINDOW_MS = 10_000

_EXPECTED = (NodePhase.READY, NodePhase.SUSPECT, NodePhase.UNKNOWN)


def zone_of(node: Node) -> str:
    """The failure domain of a node."""
    return f"{node.spec.region}/{node.spec.zone}"


def has_agent(node: Node) -> bool:
    """Whether an agent ever registered this node, or only an operator created it.

    A registered node is in its first incarnation; one that an operator created is in none, until
    its agent registers.
    """
    status = node.status
    return bool(status.incarnation or status.agent_version or status.boot_id or status.address)


class DisruptionLimits:
    """See the module's docstring. `held` has the reason for each zone that is held back."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self._steps: dict[str, list[tuple[int, str]]] = {}

    def weigh(self, zone: str, nodes: Sequence[tuple[Node, bool]]) -> str:
        """Why nothing may be marked in a zone, if so. `nodes` are all its nodes, each with whether
        it is silent.

        Nodes that are already fenced, and nodes that no agent ever registered, are expected to be
        silent and say nothing about the observer.
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
