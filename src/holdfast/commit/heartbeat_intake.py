"""Heartbeats: a server takes in the renewals of agents, and reports which nodes it heard.

Each server runs one beside its authority. A renewal writes nothing. It is answered from a
linearizable read of the node, and only while that read is young: sent within the ack window before
the answer, by this server's own clock. So an agent whose answer shows no mark has sent its renewal
at most an ack window after any mark that the read missed, and the fencing inequality
(`model.nodes.fence`) relies on that. It does not matter which came first, the renewal or the read;
renewals of one node therefore share reads.

controller:nodes asks servers which nodes they heard, and servers exchange digests
(`heartbeat_digests.py`), so that each answers for all. What is remembered here avoids false marks
and proves nothing; it is lost with the process, which is why `Heard` says for how long the server
has been listening.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.commit.heartbeat_digests import WAKE, Digests
from holdfast.model import keys
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.errors import HoldfastError, Unavailable, invariant, unreachable
from holdfast.model.kinds.node import HeldTiming, Node, NodePhase
from holdfast.model.lifecycle import Actor
from holdfast.model.machine import (
    Answer,
    Answered,
    Asked,
    Effects,
    Range,
    Reply,
    Started,
    Stimulus,
    Woken,
)
from holdfast.model.nodes.fence import FenceTiming, greatest_timing, limit_timing, timing_of
from holdfast.model.nodes.heartbeat import (
    ZONE_SILENCE_MAX_MS,
    HeartbeatQuery,
    HeartbeatReport,
    NodeUse,
    ProgressNotes,
    Renew,
    Renewed,
    SeenUse,
    ServerRoster,
)
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.time import Instant
from holdfast.model.transaction import Page

# An agent renews every few seconds and waits for one answer; more at once is a fault or an attack.
WAITING_PER_NODE_MAX = 8
WAITING_MAX = 10_000
# A store that is too slow three times in a row is too slow; the agent may ask another server.
READS_MAX = 3
# Long after any fence has passed, no caller asks when a node was last heard.
FORGET_AFTER_MS = 3_600_000


# Who may ask which nodes this server heard: people by their roles, and the other servers.
_ASKERS = (Actor.NODES, Actor.OPERATOR, Actor.AUTHORITY)


class _Uid(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class _Number(msgspec.Struct, frozen=True, gc=False):
    number: int


class _Status(msgspec.Struct, frozen=True, gc=False):
    phase: NodePhase = NodePhase.READY
    mark: _Number | None = None
    incarnation: int = 0
    timing: HeldTiming | None = None


class _Standing(msgspec.Struct, frozen=True, gc=False):
    """The fields of a stored node that a renewal needs, decoded in a fraction of the time of the
    whole.

    Absent fields are at their defaults, as in the node itself.
    """

    metadata: _Uid
    status: _Status = _Status()


_STANDING = msgspec.json.Decoder(_Standing)


class _Waiting(msgspec.Struct, frozen=True):
    """A renewal that waits for a read.

    `is_late` says that the read was in flight when the renewal came; `reads` counts those before.
    """

    call: int
    renew: Renew
    came_ms: int
    is_late: bool
    reads: int = 0


class _Read(msgspec.Struct):
    """One read of a node in flight, and the renewals that wait for it."""

    node: str
    sent_ms: int
    waiting: list[_Waiting]


class Renewals:
    """See the module's docstring. It owns the numbers of its own calls, and a wake-up.

    `life` tells this process from all others that ever had its name. `unready` says why this server
    may not take renewals yet, if the shell knows of a reason: as long as the other servers do not
    know of this one, they would consider nodes silent that only this one hears.
    """

    def __init__(
        self,
        name: str,
        timing: FenceTiming,
        *,
        life: str = "",
        zone_silence_max_ms: int = ZONE_SILENCE_MAX_MS,
    ) -> None:
        self._name, self._timing, self._life = name, timing, life
        self._zone_silence_max_ms = zone_silence_max_ms
        self.unready: Callable[[Instant], str] = lambda _now: ""
        self._digests = Digests(name, timing, FORGET_AFTER_MS)
        self._since_ms: int | None = None
        self._calls = 0
        self._reads: dict[int, _Read] = {}
        self._by_node: dict[str, _Read] = {}
        self._waiting = 0
        # When each node was last heard, the oldest first.
        self._heard_ms: dict[str, int] = {}
        # What nodes reported with their last renewal, if anything.
        self._said: dict[str, ProgressNotes] = {}
        # The last sample of what each node's work uses, and when it came.
        self._used: dict[str, tuple[int, NodeUse]] = {}

    def step(self, stimulus: Stimulus, now: Instant) -> Effects:
        if self._since_ms is None:
            self._since_ms = now.monotonic_ms
        match stimulus:
            case Answered(call=call) if call in self._reads:
                return self._read(self._reads.pop(call), stimulus.body, now)
            case Answered(call=call):
                return self._digests.answered(call, stimulus.body, self._next_call, now)
            case Woken(name=name) if name == WAKE:
                return self._digests.tick(self._next_call, now)
            case Asked(body=Renew() as renew):
                return self._renewed(stimulus, renew, now)
            case Asked(body=HeartbeatQuery() as query):
                return [Answer(stimulus.call, self._heard_of(stimulus, query, now))]
            case Asked():
                no = Refusal(Reason.INVALID, "only Renew and HeartbeatQuery are answered here")
                return [Answer(stimulus.call, no)]
            case Started():
                self._since_ms = now.monotonic_ms
                return self._digests.tick(self._next_call, now)
        return []

    def _next_call(self) -> int:
        self._calls += 1
        return self._calls

    def roster(self, now: Instant) -> ServerRoster | None:
        """The servers by their leases; None before they were read."""
        return self._digests.roster(now)

    # Renewals ------------------------------------------------------------------------------------

    def _renewed(self, asked: Asked, renew: Renew, now: Instant) -> Effects:
        identity = _identity(asked)
        if identity.node is None:
            no = Refusal(
                Reason.NOT_ALLOWED, f"{identity.name} is not the agent of a node: it cannot renew"
            )
            return [Answer(asked.call, no)]
        if identity.node != renew.node:
            no = Refusal(Reason.NOT_OWNER, f"{identity.name} may not renew node {renew.node!r}")
            return [Answer(asked.call, no)]
        unready = self.unready(now)
        if unready:
            return [Answer(asked.call, Unavailable(unready))]
        read = self._by_node.get(renew.node)
        if read is not None and len(read.waiting) >= WAITING_PER_NODE_MAX:
            full = f"{WAITING_PER_NODE_MAX} renewals of node {renew.node!r} wait; retry later"
            return [Answer(asked.call, Unavailable(full))]
        if self._waiting >= WAITING_MAX:
            return [Answer(asked.call, Unavailable(f"{WAITING_MAX} renewals wait; retry later"))]
        self._waiting += 1
        waiting = _Waiting(asked.call, renew, now.monotonic_ms, is_late=read is not None)
        if read is not None:
            read.waiting.append(waiting)
            return []
        return [self._send(renew.node, [waiting], now)]

    def _send(self, node: str, waiting: list[_Waiting], now: Instant) -> Range:
        invariant(node not in self._by_node, f"node {node!r} is being read already")
        call = self._next_call()
        read = _Read(node, now.monotonic_ms, waiting)
        self._reads[call] = self._by_node[node] = read
        key = keys.object_key(kind_of_struct(Node), "", node)
        # An answer that comes later than this is of no use.
        timeout_ms = max(1, self._timing.ack_window_ms)
        return Range(call, key, key + "\0", 1, timeout_ms=timeout_ms)

    def _read(self, read: _Read, body: Reply, now: Instant) -> Effects:
        """Take in a read: answer the renewals that it serves, and read again for the others."""
        del self._by_node[read.node]
        if isinstance(body, HoldfastError):
            lost = Unavailable(f"node {read.node!r} could not be read: {body}")
            return [self._answer(it, lost) for it in read.waiting]
        if not isinstance(body, Page):
            unreachable(f"a range was answered with {body!r}")
        if now.monotonic_ms - read.sent_ms > self._timing.ack_window_ms:
            return self._again(read.node, read.waiting, now)
        try:
            node = _STANDING.decode(body.records[0].value) if body.records else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            broken = Unavailable(f"the record of node {read.node!r} cannot be read: {error}")
            return [self._answer(it, broken) for it in read.waiting]
        if node is not None and now.monotonic_ms - read.sent_ms > self._given(node).ack_window_ms:
            return self._again(read.node, read.waiting, now)
        effects: Effects = []
        left: list[_Waiting] = []
        for waiting in read.waiting:
            answer = self._verdict(node, waiting.renew)
            # A read that was in flight when the renewal came may be older than what the agent
            # relies on, such as its own registration. It may let work run on, but a refusal needs a
            # younger read.
            is_no = isinstance(answer, Refusal) or not answer.acknowledges(waiting.renew)
            if is_no and waiting.is_late:
                left.append(waiting)
            else:
                self._hear(waiting, answer, now)
                effects.append(self._answer(waiting, answer))
        return effects + self._again(read.node, left, now)

    def _again(self, node: str, waiting: list[_Waiting], now: Instant) -> Effects:
        """Read once more for the renewals that were not served, as often as that is allowed."""
        effects: Effects = []
        left: list[_Waiting] = []
        for it in waiting:
            if it.reads + 1 < READS_MAX:
                left.append(msgspec.structs.replace(it, is_late=False, reads=it.reads + 1))
            else:
                window_ms = self._timing.ack_window_ms
                slow = f"the store did not return node {node!r} within {window_ms} ms"
                effects.append(self._answer(it, Unavailable(slow)))
        return [*effects, self._send(node, left, now)] if left else effects

    def _verdict(self, node: _Standing | None, renew: Renew) -> Renewed | Refusal:
        """The answer for the node's state, whichever incarnation of it asks."""
        name = renew.node
        if node is None:
            return Refusal(Reason.NODE_MISSING, f"there is no node {name!r}", {"node": name})
        status = node.status
        mark = status.mark.number if status.mark is not None else 0
        uid = node.metadata.uid
        held = timing_of(status.timing)
        wanted = (
            self._timing if held is not None and held != greatest_timing(self._timing) else None
        )
        given = limit_timing(self._timing, held)
        return Renewed(name, uid, status.incarnation, status.phase, mark, given, wanted)

    def _given(self, node: _Standing) -> FenceTiming:
        """The timing that the agent of this node may have."""
        return limit_timing(self._timing, timing_of(node.status.timing))

    def _answer(self, waiting: _Waiting, body: Reply) -> Answer:
        self._waiting -= 1
        return Answer(waiting.call, body)

    # Nodes that we heard -------------------------------------------------------------------------

    def _hear(self, waiting: _Waiting, answer: Renewed | Refusal, now: Instant) -> None:
        """Remember a renewal of the recorded incarnation.

        An earlier incarnation, or another machine of that name, is no sign that this one is well.
        """
        node = waiting.renew.node
        if isinstance(answer, Refusal):
            self._drop(node)
        elif answer.is_of(waiting.renew):
            last_ms = self._heard_ms.pop(node, waiting.came_ms)
            if waiting.came_ms >= last_ms:
                self._remember(node, waiting.renew.said)
                if waiting.renew.use is not None:
                    self._used[node] = waiting.came_ms, waiting.renew.use
            self._heard_ms[node] = max(waiting.came_ms, last_ms)
        self._forget(now)

    def _remember(self, node: str, said: ProgressNotes) -> None:
        if said.notes or said.more:
            self._said[node] = said
        else:
            self._said.pop(node, None)

    def _heard_of(
        self, asked: Asked, query: HeartbeatQuery, now: Instant
    ) -> HeartbeatReport | Refusal:
        identity = _identity(asked)
        # People reach this point only if their roles allow the question.
        if not any(actor in _ASKERS for actor in acts_as(identity)):
            return Refusal(
                Reason.NOT_ALLOWED, f"{identity.name} may not ask which nodes were heard"
            )
        self._forget(now)
        heard_ms, said = dict(self._heard_ms), dict(self._said)
        late_ms = now.monotonic_ms - 2 * self._timing.renew_every_ms
        heard = sum(at_ms > late_ms for at_ms in heard_ms.values())
        for node, at_ms, there in self._digests.heard_nodes(now):
            if at_ms > heard_ms.get(node, -1):
                heard_ms[node] = at_ms
                said.pop(node, None)
                if there is not None:
                    said[node] = there
        ages_ms = {node: now.monotonic_ms - at for node, at in sorted(heard_ms.items())}
        now_ms = now.monotonic_ms
        used = self._digests.used(now)
        for node, (came_ms, use) in self._used.items():
            age_ms = now_ms - came_ms
            if node not in used or age_ms < used[node].age_ms:
                used[node] = SeenUse(age_ms, use.cpu_milli, use.memory_bytes)
        own = self._used.get(query.node)
        since_ms = self._since_ms if self._since_ms is not None else now.monotonic_ms
        listening_ms = now.monotonic_ms - since_ms
        return HeartbeatReport(
            self._name,
            listening_ms,
            ages_ms,
            self._timing,
            said,
            self._life,
            self._digests.server_reports(now),
            self._digests.roster(now),
            used,
            own[1].replicas if own is not None else (),
            heard,
            self._zone_silence_max_ms,
        )

    def _forget(self, now: Instant) -> None:
        oldest_ms = now.monotonic_ms - FORGET_AFTER_MS
        while self._heard_ms:
            node, at_ms = next(iter(self._heard_ms.items()))
            if at_ms > oldest_ms:
                return
            self._drop(node)

    def _drop(self, node: str) -> None:
        for table in (self._heard_ms, self._said, self._used):
            table.pop(node, None)


def _identity(asked: Asked) -> Identity:
    sender = asked.sender
    return sender if isinstance(sender, Identity) else Identity(name=sender)
