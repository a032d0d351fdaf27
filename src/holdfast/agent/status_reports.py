"""The agent's reports about one replica: its progress, and how it ended.

`next_step` decides that a report is due, and these functions make it. The same state always makes
the same request under the same operation id, so that a lost answer changes nothing.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.probes import LIVENESS_FAILED, STARTUP_FAILED
from holdfast.agent.runtime_protocol import DISK_EXCEEDED, DISK_PRESSURE
from holdfast.agent.work import (
    CRASH_LOOP_AFTER,
    NodeContext,
    ReplicaWork,
    WorkPhase,
    describe,
    is_over,
)
from holdfast.model.kinds.replica import CRASH_LOOP, Process, Replica
from holdfast.model.lifecycle import Stage, State
from holdfast.model.requests import Move, ReportStage, target
from holdfast.model.validation.text import OPERATION_ID_MAX, SENTENCE_MAX

# The reasons of a restart that the work did not cause itself.
_RESTART_REASONS = (STARTUP_FAILED, LIVENESS_FAILED, DISK_EXCEEDED, DISK_PRESSURE)


def stage_report(
    work: ReplicaWork, replica: Replica, view: NodeContext, stage: Stage, why: str = ""
) -> ReportStage:
    """The report of a stage. Each version of the replica makes it another operation: work may
    become ready more than once."""
    process = _known(work, replica)
    intent = f"{stage.value}-{work.attempt}-{replica.metadata.resource_version}"
    return ReportStage(
        target(replica),
        stage,
        view.life.incarnation if view.life is not None else None,
        _reported(work, replica, msgspec.structs.replace(process, reason=why)),
        _operation(replica, view, intent),
        replica.metadata.resource_version,
    )


def published_addresses(work: ReplicaWork, replica: Replica) -> dict[str, str]:
    """The addresses in a stage report."""
    return _opened(work, _known(work, replica))


def restart_report(work: ReplicaWork, replica: Replica, view: NodeContext) -> Move:
    """It ended and will be restarted in place. The end is reported before the next start."""
    process, how = work.process, describe(work.process)
    if work.crashes < CRASH_LOOP_AFTER:
        cause = process.reason.partition(":")[0]
        reason = cause if cause in _RESTART_REASONS else "Restarted"
        return move(work, replica, view, State.RUNNING, reason, process)
    text = f"{CRASH_LOOP}: {how}; next start after {work.pause_ms} ms"
    process = msgspec.structs.replace(process, reason=text[:SENTENCE_MAX])
    return move(work, replica, view, State.RUNNING, CRASH_LOOP, process)


def end_report(work: ReplicaWork, replica: Replica, view: NodeContext, to: State) -> Move:
    return move(work, replica, view, to, work.process.reason or "Exited", work.process)


def release_report(work: ReplicaWork, replica: Replica, view: NodeContext) -> Move:
    """Nothing of it runs: the proof of stop."""
    process = work.process if work.phase is WorkPhase.ENDED else None
    return move(work, replica, view, State.RELEASED, "Stopped", process)


def move(
    work: ReplicaWork,
    replica: Replica,
    view: NodeContext,
    to: State,
    reason: str,
    process: Process | None,
) -> Move:
    evidence = "it was never started"
    if work.attempt >= 0:
        how = (
            describe(work.process)
            if work.phase is WorkPhase.ENDED
            else f"process {work.process.id}"
        )
        evidence = f"attempt {work.attempt}: {how}"
    if process is not None and not process.id and not is_over(process):
        # Nothing is known of the process yet; the servers keep what they know.
        process = None
    return Move(
        target(replica),
        to,
        reason[:SENTENCE_MAX],
        evidence[:SENTENCE_MAX],
        view.life.incarnation if view.life is not None else None,
        process=_reported(work, replica, process) if process is not None else None,
        operation=_operation(replica, view, to.value),
        installation=view.installation,
    )


def _known(work: ReplicaWork, replica: Replica) -> Process:
    return work.process if work.process.id else replica.status.process


def _opened(work: ReplicaWork, process: Process) -> dict[str, str]:
    """Addresses without ports that the work has not opened: other work may listen there."""
    return {name: at for name, at in process.addresses.items() if name not in work.unopened}


def _reported(work: ReplicaWork, replica: Replica, process: Process) -> Process:
    """The process with the addresses that may be published, and the commit's count of restarts."""
    return msgspec.structs.replace(
        process,
        addresses=_opened(work, process),
        restarts=replica.status.process.restarts,
        reason=process.reason[:SENTENCE_MAX],
    )


def _operation(replica: Replica, view: NodeContext, intent: str) -> str:
    """The same for every try of the same operation. The longest node names leave no room for the
    identity; the uid is unique without it."""
    what = f"{replica.metadata.uid}/{replica.status.transition_number}/{intent}"
    whole = f"{view.identity}/{what}"
    return whole if len(whole) <= OPERATION_ID_MAX else what
