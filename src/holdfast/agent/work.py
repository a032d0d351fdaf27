"""One replica on this node: its running attempt, how the last one ended, when the next may start.

The agent keeps one `ReplicaWork` for each replica that is bound here or in the inventory. It holds
two states side by side: what is on the machine (attempt, phase, process), which is certain, and the
last known version of the replica from the servers, which may be old.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.agent.heartbeats import Life
from holdfast.agent.probes import LIVENESS_FAILED, NOT_READY, STARTUP_FAILED, ProbeHealth
from holdfast.agent.runtime_protocol import (
    DEADLINE_PASSED,
    DISK_EXCEEDED,
    DISK_PRESSURE,
    OPENING_MS,
    STOPPED,
    Attempt,
    Item,
)
from holdfast.model.kinds.replica import CRASH_LOOP, Process, Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import OnDisconnect, RestartPolicy
from holdfast.model.lifecycle import STAGES, Stage, State
from holdfast.model.machine import Rng
from holdfast.model.meta import Object
from holdfast.model.nodes.heartbeat import WorkProgress
from holdfast.observe.operation import RequestOperation
from holdfast.observe.retry import RetryPolicy

RESTART_MIN_MS = 100
RESTART_MAX_MS = 300_000
# Work that ran for this long is not in a crash loop, whatever ends it.
STEADY_MS = 600_000
# This many quick ends in a row are a crash loop.
CRASH_LOOP_AFTER = 3
VANISHED = "Vanished"
_DOUBLINGS_MAX = 12

# After each loss of readiness it takes longer until work is reported as ready again, so that
# flapping work costs few writes; that it is not ready is always reported at once.
FLAP_MIN_MS = 1_000
FLAP_MAX_MS = 300_000
_FLAPS_MAX = 10

# A port without a listener is reported after this time. Most are opened sooner.
UNOPENED_COMPLAINT_MS = 2_000

# A missing Secret may be created at any time.
LACK_MIN_MS = 500
LACK_MAX_MS = 30_000
_LACKS_MAX = 8

# One copy and no look. The next report depends on what the work does meanwhile, so `next_step`
# decides it; an unchanged state makes the same request under the same id, and its answer says what
# a look would have said. A look before it would double what agents send when servers come back.
REPORT_POLICY = RetryPolicy(
    tries_max=1,
    looks_max=0,
    deadline_ms=None,
    pause_ms=100,
    pause_max_ms=30_000,
    looks_at_once=True,
    repeats_undone=False,
)


class WorkPhase(StrEnum):
    """The state of this replica on the machine."""

    NONE = "none"
    LAUNCHING = "launching"
    RUNNING = "running"
    # It is about to be stopped and still runs: for its pre-stop hook, or for its last clients.
    LEAVING = "leaving"
    HALTING = "halting"
    ENDED = "ended"


class Opening(msgspec.Struct, frozen=True, gc=False):
    """Work that is not ready until it opens its ports: when to check again at the latest, and the
    message about it."""

    until_ms: int
    complaint: str = ""


class ReplicaWork:
    """See the module's docstring. `Agent` alone changes it."""

    def __init__(self, uid: str, namespace: str, name: str) -> None:
        self.uid, self.namespace, self.name = uid, namespace, name
        # On the machine.
        self.attempt = -1
        self.phase = WorkPhase.NONE
        self.process = Process()
        # Ports that the process has not opened, so that others might listen there: not published.
        self.unopened: tuple[str, ...] = ()
        self.has_run = False
        self.started_ms = 0
        self.halt_grace_ms = 0
        # The grace that its shim grants when the deadline passes; None where unknown.
        self.shim_grace_ms: int | None = None
        # By when it has to stop, and whether its pre-stop hook is done.
        self.stop_by_ms = 0
        self.has_left = False
        # The verdicts of its probes, and whether an earlier process of the agent started it.
        self.health: ProbeHealth | None = None
        self.is_adopted = False
        # How often it lost its readiness, and when it may be reported as ready again.
        self.flaps = self.ready_ms = 0
        # The Secrets that its next start needs, and what was missing of them.
        self.secrets: dict[str, Secret | None] = {}
        # The record of its gang, read for each start.
        self.gang: Reservation | None = None
        self.has_gang = False
        self.lack = ""
        self.lacks = 0
        # How often in a row it ended soon after its start, and when it may be started again.
        self.crashes = 0
        self.pause_ms = self.resume_ms = 0
        # The last attempt whose end was reported as a restart in place.
        self.said = -1
        # At the servers.
        self.replica: Replica | None = None
        self.must_read = False
        self.is_gone = self.is_cleared = False
        # The request in flight, at most one: a report, or else a read.
        self.is_asking = False
        self.report: RequestOperation | None = None
        self.failures = self.retry_ms = 0

    @property
    def is_active(self) -> bool:
        """Whether something of it runs or may start to run."""
        return self.phase in (
            WorkPhase.LAUNCHING,
            WorkPhase.RUNNING,
            WorkPhase.LEAVING,
            WorkPhase.HALTING,
        )

    @property
    def is_kept(self) -> bool:
        """Whether it may continue when the incarnation that started it is over."""
        replica = self.replica
        if self.is_gone or replica is None or replica.status.cause is not None:
            return False
        keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
        return keeps and replica.status.state in (State.BOUND, State.RUNNING, State.UNKNOWN)

    @property
    def unsaid(self) -> WorkProgress | None:
        """Its progress, where the servers have not acknowledged it."""
        if self.replica is None or self.is_gone or self.is_cleared:
            return None
        state, has_ended = self.replica.status.state, self.phase is WorkPhase.ENDED and self.has_run
        if state is State.BOUND:
            is_up = self.phase in (WorkPhase.RUNNING, WorkPhase.LEAVING, WorkPhase.HALTING)
            return (
                WorkProgress.ENDED
                if has_ended
                else WorkProgress.RUNS
                if is_up
                else WorkProgress.STARTING
            )
        known = self.replica.status.process
        is_known = self.said == self.attempt or (known.id == self.process.id and is_over(known))
        is_unknown_end = state is State.RUNNING and has_ended and not is_known
        return WorkProgress.ENDED if is_unknown_end else None

    # Input from the machine ----------------------------------------------------------------------

    def found(self, item: Item, now_ms: int) -> None:
        """Take over an item of the inventory of a starting agent."""
        self.attempt, self.process = item.attempt.number, item.process
        self.has_run = bool(item.process.id)
        self.phase = WorkPhase.RUNNING if item.is_running else WorkPhase.ENDED
        self.started_ms = self.resume_ms = now_ms
        self.is_adopted, self.shim_grace_ms = True, item.grace_ms
        self.unopened = item.unopened

    def launching(self, attempt: Attempt, grace_ms: int | None = None) -> None:
        self.attempt, self.phase = attempt.number, WorkPhase.LAUNCHING
        self.shim_grace_ms = grace_ms
        self.process, self.has_run = Process(), False
        self.unopened = ()
        self.health, self.is_adopted = None, False
        self.flaps = self.ready_ms = 0
        self.forget_inputs()
        self.lack, self.lacks = "", 0

    def launched(self, process: Process, now_ms: int, unopened: tuple[str, ...] = ()) -> None:
        """It runs. If it is already to be stopped, that stays so."""
        self.process, self.has_run, self.started_ms = process, True, now_ms
        self.unopened = unopened
        if self.phase is WorkPhase.LAUNCHING:
            self.phase = WorkPhase.RUNNING

    def ended(self, process: Process, has_run: bool, now_ms: int, rng: Rng) -> None:
        """It no longer runs, or never did. Decide when the next attempt may start."""
        if process.reason == STOPPED and self.health is not None and self.health.ill:
            process = msgspec.structs.replace(process, reason=self.health.ill)
        self.phase, self.process, self.has_run = WorkPhase.ENDED, process, has_run
        if process.reason == DEADLINE_PASSED:
            # The servers were silent; the work did not cause that.
            self.pause_ms, self.resume_ms = 0, now_ms
            return
        if has_run and now_ms - self.started_ms >= STEADY_MS:
            self.crashes = 0
        longest_ms = min(RESTART_MAX_MS, RESTART_MIN_MS << min(self.crashes, _DOUBLINGS_MAX))
        self.crashes += 1
        self.pause_ms = int(longest_ms * (0.5 + rng.random() / 2))
        self.resume_ms = now_ms + self.pause_ms

    def watch(self, rng: Rng) -> None:
        """Begin to probe a running attempt, once its template is known."""
        replica = self.replica
        if self.phase is not WorkPhase.RUNNING or self.health is not None or replica is None:
            return
        was_ready = replica.status.process.id == self.process.id and is_ready(replica)
        spread = rng.random() if self.is_adopted else 0.0
        probes = replica.spec.template.probes
        self.health = ProbeHealth(probes, self.started_ms, was_ready=was_ready, spread=spread)

    def opening(self, now_ms: int) -> Opening | None:
        """How its readiness waits for its ports; None when it does not, or no longer: work may have
        ports that it never opens."""
        until_ms = self.started_ms + OPENING_MS
        if not self.unopened or now_ms >= until_ms:
            return None
        complain_ms = self.started_ms + UNOPENED_COMPLAINT_MS
        if now_ms < complain_ms:
            return Opening(complain_ms)
        return Opening(until_ms, f"{NOT_READY}: port {self.unopened[0]} has no listener yet")

    def unready(self, now_ms: int) -> None:
        """It is being reported as not ready. That counts as a flap if it was ready before."""
        if self.replica is None or not is_ready(self.replica):
            return
        if now_ms - self.ready_ms >= STEADY_MS:
            self.flaps = 0
        pause_ms = min(FLAP_MAX_MS, FLAP_MIN_MS << min(self.flaps, _FLAPS_MAX))
        self.flaps += 1
        self.ready_ms = now_ms + pause_ms

    def lacked(self, what: str, now_ms: int, rng: Rng) -> None:
        """Its start needs something that is missing: check again, less and less often."""
        longest_ms = min(LACK_MAX_MS, LACK_MIN_MS << min(self.lacks, _LACKS_MAX))
        self.lack, self.lacks = what, self.lacks + 1
        self.resume_ms = now_ms + int(longest_ms * (0.5 + rng.random() / 2))
        self.forget_inputs()

    def forget_inputs(self) -> None:
        """Forget what was read for a start: the next one reads it again."""
        self.secrets.clear()
        self.gang, self.has_gang = None, False

    # Input from the servers ----------------------------------------------------------------------

    def take(self, replica: Replica) -> bool:
        """Process a version of the replica; False when it is older than the known one.

        Streams and answers overtake each other, so the version decides.
        """
        known = self.replica
        if known is not None and version_of(replica) < version_of(known):
            return False
        if known is None:
            self._remember(replica)
        elif known.status.transition_number != replica.status.transition_number:
            self.failures = self.retry_ms = 0
        self.replica, self.is_gone = replica, False
        return True

    def _remember(self, replica: Replica) -> None:
        """Continue the crash loop that an earlier process of the agent has reported."""
        process = replica.status.process
        if process.reason.startswith(CRASH_LOOP):
            self.crashes = max(self.crashes, min(process.restarts, _DOUBLINGS_MAX))

    def failed(self, now_ms: int, rng: Rng) -> None:
        """A request failed: the next one waits, longer each time."""
        self.failures += 1
        self.retry_ms = now_ms + REPORT_POLICY.pause(self.failures, 0, rng)

    def waits_for_servers(self, now_ms: int, rng: Rng) -> None:
        """No server answers this node. If that is so for all nodes at once, repeated requests would
        overload servers that are coming back: wait until a heartbeat is acknowledged."""
        self.failures += 1
        self.retry_ms = now_ms + int(REPORT_POLICY.pause_max_ms * (0.5 + rng.random() / 2))

    def succeeded(self) -> None:
        self.failures = self.retry_ms = 0


