"""Scores: which of the nodes that can take a replica is the better choice. One file each.

A score is from 0 to `SCORE_MAX` and never carries a hard rule. A policy's weights say how much each
counts; a scorer that the policy does not name counts nothing, and a policy that names none leaves
the choice to the default weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy
from holdfast.propose.scores.headroom import headroom
from holdfast.propose.view import Candidate, Work

SCORE_MAX = 100.0

SCORERS: dict[str, Callable[[Work, Candidate], float]] = {"headroom": headroom}
DEFAULT_WEIGHTS: dict[str, int] = {"headroom": 1}


def weights_of(policy: SchedulerPolicy | None) -> Mapping[str, int]:
    """How much each scorer counts. Names that are not known here are another version's."""
    named = policy.spec.weights if policy is not None else {}
    known = {name: weight for name, weight in named.items() if name in SCORERS and weight > 0}
    return known or DEFAULT_WEIGHTS


def breakdown(work: Work, candidate: Candidate, weights: Mapping[str, int]) -> dict[str, float]:
    """Each scorer's own word, from 0 to SCORE_MAX."""
    return {name: SCORERS[name](work, candidate) for name in weights}


def weighed(scores: Mapping[str, float], weights: Mapping[str, int]) -> float:
    """The weighted mean, which has the same bounds as each score."""
    return sum(score * weights[name] for name, score in scores.items()) / sum(weights.values())
