"""How a life of the node begins: look at it, let the work of a fenced life end, register.

The agent sends what `due` returns, one request at a time, and gives back the answer. Looking comes
before every registration: one that reaches a fenced node begins a new life, and that must not
happen while work of the old one still runs.
"""

from __future__ import annotations

from typing import Any

from holdfast.agent.heartbeats import GONE
from holdfast.agent.node_facts import NodeFacts, as_seen
from holdfast.model.fence import HeldTimes
from holdfast.model.kinds.node import Node
from holdfast.model.machine import Rng
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, RegisterNode
from holdfast.observe.watch_events import Get, GetResult

RETRY_MIN_MS = 200
RETRY_MAX_MS = 30_000
_DOUBLINGS_MAX = 8
_NONCES = 1 << 32
# A process that has just started says only that it has: the record of the node stands.
UNKNOWN_HOLDS = HeldTimes(0, 0)
# The longest operation id that the authority takes.
OPERATION_ID_MAX = 253


class Registration:
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(self, node: str, identity: str, facts: NodeFacts, rng: Rng) -> None:
        self._name, self._identity, self._facts, self._rng = node, identity, facts, rng
        self._boot = ""
        # Tells the registrations of one process from those of the one before it, and a try from
        # the one before it that was refused, or that made a node which was deleted since.
        self._process = ""
        self._settled = 0
        self._has_looked = self._is_waiting = self._is_accepted = False
        self._seen: Node | None = None
        self._failures = 0
        self.next_ms = 0
        # Why the servers do not let it in; empty when they do, or have not said.
        self.trouble = ""

    def begin(self, boot: str, now_ms: int) -> None:
        """The agent has started, in this boot of its machine."""
        self._boot = boot
        self._process = f"{boot}.{now_ms:x}.{int(self._rng.random() * _NONCES):x}"

    def again(self, now_ms: int) -> None:
        """A life has ended: look what the servers say of the node."""
        self._has_looked = self._is_accepted = False
        self.next_ms = now_ms

    @property
    def is_after_fence(self) -> bool:
        """Whether a registration would begin a new life, as far as we have seen."""
        return self._has_looked and self._seen is not None and self._seen.status.phase in GONE

    @property
    def installation(self) -> str:
        """Which of all agents this is."""
        return self._facts.installation

    @property
    def has_lost_name(self) -> bool:
        """Whether another installation is registered under the node's name, as far as we have seen.

        What runs here then still runs: whatever of it was given up is stopped, and that is said.
        """
        seen = self._seen
        return seen is not None and bool(seen.status.installation) and not self._is_ours(seen)

    def _is_ours(self, node: Node) -> bool:
        return node.status.installation == self._facts.installation

    @property
    def is_idle(self) -> bool:
        return not self._is_waiting

    def due(self, now_ms: int, running: tuple[str, ...]) -> Get | RegisterNode | None:
        """What to ask the servers now. `running` is what goes on on this machine."""
        if self._is_waiting or now_ms < self.next_ms:
            return None
        self._is_waiting = True
        if not self._has_looked:
            return Get("nodes", self._name)
        node = as_seen(self._node(), self._seen)
        return RegisterNode(node, running, self._operation(), UNKNOWN_HOLDS)

    def _node(self) -> Node:
        return self._facts.node(self._name, self._boot)

    def again_with(self, running: tuple[str, ...], holds: HeldTimes, seen: Node) -> RegisterNode:
        """The registration of a life that goes on, with what its work holds by now. It rests on
        the node as it was seen last."""
        claim = f"{holds.number}-{holds.self_stop_after_ms}-{holds.grace_ms}"
        what = f"holds-{claim}-{seen.metadata.resource_version}-{self._process}"
        node = as_seen(self._node(), seen)
        return RegisterNode(node, running, what[:OPERATION_ID_MAX], holds)

    def _operation(self) -> str:
        """The same for every try of one registration, of a node that has not changed meanwhile. The
        return from a fence is another intention than a registration in the same life."""
        seen = self._seen
        life = "new/0"
        if seen is not None:
            life = f"{seen.metadata.uid}/{seen.status.incarnation}.{seen.metadata.resource_version}"
        intent = "return" if self.is_after_fence else "register"
        what = f"{life}/{intent}-{self._process}.{self._settled}"
        whole = f"{self._identity}/{what}"
        return whole if len(whole) <= OPERATION_ID_MAX else what

    def answered(self, answer: Any, now_ms: int) -> Node | None:
        """Take in an answer. The node, once this life of it is known to be ours."""
        self._is_waiting = False
        match answer:
            case GetResult(object=None | Node()):
                return self._looked(answer.object, now_ms)
            case Accepted(objects=(Node() as node, *_)):
                self._failures, self.trouble = 0, ""
                return node
            case Accepted():
                # It was accepted before; what came of it has to be read.
                self._is_accepted, self._has_looked = True, False
                self.next_ms = now_ms
                return None
            case Refusal(message=message):
                # Decided, so the next try is another one.
                self._settled += 1
                self.trouble = message
        self._failed(now_ms)
        return None

    def _looked(self, node: Any, now_ms: int) -> Node | None:
        self._has_looked, self._seen = True, node
        self.next_ms = now_ms
        is_ours, self._is_accepted = self._is_accepted, False
        if is_ours and node is None:
            # What was accepted is gone again, and is remembered: to come back is another intention.
            self._settled += 1
        # What was accepted once may be another installation's life by now.
        is_ours = is_ours and node is not None and self._is_ours(node)
        return node if is_ours and not self.is_after_fence else None

    def _failed(self, now_ms: int) -> None:
        """Look again after a pause that grows, with jitter: all agents lose the servers at once."""
        self._has_looked = False
        longest_ms = min(RETRY_MAX_MS, RETRY_MIN_MS << min(self._failures, _DOUBLINGS_MAX))
        self._failures += 1
        self.next_ms = now_ms + int(longest_ms * (0.5 + self._rng.random() / 2))
