"""Planted bugs in the handling of late requests and wrong calendars."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite
from tests.sim.authority.planting import COMMIT, bug, lone_server_bug

LATE = (
    bug(
        "late-registration-believed",
        "a late registration overwrites newer facts of the node",
        rewrite(
            COMMIT + "lifecycle.node_requests:_unseen_refusal",
            "if given.uid and states_a_version(given):",
            "if given.uid and states_a_version(given):\n        return None\n    if False:",
        ),
    ),
    bug(
        "late-judgement-believed",
        "a node is judged on evidence from before its last write",
        rewrite(
            COMMIT + "lifecycle.node_requests:_outdated_refusal",
            "if request.version == now:",
            "if True:",
        ),
    ),
    lone_server_bug(
        "forgotten-by-the-calendar",
        "the age of an operation is taken from its stamp, by the calendar of any server",
        rewrite(
            COMMIT + "operations:forget",
            "context.is_surely_older(draft.revision(key), kept_ms)",
            "context.age_ms(past.operation.at) >= kept_ms",
        ),
        rewrite(
            COMMIT + "operations:_young",
            "context.is_surely_older(kept[0].revision, settings.operations_kept_ms + 1)",
            "context.age_ms(kept[0].at) > settings.operations_kept_ms",
        ),
    ),
)
