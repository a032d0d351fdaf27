"""Planted bugs in what is made of words that come late, and of calendars that are wrong."""

from __future__ import annotations

from holdfast.model import requests as ask
from holdfast.sim.mutants import rewrite
from tests.sim.authority.planting import COMMIT, bug, bug_of_the_lone, handler

LATE = (
    bug(
        "late-registration-believed",
        "a registration that comes late takes newer facts of the node back",
        rewrite(
            COMMIT + "lifecycle.node_requests:_unseen_refusal",
            "if given.uid and states_a_version(given):",
            "if given.uid and states_a_version(given):\n        return None\n    if False:",
        ),
    ),
    bug(
        "late-judgement-believed",
        "a node is judged on evidence from before it was written last",
        rewrite(
            COMMIT + "lifecycle.node_requests:_outdated_refusal",
            "if request.version == now:",
            "if True:",
        ),
    ),
    bug_of_the_lone(
        "forgotten-by-the-calendar",
        "an operation is as old as its stamp says, whichever server made it",
        handler(
            ask.ForgetOperations,
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
