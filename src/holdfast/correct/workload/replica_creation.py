"""The requests that create, stop and remove replicas, for all types of workloads.

`services.py`, `jobs/index_runs.py` and `each_node.py` decide which replicas, and get the requests
here. A replica's name follows from its ordinal and incarnation, so that two identical requests
create one replica.

A released replica stays until its successor is in the cache: it tells which incarnation is next. A
user's deletion removes that knowledge with the object, so this module remembers it as well; a
controller that does not know it learns it from the refusal of a creation with a used incarnation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec

from holdfast.correct.controller import operation, step_id
from holdfast.correct.pacing import MonotonicWaits
from holdfast.correct.remembered import Remembered, uids_of
from holdfast.correct.workload.endings import ENDINGS_ANNOTATION, endings, pause_left_ms
from holdfast.model.access.identity import controller
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Workload, WorkloadRevision
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.vacancy import home_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Create, Evict, Move, Remove, Request, Term, target
from holdfast.model.time import Instant
from holdfast.model.validation.replica import replica_name
from holdfast.model.workload.rollouts import is_misplaced, revision_name, target_of
from holdfast.observe.snapshot import Snapshot

IDENTITY = controller("workload").name
# The states of a replica that has not ended. Of two with one ordinal, the one with the further
# state stays.
FURTHER = (
    State.PENDING,
    State.RESERVED,
    State.BOUND,
    State.UNKNOWN,
    State.RUNNING,
)

_NO_NOTES: Mapping[str, str] = MappingProxyType({})
_encode = msgspec.json.Encoder(order="deterministic").encode


def revision_of(template: Template) -> str:
    """The name of a template's revision. It follows from the template alone."""
    return hashlib.blake2b(_encode(template), digest_size=5).hexdigest()


def is_of(replica: Replica, workload: Workload) -> bool:
    """Whether it belongs to this workload, and not to an earlier one with its name."""
    return replica.spec.workload_uid == workload.metadata.uid


def worth(replica: Replica) -> tuple[bool, int, int]:
    """The rank of a replica among those of one ordinal: not in deletion, then furthest state."""
    doomed = replica.metadata.deletion_timestamp is not None
    return not doomed, FURTHER.index(replica.status.state), replica.spec.incarnation


class ReplicaCreation(Remembered):
    """Creates replicas, and remembers the last incarnation at each ordinal."""

    def __init__(self) -> None:
        # The last incarnation that was seen at each ordinal, by the workload's uid.
        self._reached: dict[str, dict[int, int]] = {}
        # Pauses after an ending, by the uid of the replica that ended.
        self.waits = MonotonicWaits(uids_of("replicas"))
        # The last template and its revision: thousands of replicas are created from one template.
        self._revision: tuple[Template, str] | None = None

    def revision_of(self, template: Template) -> str:
        """The revision of a template; cached for the last template."""
        if self._revision is None or self._revision[0] is not template:
            self._revision = template, revision_of(template)
        return self._revision[1]

    def see(self, replica: Replica) -> None:
        """Remember its incarnation."""
        places = self._reached.setdefault(replica.spec.workload_uid, {})
        before = places.get(replica.spec.ordinal, -1)
        places[replica.spec.ordinal] = max(before, replica.spec.incarnation)

    def refused(self, replica: Replica, refusal: Refusal) -> bool:
        """Learn the next incarnation from a refusal; returns whether the refusal contains it."""
        reached = refusal.details.get("reached")
        if refusal.reason is not Reason.STALE_PLACE or reached is None:
            return False
        self._reached.setdefault(replica.spec.workload_uid, {})[replica.spec.ordinal] = int(reached)
        return True

    def begin_term(self) -> None:
        self._reached.clear()
        self._revision = None

    def resync(self, view: Snapshot) -> None:
        """See all replicas, and forget workloads that are gone: the last change of a replica may
        come after that.
        """
        there = uids_of("workloads")(view)
        self._reached = {uid: seen for uid, seen in self._reached.items() if uid in there}
        for replica in view.all("replicas"):
            if replica.spec.workload_uid in there:
                self.see(replica)

    def pause_ms(self, workload: Workload, last: Replica, now: Instant) -> int:
        """The time until the next incarnation may be created. Another revision waits no time."""
        return 0 if is_misplaced(workload, last) else pause_left_ms(last, self.waits, now)

    def create(
        self,
        workload: Workload,
        ordinal: int,
        term: Term,
        notes: Mapping[str, str] = _NO_NOTES,
        template: Template | None = None,
        stated: Template | None = None,
    ) -> Create:
        """The creation of the next incarnation at an ordinal. `notes` are its own annotations.

        `stated` is the template of the ordinal's target revision, if that is not the workload's
        present one; `template` is the adapted template of this replica.
        """
        incarnation = self._reached.get(workload.metadata.uid, {}).get(ordinal, -1) + 1
        stated = stated if stated is not None else workload.spec.template
        spec = ReplicaSpec(
            workload=workload.name,
            workload_uid=workload.metadata.uid,
            ordinal=ordinal,
            incarnation=incarnation,
            revision=self.revision_of(stated),
            gang=workload.name if workload.spec.gang is not None else "",
            expected_seconds=workload.spec.job.expected_seconds,
            template=template if template is not None else stated,
        )
        uid, generation = workload.metadata.uid, workload.metadata.generation
        name = replica_name(workload.name, ordinal, incarnation)
        metadata = ObjectMeta(
            name=name,
            namespace=workload.namespace,
            annotations={**stated.metadata.annotations, **notes},
        )
        made = Replica(metadata, spec=spec)
        # Two nodes whose names lead to the same ordinal request it with different intents.
        intent = f"create-{ordinal}-{incarnation}-in-{term.epoch}{home_of(made)}"
        done = operation(IDENTITY, uid, generation, intent)
        return Create(made, operation=done)


