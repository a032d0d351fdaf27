"""How a life of the node begins: look at it, let the work of a fenced life end, register.

The agent sends what `due` returns, one request at a time, and gives back the answer. Looking comes
before every registration: one that reaches a fenced node begins a new life, and that must not
happen while work of the old one still runs.
"""

from __future__ import annotations

from typing import Any

from holdfast.agent.facts import Facts
from holdfast.agent.renewing import GONE
from holdfast.model.kinds.node import Node
from holdfast.model.machine import Rng
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, RegisterNode
from holdfast.observe.news import Found, Get

RETRY_MIN_MS = 200
RETRY_MAX_MS = 30_000
_DOUBLINGS_MAX = 8
_NONCES = 1 << 32
# The longest operation id that the authority takes.
OPERATION_ID_MAX = 253


class Entry:
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(self, node: str, identity: str, facts: Facts, rng: Rng) -> None:
        self._name, self._identity, self._facts, self._rng = node, identity, facts, rng
        self._boot = ""
        # Tells the registrations of one process from those of the one before it, and a try from
        # the one before it that was refused.
        self._process = ""
        self._refused = 0
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
    def is_idle(self) -> bool:
        return not self._is_waiting

    def due(self, now_ms: int, running: tuple[str, ...]) -> Get | RegisterNode | None:
        """What to ask the servers now. `running` is what goes on on this machine."""
        if self._is_waiting or now_ms < self.next_ms:
            return None
        self._is_waiting = True
        if not self._has_looked:
            return Get("nodes", self._name)
        node = self._facts.node(self._name, self._boot)
        return RegisterNode(node, running, self._operation())

    def _operation(self) -> str:
        """The same for every try of one registration. The return from a fence is another intention
        than a registration in the same life, which may have been accepted before."""
        seen = self._seen
        life = f"{seen.metadata.uid}/{seen.status.incarnation}" if seen is not None else "new/0"
        intent = "return" if self.is_after_fence else "register"
        what = f"{life}/{intent}-{self._process}.{self._refused}"
        whole = f"{self._identity}/{what}"
        return whole if len(whole) <= OPERATION_ID_MAX else what

    def answered(self, answer: Any, now_ms: int) -> Node | None:
        """Take in an answer. The node, once this life of it is known to be ours."""
        self._is_waiting = False
        match answer:
            case Found(object=None | Node()):
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
                self._refused += 1
                self.trouble = message
        self._failed(now_ms)
        return None

    def _looked(self, node: Any, now_ms: int) -> Node | None:
        self._has_looked, self._seen = True, node
        self.next_ms = now_ms
        is_ours, self._is_accepted = self._is_accepted, False
        return node if is_ours and node is not None and not self.is_after_fence else None

    def _failed(self, now_ms: int) -> None:
        """Look again after a pause that grows, with jitter: all agents lose the servers at once."""
        self._has_looked = False
        longest_ms = min(RETRY_MAX_MS, RETRY_MIN_MS << min(self._failures, _DOUBLINGS_MAX))
        self._failures += 1
        self.next_ms = now_ms + int(longest_ms * (0.5 + self._rng.random() / 2))
