"""The replicas of one node, and the next step of each.

The agent passes on the input from the machine and from the servers; `tend` takes the next step for
each replica that is due: starts and stops for the shims, reports for the servers. At most one
request per replica is in flight, so that the reports about a replica have an order.
"""

from __future__ import annotations

from holdfast.agent.next_step import MissingInput, PrepareStop, ReadNode, Vanish, Wait, next_step
from holdfast.agent.probes import action_of, unknown_port, with_port_number
from holdfast.agent.runtime_protocol import (
    AgentEffects,
    Attempt,
    Check,
    Clear,
    Halt,
    Inventory,
    Launch,
    Launched,
    PortsOpened,
    Probed,
    RunProbe,
)
from holdfast.agent.work import (
    REPORT_POLICY,
    VANISHED,
    NodeContext,
    ReplicaWork,
    WorkPhase,
    is_over,
)
from holdfast.model.kinds.replica import Process, Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.secret import Secret
from holdfast.model.lifecycle import Stage, State
from holdfast.model.machine import Question, Reply, Rng
from holdfast.model.meta import Object
from holdfast.model.nodes.heartbeat import NOTES_MAX, ProgressNote, ProgressNotes
from holdfast.model.nodes.installations import keeps
from holdfast.model.placement.placement_rules import tenant_image
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Move, ReportStage
from holdfast.observe.cache import Cache
from holdfast.observe.inflight import Inflight
from holdfast.observe.operation import Finish, GiveUp, RequestOperation
from holdfast.observe.work_queue import WorkQueue

# Runs the probes of a replica that are due.
#
# `tend` calls this before it decides the next step; the result reaches the replica's `ProbeHealth`
# as a `Probed`.


def run_probes(work: ReplicaWork, now_ms: int, rng: Rng, out: AgentEffects) -> int | None:
    """Append the probes that are due to `out`. Returns when the next one is due."""
    work.watch(rng)
    health = work.health
    if health is None or work.phase is not WorkPhase.RUNNING:
        return None
    for kind, spec in health.due(now_ms):
        action = action_of(spec)
        where = with_port_number(action, work.process) if action is not None else None
        if where is not None:
            timeout_ms = spec.timeout_seconds * 1_000
            out.append(RunProbe(Attempt(work.uid, work.attempt), kind, where, timeout_ms))
        else:
            what = unknown_port(action) if action is not None else "the probe has no action"
            health.take_result(kind, False, what, now_ms)
    return health.next_ms


# A few requests are kept for heartbeats and the node itself: work with many reports must not starve
# the heartbeats that keep all work alive.
ASKS_KEPT = 8
LAUNCHES_MAX = 32
# More replicas than any node can carry; those beyond wait until others are gone.
WORKS_MAX = 4_096
# A refusal with such a reason is about the node: read the node first.
_NODE_REASONS = (Reason.STALE_INCARNATION, Reason.STALE_MARK, Reason.NODE_MISSING)


