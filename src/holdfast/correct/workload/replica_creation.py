"""How replicas come into being, are stopped and are cleared away, for all types of workloads.

`services.py`, `jobs.py` and `each_node.py` decide which, and ask here for the requests. A birth has
the name of its place and incarnation, so that whoever asks twice asks for the same thing.

A released replica stays until its successor is seen: it says which incarnation is next. A person's
deletion takes that away with the object, so what was seen is remembered here as well; and whoever
does not know it is told by the refusal of a birth that would be one for the second time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.correct.controller import View, operation, step_id, target
from holdfast.correct.pacing import MonotonicWaits
from holdfast.correct.workload.endings import ENDINGS_ANNOTATION, endings, pause_left_ms
from holdfast.model.access.identity import controller
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Workload, WorkloadRevision
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.vacancy import home_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Create, Evict, Move, Remove, Term
from holdfast.model.rollouts import is_misplaced, revision_name, target_of
from holdfast.model.time import Instant
from holdfast.model.validation.replica import replica_name

IDENTITY = controller("workload").name
# In these states a replica has not come to its end yet. Of two that hold one place, the one that
# has come further stays.
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
    """Whether it belongs to this very workload, and not to an earlier one of its name."""
    return replica.spec.workload_uid == workload.metadata.uid


def worth(replica: Replica) -> tuple[bool, int, int]:
    """Which of several alive ones to keep: one that is not leaving, then the furthest."""
    doomed = replica.metadata.deletion_timestamp is not None
    return not doomed, FURTHER.index(replica.status.state), replica.spec.incarnation


class ReplicaCreation:
    """What makes replicas, and remembers which were there."""

    def __init__(self) -> None:
        # The last incarnation that was seen at each place, by the workload's uid.
        self._reached: dict[str, dict[int, int]] = {}
        # Places that wait after an ending, by the uid of the replica that ended.
        self._waits = MonotonicWaits()
        # The last template and its revision: thousands are born of one, one after the other.
        self._revision: tuple[Template, str] | None = None

    def revision_of(self, template: Template) -> str:
        """The revision of a template; quick for one that was asked for last time as well."""
        if self._revision is None or self._revision[0] is not template:
            self._revision = template, revision_of(template)
        return self._revision[1]

    def see(self, replica: Replica) -> None:
        """Remember that it was there."""
        places = self._reached.setdefault(replica.spec.workload_uid, {})
        before = places.get(replica.spec.ordinal, -1)
        places[replica.spec.ordinal] = max(before, replica.spec.incarnation)

    def refused(self, replica: Replica, refusal: Refusal) -> bool:
        """Learn which incarnation is next, if a refusal says so; whether it does."""
        reached = refusal.details.get("reached")
        if refusal.reason is not Reason.STALE_PLACE or reached is None:
            return False
        self._reached.setdefault(replica.spec.workload_uid, {})[replica.spec.ordinal] = int(reached)
        return True

    def forget_all_but(self, uids: Iterable[str], replicas: Container[str]) -> None:
        """Forget workloads that are gone: the last news of a replica may come after that."""
        there = set(uids)
        self._reached = {uid: seen for uid, seen in self._reached.items() if uid in there}
        self._waits.forget_all_but(replicas)

    def pause_ms(self, workload: Workload, last: Replica, now: Instant) -> int:
        """How long a place still waits after its last replica. Another revision starts afresh."""
        return 0 if is_misplaced(workload, last) else pause_left_ms(last, self._waits, now)

    def birth(
        self,
        workload: Workload,
        ordinal: int,
        term: Term,
        notes: Mapping[str, str] = _NO_NOTES,
        template: Template | None = None,
        stated: Template | None = None,
    ) -> Create:
        """The next incarnation at a place. `notes` are annotations of its own.

        `stated` is the template of the revision that the place takes, if that is not the
        workload's present one; `template` is what becomes of it at this very place.
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
        # Two nodes whose names lead to the same place ask for it with different intents.
        intent = f"create-{ordinal}-{incarnation}-in-{term.epoch}{home_of(made)}"
        done = operation(IDENTITY, uid, generation, intent)
        return Create(made, operation=done)


def stated_for(
    births: ReplicaCreation, view: View, workload: Workload, place: int
) -> Template | None:
    """The template that a place takes; None while the picture lacks it.

    Revisions are in the team's picture because controller:rollout follows them. Without that one
    no place has a target, and none is looked for.
    """
    revision, present = target_of(workload, place), workload.spec.template
    if not revision or revision == births.revision_of(present):
        return present
    name = revision_name(workload.name, revision)
    found: WorkloadRevision | None = view.get("workloadrevisions", workload.namespace, name)
    return found.spec.template if found is not None else None


def is_to_be_released(workload: Workload, replica: Replica) -> bool:
    """Whether it waits for a place with a revision that its place does not take.

    One that has a place on a node is stopped by controller:rollout, as far as that may be.
    """
    waits = replica.status.state in (State.PENDING, State.RESERVED)
    return waits and is_misplaced(workload, replica)


def endings_notes(workload: Workload, last: Replica | None) -> dict[str, str]:
    """What the next replica of a place carries of the endings before it."""
    is_afresh = last is None or is_misplaced(workload, last)
    count = endings(last) if last is not None and not is_afresh else 0
    return {ENDINGS_ANNOTATION: str(count)} if count else {}


def stop(replica: Replica, cause: Cause, term: Term) -> Iterator[Any]:
    """Move it towards its release, if that is ours to do in its state."""
    match replica.status.state:
        case State.PENDING if cause is Cause.DEADLINE:
            # The lifecycle has a row for this: it failed, though it never had a place.
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
    """Clear a released replica away."""
    return Remove(
        "replicas",
        replica.namespace,
        replica.name,
        replica.metadata.uid,
        operation=step_id(IDENTITY, replica, "remove"),
    )


def ended(replica: Replica, term: Term) -> Iterator[Any]:
    """One step towards the end of a replica whose workload goes."""
    if replica.status.state is State.RELEASED:
        yield removal(replica)
    else:
        yield from stop(replica, Cause.DELETED, term)
