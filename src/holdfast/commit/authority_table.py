"""The authority table: for every step of a placement, how old its information may be, what can go
wrong between seeing and acting, who decides when two disagree, and how the action is guarded.

It is data, collected from the handlers (`request_steps.py`). `dispatch.py` finds the handler of a
request here, a test walks every row and holds each request to the records that it must compare, and
docs/authority.md is printed from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.commit import format_upgrade, leases, operations, quarantine_repair
from holdfast.commit.apply import patch_requests
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.lifecycle import (
    bind,
    evict,
    node_requests,
    preempt,
    progress_reports,
    reserve,
    transitions,
)
from holdfast.commit.objects import deletion, object_writes
from holdfast.commit.request_steps import ActionGuard, Outcome, PlacementStep
from holdfast.model.errors import invariant
from holdfast.model.refusal import Refusal
from holdfast.model.requests import REQUESTS, Request

STEPS: tuple[PlacementStep[Any], ...] = (
    PlacementStep(
        "propose a place",
        "scheduler",
        "a snapshot of nodes and quota",
        "anything may change; a wrong proposal costs one refused commit",
        "the bind",
        is_aged=True,
        guard=ActionGuard.ALONE,
    ),
    *object_writes.STEPS,
    *patch_requests.STEPS,
    *deletion.STEPS,
    *reserve.STEPS,
    *bind.STEPS,
    *preempt.STEPS,
    *evict.STEPS,
    PlacementStep(
        "start bound work",
        "agent",
        "its binding, and its own deadline",
        "the agent is paused; the deadline passes before the start",
        "the shim, which checks the deadline before it starts anything",
        guard=ActionGuard.ALONE,
    ),
    PlacementStep(
        "acknowledge a renewal",
        "server",
        "that the node has no mark, read after the acknowledgement window began",
        "the node is marked meanwhile",
        "the fence, which waits longer than any acknowledged renewal lasts",
        age_max_ms=2_000,
        guard=ActionGuard.FRESH_READ,
    ),
    PlacementStep(
        "stop work at its own deadline",
        "shim",
        "its own monotonic clock",
        "the servers come back",
        "the deadline: it only moves later, and never once it has passed",
        guard=ActionGuard.ALONE,
    ),
    *transitions.STEPS,
    *progress_reports.STEPS,
    *node_requests.STEPS,
    *operations.STEPS,
    *quarantine_repair.STEPS,
    *format_upgrade.STEPS,
    *leases.STEPS,
)

HANDLERS: dict[type[Request], Callable[[Draft, Context, Any], Outcome | Refusal]] = {
    step.request: step.handler
    for step in STEPS
    if step.request is not None and step.handler is not None
}
_UNDECIDED = [request.__name__ for request in REQUESTS if request not in HANDLERS]
invariant(not _UNDECIDED, f"requests without a handler: {_UNDECIDED}")