class ReplicaWorkers:
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(self, cache: Cache, asks: Inflight[str], rng: Rng) -> None:
        self._cache, self._asks, self._rng = cache, asks, rng
        self._works: dict[str, ReplicaWork] = {}
        self._queue: WorkQueue[str] = WorkQueue(rng)
        # Attempts whose start is in progress, and replicas that wait for a free slot.
        self._launching: dict[Attempt, None] = {}
        self._waiting: dict[str, None] = {}
        # Exits that arrived before the inventory.
        self._early: dict[Attempt, Process] = {}
        self.has_inventory = False
        # Whether the last heartbeat was not answered either, and what waits until one is.
        self.is_unheard = False
        self._unanswered: dict[str, None] = {}
        # Whether a refusal shows that the known state of the node is old.
        self.doubts_node = False

    @property
    def next_ms(self) -> int | None:
        """When `tend` has something to do next; None without room, until an answer makes room."""
        return self._queue.next_ms if self._asks.room > ASKS_KEPT else None

    def is_due(self, now_ms: int) -> bool:
        """Whether `tend` has something to do now."""
        next_ms = self.next_ms
        return next_ms is not None and next_ms <= now_ms

    @property
    def running(self) -> tuple[str, ...]:
        """The replicas of which something runs or may start to run."""
        return tuple(work.uid for work in self._works.values() if work.is_active)

    @property
    def has_strays(self) -> bool:
        """Whether something runs that must not outlive the incarnation that started it."""
        return any(work.is_active and not work.is_kept for work in self._works.values())

    @property
    def images(self) -> tuple[str, ...]:
        """The images that running work has been started from, but for directories of the node."""
        return tuple(
            tenant_image(work.namespace, work.replica.spec.template.image)
            for work in self._works.values()
            if work.replica is not None
            and work.phase is WorkPhase.RUNNING
            and work.replica.spec.template.image
            and not work.replica.spec.template.image.startswith("/")
        )

    def grace_held_ms(self, most_ms: int) -> int:
        """The longest grace that a shim here grants when its deadline passes; `most_ms` is the
        longest that any may have received."""
        held = [0]
        for work in self._works.values():
            is_bounded = work.is_active and not (work.replica is not None and keeps(work.replica))
            if is_bounded:
                held.append(most_ms if work.shim_grace_ms is None else work.shim_grace_ms)
        return max(held)

    def unsaid(self) -> ProgressNotes:
        """The progress of replicas that the servers have not acknowledged."""
        under_way = ((work.uid, work.unsaid) for work in self._works.values())
        notes = [ProgressNote(uid, doing) for uid, doing in under_way if doing is not None]
        return ProgressNotes(tuple(notes[:NOTES_MAX]), max(0, len(notes) - NOTES_MAX))

    # Input from the machine ----------------------------------------------------------------------

    def take_inventory(self, inventory: Inventory, now_ms: int) -> None:
        """Adopt the work on the machine. Comes once, before any start or decision."""
        if self.has_inventory:
            return
        self.has_inventory = True
        for item in inventory.items:
            uid = item.attempt.uid
            work = self._works.setdefault(uid, ReplicaWork(uid, item.namespace, item.name))
            work.found(item, now_ms)
        for attempt, process in self._early.items():
            self.ended(attempt, process, True, now_ms)
        self._early.clear()

    def launched(self, launched: Launched, now_ms: int) -> Halt | None:
        """A start succeeded. The work may already be unwanted; then it is halted."""
        attempt = launched.attempt
        self._slot_freed(attempt, now_ms)
        work = self._works.get(attempt.uid)
        if work is None or work.attempt != attempt.number or not work.is_active:
            return None
        work.launched(launched.process, now_ms, launched.unopened)
        self._queue.add(work.uid, now_ms)
        return Halt(attempt, work.halt_grace_ms) if work.phase is WorkPhase.HALTING else None

    def ended(self, attempt: Attempt, process: Process, has_run: bool, now_ms: int) -> None:
        """An attempt is over, or never began. Only the latest attempt counts."""
        self._slot_freed(attempt, now_ms)
        if not self.has_inventory:
            self._early[attempt] = process
            return
        work = self._works.get(attempt.uid)
        if work is None or work.attempt != attempt.number or not work.is_active:
            return
        work.ended(process, has_run, now_ms, self._rng)
        self._queue.add(work.uid, now_ms)

    def opened(self, opened: PortsOpened, now_ms: int) -> None:
        """It listens on more of its ports, which may be published now."""
        work = self._works.get(opened.attempt.uid)
        if work is not None and work.attempt == opened.attempt.number and work.is_active:
            work.unopened = opened.unopened
            self._queue.add(work.uid, now_ms)

    def probed(self, probed: Probed, now_ms: int) -> None:
        """The result of a probe. Only the latest attempt counts."""
        work = self._works.get(probed.attempt.uid)
        if work is None or work.attempt != probed.attempt.number or not work.is_active:
            return
        if probed.kind is Check.PRE_STOP:
            work.has_left = True
        elif work.health is not None:
            work.health.take_result(probed.kind, probed.ok, probed.message, now_ms)
        self._queue.add(work.uid, now_ms)

    def _slot_freed(self, attempt: Attempt, now_ms: int) -> None:
        """A start is done: the replica that waited longest may start."""
        if attempt not in self._launching:
            return
        del self._launching[attempt]
        if self._waiting:
            uid = next(iter(self._waiting))
            del self._waiting[uid]
            self._queue.add(uid, now_ms)

    # Input from the servers ----------------------------------------------------------------------

    def heard_of(self, replica: Replica, now_ms: int) -> None:
        """Process a replica that is bound here, as the cache has it now."""
        uid = replica.metadata.uid
        work = self._works.get(uid)
        if work is None:
            if replica.status.state is State.RELEASED or len(self._works) >= WORKS_MAX:
                return
            work = self._works[uid] = ReplicaWork(uid, replica.namespace, replica.name)
        if work.take(replica):
            self._queue.add(uid, now_ms)
        if work.is_cleared:
            self._forget(work, now_ms)

    def lost_sight_of(self, uid: str, now_ms: int) -> None:
        """A replica is no longer in the cache. Only a read of it proves that it is gone."""
        work = self._works.get(uid)
        if work is not None:
            work.must_read = True
            self._queue.add(uid, now_ms)
            if work.is_cleared:
                self._forget(work, now_ms)

    def read_strangers(self, now_ms: int) -> None:
        """Work that runs here and is not in the cache is read before any decision about it."""
        for work in self._works.values():
            if work.replica is None and not (work.is_gone or work.must_read):
                work.must_read = True
                self._queue.add(work.uid, now_ms)

    def answered(self, uid: str, request: Question, answer: Reply, now_ms: int) -> None:
        """Process the answer to a request about a replica."""
        work = self._works.get(uid)
        if work is None:
            return
        report, work.report, work.is_asking = work.report, None, False
        end = report.answered(request, answer, now_ms) if report is not None else answer
        match end:
            case GetResult(object=found) if (
                isinstance(request, Get) and request.plural == "secrets"
            ):
                work.secrets[request.name] = found if isinstance(found, Secret) else None
            case GetResult(object=found) if (
                isinstance(request, Get) and request.plural == "reservations"
            ):
                work.gang = found if isinstance(found, Reservation) else None
                work.has_gang = True
            case GetResult(object=found):
                self._read(work, found)
            case Finish(body=Accepted(objects=objects)):
                work.succeeded()
                if isinstance(request, Move) and request.to is State.RUNNING:
                    is_end = request.process is not None and is_over(request.process)
                    work.said = work.attempt if is_end else work.said
                # A repeated request returns no object: the replica has to be read.
                self._read(work, objects[0] if objects else None, is_sure=False)
            case Refusal(reason=reason) | GiveUp(error=Refusal(reason=reason)):
                work.must_read = True
                self.doubts_node = self.doubts_node or reason in _NODE_REASONS
                work.failed(now_ms, self._rng)
            case _:
                # It may have happened. The same step follows, under the same operation id.
                if self.is_unheard:
                    work.waits_for_servers(now_ms, self._rng)
                    self._unanswered[uid] = None
                else:
                    work.failed(now_ms, self._rng)
        self._queue.add(uid, now_ms)

    @staticmethod
    def _read(work: ReplicaWork, found: Object | None, *, is_sure: bool = True) -> None:
        if isinstance(found, Replica) and found.metadata.uid == work.uid:
            work.take(found)
            work.must_read = False
            return
        if is_sure:
            work.is_gone = True
        work.must_read = not is_sure

    def servers_heard(self, now_ms: int) -> None:
        """A heartbeat was acknowledged: replicas that waited for that continue."""
        self.is_unheard = False
        waiting, self._unanswered = self._unanswered, {}
        for uid in waiting:
            work = self._works.get(uid)
            if work is not None:
                work.retry_ms = min(work.retry_ms, now_ms)
                self._queue.add(uid, now_ms)

    # Next steps ----------------------------------------------------------------------------------

    def tend_all(self, now_ms: int) -> None:
        """Queue all replicas: the state of the node has changed."""
        for uid in self._works:
            self._queue.add(uid, now_ms)

    def halt_strays(self, view: NodeContext, out: AgentEffects) -> None:
        """Stop work of an earlier incarnation, before any deadline is extended for this one."""
        for work in self._works.values():
            step = next_step(work, view)
            if isinstance(step, Halt):
                self._halt(work, step, out)

    def tend(self, view: NodeContext, out: AgentEffects) -> None:
        """Take one step for each replica that is due, as far as there is room for requests."""
        while self._asks.room > ASKS_KEPT:
            uid = self._queue.take(view.now_ms)
            if uid is None:
                return
            self._queue.done(uid)
            work = self._works.get(uid)
            if work is not None:
                self._take_step(work, view, out)

    def _take_step(self, work: ReplicaWork, view: NodeContext, out: AgentEffects) -> None:
        at_ms = run_probes(work, view.now_ms, self._rng, out)
        if at_ms is not None:
            self._queue.add(work.uid, at_ms)
        step = next_step(work, view)
        match step:
            case Wait(until_ms=until_ms):
                if until_ms is not None:
                    self._queue.add(work.uid, until_ms)
            case Halt():
                self._halt(work, step, out)
            case PrepareStop():
                self._prepare_stop(work, step, view.now_ms, out)
            case ReadNode():
                self.doubts_node = True
            case _ if work.is_asking:
                # The request in flight may change the next step; its answer queues the replica.
                return
            case Launch():
                self._launch(work, step, out)
            case Vanish() | MissingInput():
                self._missed(work, step, view.now_ms)
            case Clear():
                self._clear(work, step, view.now_ms, out)
            case _ if view.now_ms < work.retry_ms:
                self._queue.add(work.uid, work.retry_ms)
            case _:
                self._send(work, step, view.now_ms, out)

    def _send(
        self, work: ReplicaWork, step: Get | Move | ReportStage, now_ms: int, out: AgentEffects
    ) -> None:
        if isinstance(step, ReportStage) and step.stage is Stage.STARTING:
            work.unready(now_ms)
        work.is_asking = True
        if not isinstance(step, Get):
            work.report = RequestOperation(step, REPORT_POLICY, self._rng, now_ms)
        out.append(self._asks.ask(step, work.uid, now_ms))

    def _prepare_stop(
        self, work: ReplicaWork, step: PrepareStop, now_ms: int, out: AgentEffects
    ) -> None:
        work.phase, work.has_left = WorkPhase.LEAVING, step.probe is None
        work.halt_grace_ms, work.stop_by_ms = step.grace_ms, now_ms + step.grace_ms
        if step.probe is not None:
            out.append(step.probe)
        # The next step says until when to wait.
        self._queue.add(work.uid, now_ms)

    @staticmethod
    def _halt(work: ReplicaWork, halt: Halt, out: AgentEffects) -> None:
        work.phase, work.halt_grace_ms = WorkPhase.HALTING, halt.grace_ms
        out.append(halt)

    def _launch(self, work: ReplicaWork, launch: Launch, out: AgentEffects) -> None:
        if len(self._launching) >= LAUNCHES_MAX:
            self._waiting[work.uid] = None
            return
        self._launching[launch.attempt] = None
        work.launching(launch.attempt, launch.grace_ms)
        out.append(launch)

    def _missed(self, work: ReplicaWork, step: Vanish | MissingInput, now_ms: int) -> None:
        """Something is missing: an input of the start, or the process itself."""
        if isinstance(step, MissingInput):
            work.lacked(step.what, now_ms, self._rng)
            self._queue.add(work.uid, now_ms)
            return
        # How it ended is unknown; that it ended is certain, since the inventory lists all work.
        known = work.replica.status.process if work.replica is not None else Process()
        work.attempt = max(work.attempt, known.restarts)
        process = Process(id=known.id, started_at=known.started_at, reason=VANISHED)
        work.ended(process, True, now_ms, self._rng)
        self._queue.add(work.uid, now_ms)

    def _clear(self, work: ReplicaWork, clear: Clear, now_ms: int, out: AgentEffects) -> None:
        if work.attempt >= 0:
            out.append(clear)
        work.is_cleared = True
        self._forget(work, now_ms)

    def _forget(self, work: ReplicaWork, now_ms: int) -> None:
        """Forget it, once the cache cannot bring back a version from before its end."""
        known = self._cache.get("replicas", work.namespace, work.name)
        is_same = known is not None and known.metadata.uid == work.uid
        if is_same and known.status.state is not State.RELEASED:
            return
        was_full = len(self._works) >= WORKS_MAX
        del self._works[work.uid]
        self._queue.forget(work.uid)
        self._waiting.pop(work.uid, None)
        if was_full:
            for replica in self._cache.all("replicas"):
                if replica.metadata.uid not in self._works:
                    self.heard_of(replica, now_ms)
