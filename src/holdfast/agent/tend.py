"""What to do next about one piece of work: the whole life of a replica on a node, as one function.

The agent calls `next_step` whenever something about a piece of work changed, performs the one step
that comes back, and asks again when that has led to something. Nothing here remembers an event: the
step follows from what is on the machine, what the servers last said, and where the node stands. So
an answer that was lost leads to the very same request, under the very same operation id.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.renewing import Life
from holdfast.agent.words import DEADLINE_PASSED, Attempt, Clear, Halt, Launch
from holdfast.agent.work import (
    CRASH_LOOP,
    CRASH_LOOP_AFTER,
    Phase,
    Work,
    alive,
    describe,
    is_over,
    outcome,
)
from holdfast.model.kinds.replica import Binding, Process, Replica
from holdfast.model.kinds.template import OnDisconnect, RestartPolicy
from holdfast.model.lifecycle import STAGES, Stage, State
from holdfast.model.requests import Move, ReportStage, Target
from holdfast.observe.news import Get

# A start that fails so often here may succeed elsewhere.
START_TRIES_MAX = 5
# The longest operation id that the authority takes, and the longest sentence that it keeps.
OPERATION_ID_MAX = 253
SENTENCE_MAX = 1_024


class View(msgspec.Struct, frozen=True):
    """Where the node stands. `life` None means that the last one is over and no new one has begun.

    `is_clear`: as far as we know the servers trust the node in this life. `deadline_ms` is None
    when nothing may be started now.
    """

    node: str
    identity: str
    life: Life | None
    is_clear: bool
    deadline_ms: int | None
    grace_max_ms: int
    now_ms: int


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Nothing to do before this moment, or before something changes."""

    until_ms: int | None = None


class Vanish(msgspec.Struct, frozen=True, gc=False):
    """The servers know of a process that the machine knows nothing of: take it for ended."""


class Look(msgspec.Struct, frozen=True, gc=False):
    """The servers know of a later life of this node than we do: look at the node."""


Step = Wait | Vanish | Look | Get | Launch | Halt | Clear | Move | ReportStage

WAIT = Wait()


def next_step(work: Work, view: View) -> Step:
    """The one thing to do now."""
    if work.is_cleared:
        return WAIT
    if work.must_read:
        return Get("replicas", work.name, work.namespace)
    replica = work.replica
    binding = replica.status.binding if replica is not None else None
    if work.is_gone or replica is None or binding is None or binding.node != view.node:
        return _leave(work, view.grace_max_ms)
    here = Life(binding.node_uid, binding.node_incarnation)
    if replica.status.state is State.RELEASED:
        return _leave(work, _grace_ms(replica))
    if view.life is None or here != view.life:
        return _of_another_life(work, replica, binding, view)
    match replica.status.state:
        case State.BOUND:
            return _begin(work, replica, view)
        case State.RUNNING:
            return _run(work, replica, view)
        case State.UNKNOWN:
            return _return(work, replica, view)
        case State.STOPPING | State.FAILED | State.SUCCEEDED:
            return _stop(work, _grace_ms(replica)) or _released(work, replica, view)
    return WAIT


def _leave(work: Work, grace_ms: int) -> Step:
    """It does not belong here: what runs is stopped, what it left is removed."""
    return _stop(work, grace_ms) or Clear(work.uid)


def _stop(work: Work, grace_ms: int) -> Step | None:
    """Stop what runs; None once nothing does."""
    match work.phase:
        case Phase.LAUNCHING | Phase.RUNNING:
            return Halt(Attempt(work.uid, work.attempt), grace_ms)
        case Phase.HALTING:
            return WAIT
        case Phase.NONE | Phase.ENDED:
            return None


def _of_another_life(work: Work, replica: Replica, binding: Binding, view: View) -> Step:
    """Work of a life that is over stops, unless its owner wants it kept. It is not ours to report,
    except that it has stopped."""
    life = view.life
    is_ours = life is not None and binding.node_uid == life.uid
    if life is not None and is_ours and binding.node_incarnation > life.incarnation:
        return Look()
    if work.is_kept:
        return WAIT
    step = _stop(work, min(_grace_ms(replica), view.grace_max_ms))
    if step is not None:
        return step
    may_say = replica.status.state in (State.STOPPING, State.FAILED, State.SUCCEEDED)
    return _released(work, replica, view) if may_say and life is not None else WAIT


def _begin(work: Work, replica: Replica, view: View) -> Step:
    """It was never reported to run, or is not known to: start it, or say what became of it."""
    policy = replica.spec.template.restart
    reason = "Started" if replica.status.state is State.BOUND else "Returned"
    match work.phase:
        case Phase.NONE:
            return _launch(work, replica, view)
        case Phase.RUNNING:
            return _move(work, replica, view, State.RUNNING, reason, work.process)
        case Phase.ENDED if work.has_run:
            ends = outcome(policy, work.process)
            if ends is not None:
                return _finished(work, replica, view, ends)
            # It ran, and its end is the next thing to say.
            return _move(work, replica, view, State.RUNNING, reason, alive(work.process))
        case Phase.ENDED:
            # Work that once ran here can run here: its failing starts are a crash loop.
            is_new = not (replica.status.process.id or replica.status.process.restarts)
            is_last = policy is RestartPolicy.NEVER or work.crashes >= START_TRIES_MAX
            if is_new and is_last and work.process.reason != DEADLINE_PASSED:
                return _finished(work, replica, view, State.FAILED)
            return _launch(work, replica, view)
    return WAIT


