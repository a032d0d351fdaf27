"""How an incarnation of the node begins: read the node, let fenced work end, register.

The agent sends what `due` returns, one request at a time, and passes the answer back. It reads the
node before every registration: a registration of a fenced node begins a new incarnation, which must
not happen while work of the old one still runs.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.node_facts import NodeFacts, as_seen
from holdfast.model.kinds.node import GONE, Node
from holdfast.model.machine import Reply, Rng
from holdfast.model.nodes.fence import HeldTimes
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, RegisterNode
from holdfast.model.validation.text import OPERATION_ID_MAX
from holdfast.observe.retry import RetryPolicy

# The node is read before each copy, so the loop of reads and registrations is its owner's.
REGISTRATION_PAUSES = RetryPolicy(pause_ms=200, pause_max_ms=30_000)
_NONCES = 1 << 32
# A process that has just started claims nothing: the node's record stays.
UNKNOWN_HOLDS = HeldTimes(0, 0)


class Registration:
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(self, node: str, identity: str, facts: NodeFacts, rng: Rng) -> None:
        self._name, self._identity, self._facts, self._rng = node, identity, facts, rng
        self._boot = ""
        # Tells the registrations of one process from those of the one before it, and a try from
        # an earlier one that was refused, or whose node was deleted since.
        self._process = ""
        self._settled = 0
        self._has_looked = self._is_waiting = self._is_accepted = False
        self._seen: Node | None = None
        self._failures = 0
        self.next_ms = 0
        # What the agent knows of the images here besides its facts.
        self.images: tuple[str, ...] = ()
        # Why the servers refuse the node; empty when they accept it, or have not answered.
        self.trouble = ""

    def begin(self, boot: str, now_ms: int) -> None:
        """The agent has started, in this boot of its machine."""
        self._boot = boot
        self._process = f"{boot}.{now_ms:x}.{int(self._rng.random() * _NONCES):x}"

    def again(self, now_ms: int) -> None:
        """An incarnation has ended: read the node again."""
        self._has_looked = self._is_accepted = False
        self.next_ms = now_ms

    @property
    def is_after_fence(self) -> bool:
        """Whether a registration would begin a new incarnation, by the last read."""
        return self._has_looked and self._seen is not None and self._seen.status.phase in GONE

    @property
    def installation(self) -> str:
        """The id of this agent's installation."""
        return self._facts.installation

    @property
    def has_lost_name(self) -> bool:
        """Whether another installation is registered under the node's name, by the last read.

        Work here continues then; what the servers have given up is stopped and reported.
        """
        seen = self._seen
        return seen is not None and bool(seen.status.installation) and not self._is_ours(seen)

    def _is_ours(self, node: Node) -> bool:
        return node.status.installation == self._facts.installation

    @property
    def is_idle(self) -> bool:
        return not self._is_waiting

    def due(self, now_ms: int, running: tuple[str, ...]) -> Get | RegisterNode | None:
        """The request to send now. `running` are the replicas that run on this machine."""
        if self._is_waiting or now_ms < self.next_ms:
            return None
        self._is_waiting = True
        if not self._has_looked:
            return Get("nodes", self._name)
        node = as_seen(self._node(), self._seen)
        return RegisterNode(node, running, self._operation(), UNKNOWN_HOLDS)

    def _node(self) -> Node:
        node = self._facts.node(self._name, self._boot)
        images = (*node.status.images, *self.images)
        status = msgspec.structs.replace(node.status, images=images)
        return msgspec.structs.replace(node, status=status)

    def again_with(self, running: tuple[str, ...], holds: HeldTimes, seen: Node) -> RegisterNode:
        """The registration of a continuing incarnation, with the timing that its work holds and the
        images that are here. It names the version of the node that was seen last."""
        node = as_seen(self._node(), seen)
        claim = f"{holds.number}-{holds.self_stop_after_ms}-{holds.grace_ms}"
        if self.is_other_images(seen):
            claim += "-images"
        what = f"holds-{claim}-{seen.metadata.resource_version}-{self._process}"
        return RegisterNode(node, running, what[:OPERATION_ID_MAX], holds)

    def is_other_images(self, seen: Node) -> bool:
        """Whether the record of the node lists other images than are here."""
        return self._node().status.images != seen.status.images

    def _operation(self) -> str:
        """The same for every try of one registration of an unchanged node. The return from a fence
        is another operation than a registration in the same incarnation."""
        seen = self._seen
        life = "new/0"
        if seen is not None:
            life = f"{seen.metadata.uid}/{seen.status.incarnation}.{seen.metadata.resource_version}"
        intent = "return" if self.is_after_fence else "register"
        what = f"{life}/{intent}-{self._process}.{self._settled}"
        whole = f"{self._identity}/{what}"
        return whole if len(whole) <= OPERATION_ID_MAX else what

    def answered(self, answer: Reply, now_ms: int) -> Node | None:
        """Process an answer. Returns the node once its incarnation is known to be ours."""
        self._is_waiting = False
        match answer:
            case GetResult(object=None | Node() as node):
                return self._looked(node, now_ms)
            case Accepted(objects=(Node() as node, *_)):
                self._failures, self.trouble = 0, ""
                return node
            case Accepted():
                # It was accepted before; the node has to be read.
                self._is_accepted, self._has_looked = True, False
                self.next_ms = now_ms
                return None
            case Refusal(message=message):
                # This try was decided, so the next one is another operation.
                self._settled += 1
                self.trouble = message
        self._failed(now_ms)
        return None

    def _looked(self, node: Node | None, now_ms: int) -> Node | None:
        self._has_looked, self._seen = True, node
        self.next_ms = now_ms
        is_ours, self._is_accepted = self._is_accepted, False
        if is_ours and node is None:
            # The accepted node is deleted, and its operation is remembered: use another one.
            self._settled += 1
        # Another installation may have taken the name since.
        is_ours = is_ours and node is not None and self._is_ours(node)
        return node if is_ours and not self.is_after_fence else None

    def _failed(self, now_ms: int) -> None:
        """Read again after a backoff with jitter: all agents lose the servers at once."""
        self._has_looked = False
        self._failures += 1
        self.next_ms = now_ms + REGISTRATION_PAUSES.pause(self._failures, 0, self._rng)
