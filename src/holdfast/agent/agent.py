"""The agent of one node: registers it, sends heartbeats, runs bound replicas, proves their stop.

A pure machine. `host/` gives it real processes and sockets, the simulator a process table and a
simulated network; both use `agent/runtime_protocol.py`. The scheduler binds replicas before it, and
the controllers act on its reports after it.

It persists nothing. The inventory tells what runs, and which attempt it is; the binding tells in
which incarnation it was started, since a replica is bound once; the status tells how often it was
restarted. Deadlines are readings of a clock that a reboot resets, so the shims hold them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.agent.fence_timing import FenceTimingClaims
from holdfast.agent.heartbeats import Echo, Life, NodeHeartbeats
from holdfast.agent.node_facts import NodeFacts
from holdfast.agent.registration import Registration
from holdfast.agent.replica_workers import ReplicaWorkers
from holdfast.agent.runtime_protocol import (
    AgentEffect,
    AgentEffects,
    AgentStimulus,
    Exited,
    Extend,
    Inventory,
    Launched,
    LookAround,
    NotLaunched,
    PortsOpened,
    Probed,
    Sampled,
)
from holdfast.agent.tenant_images import TenantImages
from holdfast.agent.work import NodeContext, version_of
from holdfast.model.access.identity import agent as agent_identity
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.node import GONE, Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.machine import Answered, Reply, Rng, Started, Wake
from holdfast.model.nodes.fence import HeldTimes
from holdfast.model.nodes.heartbeat import NodeUse, Renew
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.requests import Accepted
from holdfast.model.time import Instant, sooner
from holdfast.observe.cache import Cache, ObjectChange, is_for_cache_only
from holdfast.observe.inflight import Inflight, InflightRequest
from holdfast.observe.watch_events import AGENT_BOOKMARK_MS, Follow

# The resync finds a lost change such as a stop or a bind. The plane has to converge within 120 s
# after the last fault, so the resync and a stop that it finds fit into that.
RESYNC_MS = 80_000
ASKS_MAX = 64

# The subject of a request in flight: one of these, or the uid of a replica.
RENEW, ENTER, LOOK, HOLDS, IMAGES = "renew", "enter", "look", "holds", "images"


class Agent:
    """See the module's docstring."""

    def __init__(self, node: str, facts: NodeFacts, rng: Rng) -> None:
        self._name = node
        self._identity = agent_identity(node).name
        follows = (
            Follow(
                "replicas",
                fields=f"status.binding.node={node}",
                bookmark_ms=AGENT_BOOKMARK_MS,
            ),
            Follow("nodes", fields=f"metadata.name={node}", bookmark_ms=AGENT_BOOKMARK_MS),
        )
        self._cache = Cache(follows, rng, resync_ms=RESYNC_MS)
        self._asks: Inflight[str] = Inflight(ASKS_MAX)
        self._workers = ReplicaWorkers(self._cache, self._asks, rng)
        self._registration = Registration(node, self._identity, facts, rng)
        self._heartbeats = NodeHeartbeats(node, rng)
        self._timing = FenceTimingClaims(self._heartbeats)
        self._images = TenantImages()
        self._life: Life | None = None
        self._node: Node | None = None
        self._is_looking = False
        # The last sample of what the work uses, until a renewal has carried it.
        self._use: NodeUse | None = None
        self._wake_ms: int | None = None

    @property
    def life(self) -> Life | None:
        """The incarnation of the node that this agent has registered, if any."""
        return self._life

    @property
    def trouble(self) -> str:
        """Why the servers refuse this node, for its operator; empty when they accept it."""
        return self._registration.trouble if self._life is None else ""

    def step(self, stimulus: AgentStimulus, now: Instant) -> Sequence[AgentEffect]:
        """Process one stimulus and return the effects to perform, in order."""
        now_ms = now.monotonic_ms
        knew = self._cache.is_ready
        told = self._cache.step(stimulus, now)
        if knew and not told.changes and is_for_cache_only(stimulus):
            # The streams brought no change. What is due at a time has its own wake-up.
            return told.effects
        out: AgentEffects = []
        match stimulus:
            case Started(boot=boot):
                self._registration.begin(boot, now_ms)
                out.append(LookAround())
            case Inventory():
                self._workers.take_inventory(stimulus, now_ms)
            case Launched():
                halt = self._workers.launched(stimulus, now_ms)
                out += [halt] if halt is not None else []
            case (
                NotLaunched(attempt=attempt, process=process)
                | Exited(attempt=attempt, process=process)
            ):
                self._workers.ended(attempt, process, isinstance(stimulus, Exited), now_ms)
            case PortsOpened():
                self._workers.opened(stimulus, now_ms)
            case Probed():
                self._workers.probed(stimulus, now_ms)
            case Sampled(use=use):
                self._use = use
            case Answered(call=call, body=body):
                pending = self._asks.answered(call)
                if pending is not None:
                    self._answered(pending, body, now_ms, out)
        out += told.effects
        for change in told.changes:
            self._changed(change, now_ms)
        self._advance(now_ms, out)
        return out

    # Input from the servers ----------------------------------------------------------------------

    def _changed(self, change: ObjectChange, now_ms: int) -> None:
        before, after = change.before, change.after
        if change.plural == "nodes":
            if isinstance(after, Node):
                self._see(after, now_ms)
            elif self._life is not None and change.object.metadata.uid == self._life.uid:
                self._end_life(now_ms)
            return
        if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
            self._workers.lost_sight_of(before.metadata.uid, now_ms)
        if isinstance(after, Replica):
            self._workers.heard_of(after, now_ms)

    def _see(self, node: Node, now_ms: int) -> None:
        """Process a version of the node; perhaps this incarnation is over."""
        if self._node is not None and version_of(node) < version_of(self._node):
            return
        self._node = node
        self._timing.see(node)
        if self._life is None:
            return
        if _life_of(node) != self._life or node.status.phase in GONE:
            self._end_life(now_ms)
        else:
            self._workers.tend_all(now_ms)

    def _answered(
        self, pending: InflightRequest[str], answer: Reply, now_ms: int, out: AgentEffects
    ) -> None:
        match pending.about:
            case "renew":
                renew = pending.request
                if isinstance(renew, Renew):
                    self._renewed(renew, answer, pending.sent_ms, now_ms, out)
            case "enter":
                node = self._registration.answered(answer, now_ms)
                if node is not None:
                    self._begin_life(node, now_ms, out)
            case "holds" | "images" as about:
                if about == HOLDS:
                    self._timing.is_asking = False
                for found in answer.objects if isinstance(answer, Accepted) else ():
                    if isinstance(found, Node):
                        self._see(found, now_ms)
            case "look":
                self._is_looking = False
                if isinstance(answer, GetResult) and isinstance(answer.object, Node):
                    self._see(answer.object, now_ms)
                elif isinstance(answer, GetResult):
                    self._end_life(now_ms)
            case uid:
                self._workers.answered(uid, pending.request, answer, now_ms)

    def _renewed(
        self, renew: Renew, answer: Reply, sent_ms: int, now_ms: int, out: AgentEffects
    ) -> None:
        before_ms = self._heartbeats.deadline_ms
        could_launch = self._heartbeats.may_launch(now_ms)
        echo = self._heartbeats.answered(renew, answer, sent_ms, now_ms)
        deadline_ms = self._heartbeats.deadline_ms
        if echo is Echo.ACKNOWLEDGED:
            self._workers.servers_heard(now_ms)
            self._retime(now_ms, out)
            self._list_images(now_ms, out)
        elif isinstance(answer, HoldfastError):
            self._workers.is_unheard = True
        if echo is Echo.OVER:
            self._end_life(now_ms)
        elif echo is Echo.DOUBT:
            self._workers.doubts_node = True
        elif deadline_ms is not None and deadline_ms != before_ms:
            out.append(Extend(deadline_ms))
            if not could_launch:
                # Starts have waited for this deadline.
                self._workers.tend_all(now_ms)

    def _retime(self, now_ms: int, out: AgentEffects) -> None:
        """Register again where the plane's timing differs from what the work here may hold."""
        if self._node is None or not self._is_clear:
            return
        held_ms = self._workers.grace_held_ms(self._timing.grace_max_ms)
        holds = self._timing.due(self._node, held_ms, now_ms)
        if holds is not None:
            self._timing.claims(holds)
            request = self._registration.again_with(self._workers.running, holds, self._node)
            out.append(self._asks.ask(request, HOLDS, now_ms))

    def _list_images(self, now_ms: int, out: AgentEffects) -> None:
        """Register again where the node's record lists other images than are here."""
        node = self._node
        self._registration.images = self._images.in_use(self._workers.images, now_ms)
        if node is None or self._timing.is_asking or not self._registration.is_other_images(node):
            return
        record = node.status.timing
        if record is None or not self._is_clear or not self._images.may_report(now_ms):
            return
        # It claims what the record has: a registration without a claim could begin an incarnation.
        holds = HeldTimes(record.self_stop_after_ms, record.grace_ms, record.number)
        request = self._registration.again_with(self._workers.running, holds, node)
        out.append(self._asks.ask(request, IMAGES, now_ms))

    # Incarnations --------------------------------------------------------------------------------

    def _begin_life(self, node: Node, now_ms: int, out: AgentEffects) -> None:
        self._life = _life_of(node)
        if self._node is None or version_of(node) >= version_of(self._node):
            self._node = node
            self._timing.see(node)
        self._heartbeats.begin(self._life, now_ms)
        # A fence may have come between the read and the registration.
        self._workers.halt_strays(self._view(now_ms), out)
        self._workers.tend_all(now_ms)

    def _end_life(self, now_ms: int) -> None:
        """Read the node before anything else: running work may be replaced elsewhere by now."""
        if self._life is not None:
            self._life = None
            self._heartbeats.end()
            self._registration.again(now_ms)

    @property
    def _is_clear(self) -> bool:
        """Whether the node has no mark and no fence in this incarnation, as far as known."""
        node = self._node
        if node is None or self._life is None or _life_of(node) != self._life:
            return False
        return node.status.mark is None and node.status.phase not in GONE

    def _view(self, now_ms: int) -> NodeContext:
        heartbeats = self._heartbeats
        return NodeContext(
            node=self._name,
            identity=self._identity,
            life=self._life,
            is_clear=self._is_clear,
            deadline_ms=heartbeats.deadline_ms if heartbeats.may_launch(now_ms) else None,
            grace_max_ms=heartbeats.timing.grace_ms,
            now_ms=now_ms,
            installation=self._registration.installation,
            has_lost_name=self._registration.has_lost_name,
        )

    # Next actions --------------------------------------------------------------------------------

    @property
    def _knows(self) -> bool:
        """Whether inventory and cache are complete; before that nothing is decided."""
        return self._workers.has_inventory and self._cache.is_ready

    def _may_tend(self) -> bool:
        has_standing = self._registration.is_after_fence or self._registration.has_lost_name
        return self._knows and (self._life is not None or has_standing)

    def _advance(self, now_ms: int, out: AgentEffects) -> None:
        if self._knows and self._life is None:
            self._enter(now_ms, out)
        if self._life is not None:
            self._renew(now_ms, out)
        if self._may_tend() and self._workers.is_due(now_ms):
            self._workers.tend(self._view(now_ms), out)
        if self._life is not None and self._workers.doubts_node and not self._is_looking:
            self._workers.doubts_node, self._is_looking = False, True
            out.append(self._asks.ask(Get("nodes", self._name), LOOK, now_ms))
        self._tick(now_ms, out)

    def _enter(self, now_ms: int, out: AgentEffects) -> None:
        """Register; after a fence only when no work of the old incarnation runs that must not."""
        self._workers.read_strangers(now_ms)
        if self._registration.is_after_fence:
            self._workers.halt_strays(self._view(now_ms), out)
            if self._workers.has_strays:
                return
        self._registration.images = self._images.in_use(self._workers.images, now_ms)
        request = self._registration.due(now_ms, self._workers.running)
        if request is not None:
            out.append(self._asks.ask(request, ENTER, now_ms))

    def _renew(self, now_ms: int, out: AgentEffects) -> None:
        if not self._heartbeats.is_due(now_ms):
            return
        renew = self._heartbeats.due(now_ms, self._workers.unsaid())
        if renew is not None:
            renew = msgspec.structs.replace(renew, use=self._use)
            self._use = None
            timeout_ms = self._heartbeats.timeout_ms
            out.append(self._asks.ask(renew, RENEW, now_ms, timeout_ms=timeout_ms))

    def _tick(self, now_ms: int, out: AgentEffects) -> None:
        """Set the wake-up for what is due first; what waits for a stimulus needs none."""
        at_ms = self._heartbeats.next_ms
        if self._may_tend():
            at_ms = sooner(at_ms, self._workers.next_ms)
        if self._life is None and self._registration.is_idle and self._knows:
            is_held = self._registration.is_after_fence and self._workers.has_strays
            at_ms = at_ms if is_held else sooner(at_ms, self._registration.next_ms)
        if at_ms is not None:
            at_ms = max(now_ms + 1, at_ms)
            if at_ms != self._wake_ms:
                out.append(Wake("agent", at_ms))
        self._wake_ms = at_ms


def _life_of(node: Node) -> Life:
    return Life(node.metadata.uid, node.status.incarnation)
