"""Snapshots made by hand of a replica that waits, and the question why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.explain.answer import Explanation, ProgressStep, StuckReason
from holdfast.explain.evidence import ReplicaFacts, StoredRecords
from holdfast.explain.explain_replica import explain
from holdfast.model import keys
from holdfast.model.kinds.lease import Lease, LeaseSpec
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Pending, Replica
from holdfast.model.kinds.template import ExecAction, OnDisconnect, Probe, Probes
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import Object
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import (
    HeartbeatReport,
    ProgressNote,
    ProgressNotes,
    WorkProgress,
)
from holdfast.model.pulse import Beat, Pulse, Pulses, ReceivedPulse
from holdfast.model.quota.ledger import mirror_node
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from tests.unit.correct.views import TEMPLATE, at, later, meta, record, replaced, replica

TIMING = FenceTiming()
# All objects in these snapshots are from the moment NOW; the question is asked this much later.
LOOK_MS = 5_000
NODES = "system:controller:nodes"
KEEP = replaced(TEMPLATE, on_disconnect=OnDisconnect.KEEP)
PROBED = replaced(TEMPLATE, probes=Probes(readiness=Probe(exec=ExecAction(("true",)))))
LOST = (record(State.UNKNOWN, NODES, 0, State.RUNNING),)
FULL = Pending(
    {"NodeFull": 1},
    "none of 1 nodes can take it: 1 NodeFull",
    "Waiting",
    next_wake=at(30_000),
    owner="scheduler",
)
OVER = Pending(
    {"QuotaExceeded": 1},
    "tenant acme uses 2 of 2 cpu",
    "BlockedBy",
    next_wake=at(-200_000),
    owner="operator",
)

# Every component that may be waited for works.
ACTING = (
    Pulses(
        "one",
        60_000,
        (
            ReceivedPulse(
                "system:controllers",
                1_000,
                Pulse(
                    "all",
                    tuple(
                        Beat(f"controller:{it}", 3)
                        for it in ("nodes", "repair", "workload", "status", "endpoints")
                    ),
                ),
            ),
            ReceivedPulse(
                "system:scheduler:main", 1_000, Pulse("main", (Beat("scheduler:main", 3),))
            ),
        ),
    ),
)


def heard(said: ProgressNotes | None = None, age_ms: int = 1_000) -> HeartbeatReport:
    notes = {"node-a": said} if said is not None else {}
    return HeartbeatReport("one", 60_000, {"node-a": age_ms}, TIMING, notes)


def noted(doing: WorkProgress) -> HeartbeatReport:
    return heard(ProgressNotes((ProgressNote("uid-web-0-0", doing),)))


def ledgers(*nodes: Node) -> list[tuple[str, Any, int]]:
    """What the nodes have, of which nothing is taken."""
    return [(keys.node_ledger(it.name), mirror_node(it, None), 30) for it in nodes]


def asked(
    about: Replica,
    *objects: Object,
    more: list[tuple[str, Any, int]] | None = None,
    ms: int = LOOK_MS,
    **facts: Any,
) -> Explanation:
    records = [(keys.key_of(it), it, 7) for it in (about, *objects)]
    stored = StoredRecords(40, [*records, *(more or ())])
    facts = {"pulses": ACTING, **facts}
    return explain(ReplicaFacts(about, stored, TIMING, **facts), later(ms), VerdictCache())


def says(answer: Explanation, why: StuckReason, leg: ProgressStep, owner: str) -> None:
    found = answer.finding
    assert (found.why, found.leg, found.owner) == (why, leg, owner), found.message


def due_in_ms(answer: Explanation) -> int:
    """How long after NOW the next move is due."""
    deadline = answer.finding.deadline
    assert deadline is not None, answer.finding.no_deadline
    return round((deadline - at()) / timedelta(milliseconds=1))


def unknown(**more: Any) -> Replica:
    return replica(State.UNKNOWN, transitions=LOST, stage=Stage.READY, **more)


def lease(scope: str, **spec: Any) -> Lease:
    made = LeaseSpec(scope, holder="somebody", epoch=3, **spec)
    return Lease(meta(scope.replace(":", "-")), spec=made)