def stated_for(
    creation: ReplicaCreation, view: Snapshot, workload: Workload, place: int
) -> Template | None:
    """The template of an ordinal's target revision; None while the cache lacks it.

    Revisions are in the cache because controller:rollout follows them. Without that controller no
    ordinal has a target, and none is looked up.
    """
    revision, present = target_of(workload, place), workload.spec.template
    if not revision or revision == creation.revision_of(present):
        return present
    name = revision_name(workload.name, revision)
    found: WorkloadRevision | None = view.get("workloadrevisions", workload.namespace, name)
    return found.spec.template if found is not None else None


def is_to_be_released(workload: Workload, replica: Replica) -> bool:
    """Whether it is not bound yet and does not have its ordinal's target revision.

    controller:rollout evicts bound replicas, within its limits.
    """
    waits = replica.status.state in (State.PENDING, State.RESERVED)
    return waits and is_misplaced(workload, replica)


def endings_notes(workload: Workload, last: Replica | None) -> dict[str, str]:
    """The annotations about endings for the next replica of an ordinal."""
    is_afresh = last is None or is_misplaced(workload, last)
    count = endings(last) if last is not None and not is_afresh else 0
    return {ENDINGS_ANNOTATION: str(count)} if count else {}


def stop(replica: Replica, cause: Cause, term: Term) -> Iterator[Request]:
    """Move it towards its release, if this controller owns that in its state."""
    match replica.status.state:
        case State.PENDING if cause is Cause.DEADLINE:
            # The lifecycle has a row for this: it failed, though it was never bound.
            yield _move(replica, State.FAILED, cause, term)
        case State.PENDING | State.RESERVED:
            yield _move(replica, State.RELEASED, cause, term)
        case State.BOUND | State.RUNNING:
            yield Evict(
                target(replica),
                cause,
                f"workload {replica.spec.workload}",
                term,
                step_id(IDENTITY, replica, f"stop-{cause.value}"),
            )


def _move(replica: Replica, to: State, cause: Cause, term: Term) -> Move:
    return Move(
        target(replica),
        to,
        cause.value,
        f"workload {replica.spec.workload}",
        term=term,
        operation=step_id(IDENTITY, replica, f"release-{cause.value}"),
    )


def removal(replica: Replica) -> Remove:
    """Remove a released replica."""
    return Remove(
        "replicas",
        replica.namespace,
        replica.name,
        replica.metadata.uid,
        operation=step_id(IDENTITY, replica, "remove"),
    )


def end(replica: Replica, term: Term) -> Iterator[Request]:
    """One step towards the removal of a replica whose workload is in deletion."""
    if replica.status.state is State.RELEASED:
        yield removal(replica)
    else:
        yield from stop(replica, Cause.DELETED, term)
