"""Limits controller:nodes when many nodes go silent at once.

When most of a zone is silent, the observer or its network is the likelier cause than that many
machines. So nothing is marked or fenced there at first: the zone is held back. That ends, since a
zone can really be lost:

- when a person approves it (Override RepairApproval for the zone);
- after `zone_silence_max_ms`, or a third of that where two servers or more listen and each hears
  nodes, which makes it unlikely that the observers are at fault.

Then the zone is given up: its silent nodes are marked and fenced without a limit on their number,
until most of the zone is heard again. The fence is waited for as always, so that no work runs
twice, whichever side was at fault.

Elsewhere only a few nodes per zone and time window are marked, so that a mistake of this controller
stays small until an operator notices.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.correct.remembered import Remembered
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.observe.snapshot import Snapshot

# From this share of silent nodes on, the observer counts as the cause.
SILENT_PERCENT_MAX = 55
# In a zone with fewer nodes, a share means nothing.
ZONE_NODES_MIN = 3
MARKS_PER_ZONE_MAX = 4
MARKS_WINDOW_MS = 10_000
# This many servers agree that a zone is silent if each of them hears nodes.
OBSERVERS_MIN = 2
# The wait is this many times shorter if they agree.
AGREEMENT_FACTOR = 3

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


def zone_wait_ms(zone_silence_max_ms: int, observers: int) -> int:
    """How long a silent zone is held back if this many servers hear nodes."""
    agrees = observers >= OBSERVERS_MIN
    return zone_silence_max_ms // AGREEMENT_FACTOR if agrees else zone_silence_max_ms


class SilentZone(msgspec.Struct, frozen=True):
    """A zone of which most nodes are silent: how many of how many expected ones.

    Nodes that are already fenced, and nodes that no agent ever registered, are expected to be
    silent and say nothing about the observer.
    """

    zone: str
    silent: int
    expected: int

    def __str__(self) -> str:
        return f"{self.silent} of {self.expected} nodes of zone {self.zone} are silent"


def expected_in_zone(nodes: Sequence[Node]) -> list[Node]:
    """The nodes of a zone that should be heard."""
    return [node for node in nodes if node.status.phase in _EXPECTED and has_agent(node)]


def is_most(silent: int, expected: int) -> bool:
    """Whether that many silent nodes rather show that the observer is at fault."""
    return expected >= ZONE_NODES_MIN and silent * 100 >= expected * SILENT_PERCENT_MAX


def silent_zone(zone: str, nodes: Sequence[tuple[Node, bool]]) -> SilentZone | None:
    """What is silent in a zone, if that is most of it. `nodes` are all its nodes, each with whether
    it is silent.
    """
    is_silent = {node.name: silent for node, silent in nodes}
    expected = expected_in_zone([node for node, _ in nodes])
    silent = sum(is_silent[node.name] for node in expected)
    return SilentZone(zone, silent, len(expected)) if is_most(silent, len(expected)) else None


class DisruptionLimits(Remembered):
    """See the module's docstring. `held` has the reason for each zone that is held back, `given_up`
    the reason for each zone that is not held back although most of it is silent, and `approvals`
    the override that is the reason.
    """

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
        self.approvals: dict[str, str] = {}
        # Since when most of a zone is silent.
        self._since_ms: dict[str, int] = {}
        self._steps: dict[str, list[tuple[int, str]]] = {}

    def begin_term(self) -> None:
        """A wait begins again, since another observed it. The limit on marks outlasts terms."""
        for table in (self.held, self.given_up, self.approvals, self._since_ms):
            table.clear()

    def resync(self, view: Snapshot) -> None:
        """It does not depend on the view."""

    def weigh(
        self,
        zone: str,
        nodes: Sequence[tuple[Node, bool]],
        now_ms: int,
        *,
        wait_ms: int,
        approval: str = "",
    ) -> str:
        """Why nothing may be marked in a zone, if so. `approval` names the override in force by
        which a person gives it up.
        """
        found = silent_zone(zone, nodes)
        if found is None:
            for table in (self.held, self.given_up, self.approvals, self._since_ms):
                table.pop(zone, None)
            return ""
        since_ms = self._since_ms.setdefault(zone, now_ms)
        has_waited = zone in self.given_up and zone not in self.approvals
        if not has_waited:
            self.given_up.pop(zone, None)
            self.approvals.pop(zone, None)
            if now_ms - since_ms >= wait_ms:
                self.given_up[zone] = f"most of it has been silent for {wait_ms // 1_000} s"
            elif approval:
                self.given_up[zone] = f"override {approval} approves it"
                self.approvals[zone] = approval
        if zone in self.given_up:
            self.held.pop(zone, None)
            return ""
        self.held[zone] = str(found)
        return str(found)

    def forget_waits(self) -> None:
        """Count the wait of each held zone again from the next look.

        What was not observed for a while may have been in order meanwhile.
        """
        self._since_ms.clear()

    def admits(self, zone: str, step: str, now_ms: int) -> bool:
        """Whether one more step may be taken in a zone now. The same step counts once."""
        if zone in self.given_up:
            return True
        recent = [it for it in self._steps.get(zone, ()) if now_ms - it[0] < MARKS_WINDOW_MS]
        known = any(it[1] == step for it in recent)
        if not known and len(recent) < MARKS_PER_ZONE_MAX:
            recent.append((now_ms, step))
            known = True
        self._steps[zone] = recent
        return known