def version_of(obj: Object) -> int:
    """The version of an object, for comparisons; one without a version is older than all."""
    text = obj.metadata.resource_version
    return int(text) if text.isascii() and text.isdigit() else 0


_CUT_SHORT = (
    *(DEADLINE_PASSED, STOPPED, DISK_EXCEEDED, DISK_PRESSURE),
    *(STARTUP_FAILED, LIVENESS_FAILED),
)


def is_ready(replica: Replica) -> bool:
    """Whether its status says that it is ready."""
    return STAGES.index(replica.status.stage) >= STAGES.index(Stage.READY)


def outcome(policy: RestartPolicy, process: Process) -> State | None:
    """What an end means under a restart policy: Succeeded, Failed, or None for another attempt.

    Work that was stopped has not succeeded, whatever its exit code.
    """
    reason = process.reason.partition(":")[0]
    has_failed = process.exit_code != 0 or reason in _CUT_SHORT
    match policy:
        case RestartPolicy.ALWAYS:
            return None
        case RestartPolicy.ON_FAILURE:
            return None if has_failed else State.SUCCEEDED
        case RestartPolicy.NEVER:
            return State.FAILED if has_failed else State.SUCCEEDED


def describe(process: Process) -> str:
    """How it ended, in a few words."""
    if process.signal is not None:
        how = f"signal {process.signal}"
    elif process.exit_code is not None:
        how = f"exit code {process.exit_code}"
    else:
        how = "no exit"
    if process.oom_killed:
        how += ", out of memory"
    return f"{how} ({process.reason})" if process.reason else how


def is_over(process: Process) -> bool:
    """Whether the process has ended."""
    has_ended = process.exit_code is not None or process.signal is not None
    return has_ended or (bool(process.reason) and not process.reason.startswith(NOT_READY))


def alive(process: Process) -> Process:
    """The process as it was while it ran."""
    return msgspec.structs.replace(
        process, exit_code=None, signal=None, oom_killed=False, reason=""
    )


# The state of the node, as far as a decision about one replica depends on it.
#
# `agent` makes it for every step; `next_step` and `status_reports` read it.


class NodeContext(msgspec.Struct, frozen=True):
    """The state of the node. `life` is None between two incarnations.

    `is_clear`: the node has no mark and no fence, as far as known. `deadline_ms` is None when
    nothing may be started now. `installation` is this agent's; `has_lost_name` says that another
    one is registered under the node's name.
    """

    node: str
    identity: str
    life: Life | None
    is_clear: bool
    deadline_ms: int | None
    grace_max_ms: int
    now_ms: int
    installation: str = ""
    has_lost_name: bool = False
