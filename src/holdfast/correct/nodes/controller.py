"""controller:nodes: the phase of each node, from the heartbeats that the servers received.

It owns the phase and the mark of every node, and the transition to Unknown of replicas on a marked
node. Servers receive the agents' heartbeats (`commit.heartbeat_intake`), this controller asks the
servers, controller:repair acts on the fence, and controller:workload replaces released replicas.

    Ready    --two heartbeats missed-->           Suspect   no new work
    Suspect  --heartbeat-->                       Ready
    Suspect  --three and a half missed-->         Unknown   the mark; its replicas become Unknown
    Unknown  --heartbeat after the mark-->        Ready     that mark is cleared
    Unknown  --fenceAfter since the mark was seen-> Fenced  its work has certainly stopped
    Fenced   --silent for long-->                 Lost
    Fenced, Lost --its agent registers-->         Ready     a new incarnation; done by the commit

Where most of a zone is silent at once, the observers are rather at fault: `disruption_limits.py`
says for how long the zone is held back, and what gives it up.

All times are on this controller's own monotonic clock and are forgotten with its term: a new term
restarts the observation and the countdown of each fence. A node without any heartbeat counts as
silent from when it was first seen here, also one that an operator created and no agent registered:
the mark keeps work away and frees what was placed there, and the first registration brings it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.correct.controller import (
    BY_NODE,
    Controller,
    ReconcilePlan,
    key_of,
    operation,
    step_id,
)
from holdfast.correct.nodes.disruption_limits import DisruptionLimits, zone_of, zone_wait_ms
from holdfast.correct.nodes.silence import NodeSilence
from holdfast.correct.remembered import Notes, names_of, uids_of
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.override import Override
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Actor, State
from holdfast.model.machine import Question, Reply
from holdfast.model.nodes.fence import FenceTiming, fence_wait_ms
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport, exchange_every_ms
from holdfast.model.overrides import zone_approval
from holdfast.model.requests import Accepted, JudgeNode, Move, NodeAction, Term, target
from holdfast.model.time import Instant
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.snapshot import Snapshot

SUSPECT_AFTER_PERIODS = 2
# Three and a half.
MARK_AFTER_HALF_PERIODS = 7
# A fenced machine that is silent for this long will hardly come back as it was.
LOSE_AFTER_MS = 6 * 3_600_000
# How soon to reconcile a node again whose next step is due but held back.
HELD_PAUSE_MS = 1_000
# All silent nodes of a zone need the share of silent nodes; it is counted this often for all.
WEIGH_EVERY_MS = 500

# The key under which the servers are asked; keys of nodes have names.
LISTEN: Key = ("", "")
_ON_NODE = (State.BOUND, State.RUNNING, State.STOPPING)
_MARKED = (NodePhase.UNKNOWN, NodePhase.FENCED, NodePhase.LOST)


class NodesController(Controller):
    """See the module's docstring. `limits.held` says which zones are held back, and why."""

    actor = Actor.NODES
    follows = ("nodes", "replicas", "overrides")
    indexes = (BY_NODE,)

    def __init__(self) -> None:
        self.limits, self.silence = DisruptionLimits(), NodeSilence()
        # When a node was first seen in its present life, by name; when its mark was, and when it
        # was seen fenced, by uid.
        self._known: Notes[str, tuple[str, int, int]] = Notes(names_of("nodes"))
        self._marked: Notes[str, tuple[int, int]] = Notes(uids_of("nodes"))
        self._fenced_ms: Notes[str, int] = Notes(uids_of("nodes"))
        # Nodes whose phase a heartbeat may change.
        self._doubted: Notes[str, None] = Notes(names_of("nodes"))
        # When the servers were last asked for heartbeats, and how often they are asked, by LISTEN.
        self._asked_ms: Notes[Key, tuple[int, int]] = Notes(lambda _view: (LISTEN,))
        # Why nothing may be marked in a zone, and as of when.
        self._weighed: Notes[str, tuple[int, str]] = Notes()
        self.remembers = (
            self.limits,
            self.silence,
            self._known,
            self._marked,
            self._fenced_ms,
            self._doubted,
            self._asked_ms,
            self._weighed,
        )

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """A replica concerns the node it is bound to. Overrides are read when a zone is weighed."""
        obj: Any = change.object
        if isinstance(obj, Override):
            return ()
        if not isinstance(obj, Replica):
            return (key_of(obj),)
        binding = obj.status.binding
        return (("", binding.node),) if binding is not None else ()

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        return [LISTEN, *(key_of(node) for node in view.all("nodes"))]

    def answered(
        self, request: Question, to: str, answer: Reply, sent_ms: int, now: Instant
    ) -> Iterable[Key]:
        """Take a server's heartbeats, and note a committed mark."""
        now_ms = now.monotonic_ms
        match request, answer:
            case HeartbeatQuery(), HeartbeatReport():
                again = self.silence.take_answer(answer, sent_ms, now_ms)
                return [("", name) for name in again if name in self._doubted]
            case HeartbeatQuery(), _:
                self.silence.take_failure(to, sent_ms)
            case JudgeNode(word=NodeAction.MARK), Accepted(objects=objects):
                for node in objects:
                    if isinstance(node, Node):
                        self._sees_mark(node, now_ms)
        return ()

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        if key == LISTEN:
            return self._listen(view, now)
        node: Node | None = view.get("nodes", *key)
        self._doubted.pop(key[1], None)
        if node is None:
            uid = self._known.pop(key[1], ("", 0, 0))[0]
            self._marked.pop(uid, None)
            self._fenced_ms.pop(uid, None)
            return ReconcilePlan()
        if node.status.phase is not NodePhase.READY:
            self._doubted[node.name] = None
        now_ms = now.monotonic_ms
        self._knows(node, now_ms)
        self._sees_mark(node, now_ms)
        timing = self.silence.timing
        moves = tuple(self._unknown(view, node, term))
        if timing is None:
            return ReconcilePlan(moves, wake_after_ms=HELD_PAUSE_MS)
        action, wait_ms = self._due(view, node, timing, now)
        if action is None:
            return ReconcilePlan(moves, wake_after_ms=wait_ms)
        return ReconcilePlan(
            (self._judge(node, action, term, timing), *moves), wake_after_ms=HELD_PAUSE_MS
        )

    def _listen(self, view: Snapshot, now: Instant) -> ReconcilePlan:
        """Ask all servers, and weigh the zones with nodes whose phase is in doubt."""
        if not self.silence.is_listening(now.monotonic_ms):
            self.limits.forget_waits()
        doubted = (view.get("nodes", "", name) for name in sorted(self._doubted))
        zones = {zone_of(node) for node in doubted if node is not None}
        self._weigh(view, zones | set(self.limits.held), now)
        timing = self.silence.timing or FenceTiming()
        every_ms = exchange_every_ms(timing)
        self._asked_ms[LISTEN] = now.monotonic_ms, every_ms
        return ReconcilePlan(questions=(HeartbeatQuery(),), wake_after_ms=every_ms)

    def _with_asking(self, wait_ms: int, now_ms: int) -> int:
        """The wait, extended to the next time the servers are asked: silence cannot grow before.

        So all nodes are reconciled together, however many there are.
        """
        asked_ms, every_ms = self._asked_ms.get(LISTEN, (0, exchange_every_ms(FenceTiming())))
        return wait_ms + -(now_ms + wait_ms - asked_ms) % every_ms

    # Judging -------------------------------------------------------------------------------------

    def _sees_mark(self, node: Node, now_ms: int) -> None:
        """Remember when a mark was first seen committed: its countdown begins then."""
        uid, mark = node.metadata.uid, node.status.mark
        if node.status.phase not in (NodePhase.FENCED, NodePhase.LOST):
            self._fenced_ms.pop(uid, None)
        else:
            self._fenced_ms.setdefault(uid, now_ms)
        if mark is not None and self._marked.get(uid, (0, 0))[0] != mark.number:
            self._marked[uid] = (mark.number, now_ms)

    def _due(
        self, view: Snapshot, node: Node, timing: FenceTiming, now: Instant
    ) -> tuple[NodeAction | None, int]:
        """The action on the node that is due now, or the time until the next check."""
        now_ms = now.monotonic_ms
        silence_ms = self._silence_ms(node, now_ms)
        suspect_ms = timing.renew_every_ms * SUSPECT_AFTER_PERIODS
        mark_ms = timing.renew_every_ms * MARK_AFTER_HALF_PERIODS // 2
        heard_ms = self.silence.heard_ms(node.name)
        is_heard = heard_ms is not None and now_ms - heard_ms < suspect_ms
        match node.status.phase:
            case NodePhase.READY | NodePhase.SUSPECT as phase:
                # A node is suspected before it is marked: a heartbeat ends the suspicion, and with
                # it a mark that is still in flight.
                if silence_ms >= mark_ms and phase is NodePhase.SUSPECT:
                    return self._limited(view, node, NodeAction.MARK, now), HELD_PAUSE_MS
                if phase is NodePhase.READY:
                    # Also while marks are held back: it must not count as a healthy node.
                    is_due = silence_ms >= suspect_ms
                    wait_ms = self._with_asking(max(suspect_ms - silence_ms, 1), now_ms)
                    return (NodeAction.SUSPECT, 0) if is_due else (None, wait_ms)
                return (NodeAction.TRUST, 0) if is_heard else (None, HELD_PAUSE_MS)
            case NodePhase.UNKNOWN:
                return self._fence(view, node, timing, is_heard, now)
            case NodePhase.FENCED:
                fenced_for_ms = now_ms - self._fenced_ms[node.metadata.uid]
                wait_ms = LOSE_AFTER_MS - min(fenced_for_ms, silence_ms)
                return (NodeAction.LOSE, 0) if wait_ms <= 0 else (None, max(wait_ms, HELD_PAUSE_MS))
        return None, LOSE_AFTER_MS

    def _fence(
        self, view: Snapshot, node: Node, timing: FenceTiming, is_heard: bool, now: Instant
    ) -> tuple[NodeAction | None, int]:
        """Clear the mark of a node that sends heartbeats again, or fence it when its time is over.

        The fence waits until all its replicas are Unknown: one that is not could never be failed
        once the agent begins a new incarnation.
        """
        mark, now_ms = node.status.mark, now.monotonic_ms
        if mark is None:
            return None, HELD_PAUSE_MS
        _, seen_ms = self._marked[node.metadata.uid]
        heard_ms = self.silence.heard_ms(node.name)
        if is_heard and heard_ms is not None and heard_ms > seen_ms:
            return NodeAction.CLEAR, 0
        wait_ms = seen_ms + fence_wait_ms(node.status.timing, timing) - now_ms
        if wait_ms > 0:
            return None, wait_ms
        if any(it.status.state in _ON_NODE for it in view.found(BY_NODE, node.name)):
            return None, HELD_PAUSE_MS
        silent_ms = timing.renew_every_ms * SUSPECT_AFTER_PERIODS + WEIGH_EVERY_MS
        if self._silence_ms(node, now_ms) < silent_ms:
            # A server has restarted, and all silence counts from then. The share of silent nodes
            # is unknown before it has listened for that long, so the limit would not hold.
            return None, HELD_PAUSE_MS
        return self._limited(view, node, NodeAction.FENCE, now), HELD_PAUSE_MS

    def _limited(
        self, view: Snapshot, node: Node, action: NodeAction, now: Instant
    ) -> NodeAction | None:
        """The action, if the limits of the node's zone allow it now."""
        zone, now_ms = zone_of(node), now.monotonic_ms
        if not self.silence.is_listening(now_ms):
            self.limits.forget_waits()
            return None
        at_ms, reason = self._weighed.get(zone, (now_ms - WEIGH_EVERY_MS, ""))
        if now_ms - at_ms >= WEIGH_EVERY_MS:
            self._weigh(view, {zone}, now)
            reason = self._weighed[zone][1]
        if reason:
            return None
        step = f"{node.metadata.uid}/{node.status.marks}/{action.value}"
        return action if self.limits.admits(zone, step, now_ms) else None

    def _weigh(self, view: Snapshot, zones: set[str], now: Instant) -> None:
        """Weigh again what holds these zones back."""
        if not zones:
            return
        now_ms, timing = now.monotonic_ms, self.silence.timing or FenceTiming()
        silent_ms = timing.renew_every_ms * SUSPECT_AFTER_PERIODS
        nodes: dict[str, list[tuple[Node, bool]]] = {zone: [] for zone in sorted(zones)}
        for node in view.all("nodes"):
            if zone_of(node) in nodes:
                is_silent = self._silence_ms(node, now_ms) >= silent_ms
                nodes[zone_of(node)].append((node, is_silent))
        wait_ms = zone_wait_ms(self.silence.zone_silence_max_ms, self.silence.observers(now_ms))
        for zone, there in nodes.items():
            region, _, name = zone.partition("/")
            approval = zone_approval(view.all("overrides"), region, name, now.wall_ms)
            reason = self.limits.weigh(zone, there, now_ms, wait_ms=wait_ms, approval=approval)
            self._weighed[zone] = (now_ms, reason)

    def _silence_ms(self, node: Node, now_ms: int) -> int:
        known = self._known.get(node.name)
        return self.silence.silence_ms(node.name, known[2] if known else now_ms, now_ms)

    def _knows(self, node: Node, now_ms: int) -> None:
        """Remember since when a node is known in its present incarnation.

        An agent that has just registered is alive, however long its last incarnation was silent.
        """
        life = (node.metadata.uid, node.status.incarnation)
        if self._known.get(node.name, ())[:2] != life:
            self._known[node.name] = (*life, now_ms)

    # Requests ------------------------------------------------------------------------------------

    def _judge(self, node: Node, action: NodeAction, term: Term, timing: FenceTiming) -> JudgeNode:
        """The request for an action. Its reason is the same for every try."""
        mark = node.status.mark if action in (NodeAction.CLEAR, NodeAction.FENCE) else None
        waited_ms = fence_wait_ms(node.status.timing, timing)
        periods = {
            NodeAction.SUSPECT: f"no heartbeat for {SUSPECT_AFTER_PERIODS} periods",
            NodeAction.MARK: f"no heartbeat for {MARK_AFTER_HALF_PERIODS / 2} periods",
            NodeAction.FENCE: f"no heartbeat for {waited_ms} ms after its mark was seen",
            NodeAction.LOSE: f"no heartbeat for {LOSE_AFTER_MS} ms after its fence was seen",
        }
        reason = periods.get(action, "heartbeat received")
        approval, zone = "", zone_of(node)
        if action in (NodeAction.MARK, NodeAction.FENCE) and zone in self.limits.given_up:
            reason = f"{reason}; its zone is given up: {self.limits.given_up[zone]}"
            approval = self.limits.approvals.get(zone, "")
        return JudgeNode(
            node.name,
            node.metadata.uid,
            action,
            term,
            mark.number if mark is not None else 0,
            reason,
            operation(
                self.identity, node.metadata.uid, node.metadata.resource_version, action.value
            ),
            waited_ms if action is NodeAction.FENCE else None,
            node.metadata.resource_version,
            approval,
        )

    def _unknown(self, view: Snapshot, node: Node, term: Term) -> Iterator[Move]:
        """The moves to Unknown: the state of work on a marked node is unknown."""
        mark = node.status.mark
        if mark is None or node.status.phase not in _MARKED:
            return
        for replica in view.found(BY_NODE, node.name):
            if replica.status.state in _ON_NODE:
                yield Move(
                    target(replica),
                    State.UNKNOWN,
                    "NodeUnknown",
                    f"mark {mark.number} of node {node.name}",
                    mark=mark.number,
                    term=term,
                    operation=step_id(self.identity, replica, f"unknown-{mark.number}"),
                )