def _run(work: Work, replica: Replica, view: View) -> Step:
    """It is known to run: say when it is ready, and start it again when it has ended."""
    known, process = replica.status.process, work.process
    match work.phase:
        case Phase.NONE:
            return Vanish()
        case Phase.RUNNING:
            is_ready = STAGES.index(replica.status.stage) >= STAGES.index(Stage.READY)
            return WAIT if is_ready and known.id == process.id else _ready(work, replica, view)
        case Phase.ENDED:
            if not work.has_run and process.reason == DEADLINE_PASSED:
                return _launch(work, replica, view)
            is_said = bool(process.id) and known.id == process.id and is_over(known)
            if is_said or work.said == work.attempt:
                return _launch(work, replica, view)
            ends = outcome(replica.spec.template.restart, process)
            if ends is not None:
                return _finished(work, replica, view, ends)
            return _restarted(work, replica, view)
    return WAIT


def _return(work: Work, replica: Replica, view: View) -> Step:
    """The node was out of contact. Once its mark is cleared, say how its work fared.

    What was told to stop goes on stopping, mark or no mark.
    """
    if replica.status.cause is not None:
        if work.phase in (Phase.LAUNCHING, Phase.RUNNING):
            return Halt(Attempt(work.uid, work.attempt), _grace_ms(replica))
        if not view.is_clear:
            return WAIT
        return _move(work, replica, view, State.STOPPING, "Returned", work.process)
    if not view.is_clear:
        return WAIT
    if work.phase is Phase.NONE and replica.status.process.id:
        return Vanish()
    return _begin(work, replica, view)


def _launch(work: Work, replica: Replica, view: View) -> Step:
    """Start the next attempt, if its time has come and the servers let us run on."""
    binding = replica.status.binding
    if view.deadline_ms is None or not view.is_clear or binding is None:
        return WAIT
    if view.now_ms < work.resume_ms:
        return Wait(work.resume_ms)
    template = replica.spec.template
    keeps = template.on_disconnect is OnDisconnect.KEEP
    grace_ms = template.grace_seconds * 1_000
    # After a restart without an inventory the servers' count is the only one.
    number = max(work.attempt + 1, replica.status.process.restarts)
    return Launch(
        Attempt(work.uid, number),
        work.namespace,
        work.name,
        template,
        binding.token,
        None if keeps else view.deadline_ms,
        # The fence waits for no longer grace than the plane's own.
        grace_ms if keeps else min(grace_ms, view.grace_max_ms),
        binding.devices,
    )


def _ready(work: Work, replica: Replica, view: View) -> ReportStage:
    return ReportStage(
        _target(replica),
        Stage.READY,
        view.life.incarnation if view.life is not None else None,
        _counted(replica, work.process),
        _operation(replica, view, f"ready-{work.attempt}"),
    )


def _restarted(work: Work, replica: Replica, view: View) -> Move:
    """It ended and is to be started again in place. The end is said before the next start."""
    process, how = work.process, describe(work.process)
    if work.crashes < CRASH_LOOP_AFTER:
        return _move(work, replica, view, State.RUNNING, "Restarted", process)
    text = f"{CRASH_LOOP}: {how}; next start after {work.pause_ms} ms"
    process = msgspec.structs.replace(process, reason=text[:SENTENCE_MAX])
    return _move(work, replica, view, State.RUNNING, CRASH_LOOP, process)


def _finished(work: Work, replica: Replica, view: View, to: State) -> Move:
    return _move(work, replica, view, to, work.process.reason or "Exited", work.process)


def _released(work: Work, replica: Replica, view: View) -> Move:
    """Nothing of it runs any more: the proof of stop."""
    process = work.process if work.phase is Phase.ENDED else None
    return _move(work, replica, view, State.RELEASED, "Stopped", process)


def _move(
    work: Work, replica: Replica, view: View, to: State, reason: str, process: Process | None
) -> Move:
    evidence = "nothing was ever started"
    if work.attempt >= 0:
        how = describe(work.process) if work.phase is Phase.ENDED else f"process {work.process.id}"
        evidence = f"attempt {work.attempt}: {how}"
    if process is not None and not process.id and not is_over(process):
        # Nothing is known of it yet; what the servers know stays.
        process = None
    return Move(
        _target(replica),
        to,
        reason[:SENTENCE_MAX],
        evidence[:SENTENCE_MAX],
        view.life.incarnation if view.life is not None else None,
        process=_counted(replica, process) if process is not None else None,
        operation=_operation(replica, view, to.value),
    )


def _counted(replica: Replica, process: Process) -> Process:
    """The process with the restarts that the commit has counted."""
    restarts = replica.status.process.restarts
    return msgspec.structs.replace(process, restarts=restarts, reason=process.reason[:SENTENCE_MAX])


def _target(replica: Replica) -> Target:
    return Target(
        replica.namespace, replica.name, replica.metadata.uid, replica.status.transition_number
    )


def _operation(replica: Replica, view: View, intent: str) -> str:
    """The same for every try of the same intention. The longest node names leave no room for the
    identity; the uid tells enough."""
    what = f"{replica.metadata.uid}/{replica.status.transition_number}/{intent}"
    whole = f"{view.identity}/{what}"
    return whole if len(whole) <= OPERATION_ID_MAX else what


def _grace_ms(replica: Replica) -> int:
    """How long it may take to stop: what its deletion said, or else its template."""
    asked_s = replica.metadata.deletion_grace_period_seconds
    template_s = replica.spec.template.grace_seconds
    return (template_s if asked_s is None else asked_s) * 1_000
