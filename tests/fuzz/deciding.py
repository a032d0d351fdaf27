"""Requests of components as bytes, read as a server reads them and decided by the real authority.

An exception that no rule declares would end a server for all. So whatever a component sends,
gone mad or taken over, the answer is a yes or a refusal, and the books are right afterwards.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from holdfast.host.api.plane import typed_request_routes
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.refusal import Refusal
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    BindTogether,
    DropReservation,
    HoldCapacity,
    Move,
    NodeAction,
    RegisterNode,
    RenewLease,
    ReportStage,
    RetireLease,
    Unreserve,
)
from tests.furnished import AGENT, DRAINS, GARBAGE, Furnished
from tests.fuzz.nasty import damaged
from tests.fuzz.targets import Target
from tests.plane import ADMIN, NODES, REPAIR, SCHEDULER, WORKLOADS, target

SENDERS = (
    SCHEDULER,
    SCHEDULER,
    WORKLOADS,
    NODES,
    REPAIR,
    AGENT,
    DRAINS,
    GARBAGE,
    ADMIN,
)
# Whose requests these are, so that most come from who may ask for them.
OWNERS = {
    b'"Evict"': WORKLOADS,
    b'"Move"': AGENT,
    b'"ReportStage"': AGENT,
    b'"RegisterNode"': AGENT,
    b'"JudgeNode"': NODES,
}
ANSWERS_MAX = 4


class _Stage:
    """A plane with replicas in several states, put back as it was after each input."""

    def __init__(self) -> None:
        self.it = it = Furnished()
        pending, other, running = it.pending(), it.pending(), it.ready()
        reserved = it.reserved()
        scheduler, nodes = it.term(SCHEDULER), it.term(NODES)
        owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
        claim = Claim(it.node.name, charge={"cpu": 1_000})
        at = it.plane.at(60)
        made = (
            it.bind(pending),
            BindTogether((it.bind(pending), it.bind(other))),
            it.reserve(pending),
            Unreserve(target(reserved), "no need", scheduler),
            it.evict(running, Cause.SCALE_DOWN),
            it.preempt(pending, running),
            Move(target(running), State.FAILED, "Because", "it fell", incarnation=1),
            Move(target(running), State.UNKNOWN, mark=1, term=nodes),
            ReportStage(target(running), Stage.READY, 1),
            it.judge(NodeAction.SUSPECT),
            it.judge(NodeAction.MARK),
            HoldCapacity("acme", owner, Intent.RECOVERY, (claim,), at, scheduler),
            DropReservation("acme", "r", "u", "over", scheduler),
            RegisterNode(it.get(it.node)),
            AcquireLease("scheduler:one", 10_000, 1, 0),
            RenewLease(scheduler),
            RetireLease("scheduler:one", 1, 0),
        )
        self.seeds = tuple(msgspec.json.encode(request) for request in made)
        self._before = it.snapshot()

    def again(self) -> Furnished:
        self.it.restore(self._before)
        return self.it


_STAGE = _Stage()


def _decided(case: tuple[bytes, int]) -> str:
    data, sender = case
    try:
        wanted: Any = typed_request_routes.decode_requests(data)
    except HoldfastError:
        return "refused"
    it = _STAGE.again()
    outcome = ""
    for request in (wanted if isinstance(wanted, list) else [wanted])[:ANSWERS_MAX]:
        if isinstance(request, HoldfastError):
            continue
        answer = it.ask(SENDERS[sender % len(SENDERS)], request)
        assert isinstance(answer, Accepted | Refusal), answer
        outcome = "accepted" if isinstance(answer, Accepted) else str(answer.reason.value)
    return outcome or "nothing"


def _sent(data: bytes, rng: random.Random) -> tuple[bytes, int]:
    if not rng.randrange(3):
        return data, rng.randrange(len(SENDERS))
    owner = next((who for word, who in OWNERS.items() if word in data), SCHEDULER)
    return data, SENDERS.index(owner)


TARGETS = (
    Target(
        "decided requests",
        damaged(_STAGE.seeds).map(lambda data: (data, len(data))),
        _decided,
        steps_max=20_000_000,
        seeds=_STAGE.seeds,
        of=_sent,
    ),
)
