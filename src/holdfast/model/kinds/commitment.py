"""Commitment: a promise to users, checked again whenever the state changes."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kind_declaration import (
    PEOPLE,
    Kind,
    KindRules,
    Unwritten,
    Writers,
    moment,
    no_effect,
    text,
)
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Condition, Count, Object, Part, Revision, Seconds, Timestamp


class CommitmentState(StrEnum):
    UNKNOWN = "Unknown"
    HOLDING = "Holding"
    AT_RISK = "AtRisk"
    BROKEN = "Broken"


class Given(Part, frozen=True):
    """The loss that the promise covers. At most one field is set.

    region_lost: this region is lost.
    zone_lost: this zone is lost.
    node_lost: this node is lost.
    """

    region_lost: str = ""
    zone_lost: str = ""
    node_lost: str = ""


class Promise(Part, frozen=True):
    """What must then be true.

    workload: the workload, in the commitment's namespace.
    serving: how many replicas serve.
    regions: the regions in which they serve.
    within_seconds: how soon after the loss.
    """

    workload: str
    serving: Count
    regions: tuple[str, ...] = ()
    within_seconds: Seconds = 300


class CommitmentSpec(Part, frozen=True):
    """The promise.

    given: the loss that it covers; empty means always.
    promise: what must then be true.
    owner: who is responsible for it.
    """

    promise: Promise
    given: Given = Given()
    owner: str = ""


class CommitmentStatus(Part, frozen=True):
    """Whether it holds, and how that is known.

    observed_generation: the generation that this refers to; it is not written yet.
    state: Holding, AtRisk, Broken or Unknown; it is not written yet.
    evidence: the run that showed it; it is not written yet.
    proven_at: when it was shown; it is not written yet.
    at_revision: the store revision at which it was shown; it is not written yet.
    conditions: each type has one writer; Proven is not written yet.
    """

    observed_generation: Revision = 0
    state: CommitmentState = CommitmentState.UNKNOWN
    evidence: str = ""
    proven_at: Timestamp | None = None
    at_revision: Revision = 0
    conditions: tuple[Condition, ...] = ()


class Commitment(Object, frozen=True, kw_only=True, tag="Commitment"):
    """A promise to users that is checked again whenever the state changes. It has no effect yet.

    spec: the promise.
    status: whether it holds, and how that is known.
    """

    spec: CommitmentSpec
    status: CommitmentStatus = CommitmentStatus()


def _commitment_rules() -> KindRules:
    from holdfast.model.validation import policy

    return KindRules(policy.commitment)


COMMITMENT_KIND = Kind(
    Commitment,
    "commitments",
    rules=_commitment_rules,
    writers=Writers(
        spec=PEOPLE,
        status={
            "observed_generation": Actor.REVIEW,
            "state": Actor.REVIEW,
            "evidence": Actor.REVIEW,
            "proven_at": Actor.REVIEW,
            "at_revision": Actor.REVIEW,
        },
        conditions={"Proven": Actor.REVIEW},
    ),
    columns=(
        text("State", lambda o: o.status.state.value, "Holding, AtRisk, Broken or Unknown"),
        text("Workload", lambda o: o.spec.promise.workload, "of which workload it speaks"),
        moment("Proven", lambda o: o.status.proven_at, "when it was last shown"),
    ),
    short_names=("cm",),
    no_effect=no_effect("nothing proves it"),
    unwritten=Unwritten(
        ("observed_generation", "state", "evidence", "proven_at", "at_revision"), ("Proven",)
    ),
)
