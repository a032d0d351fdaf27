"""Resources: sums, devices and fixed ports, by the same `claim` as the commit.

The ledger is this picture's own, with what is assumed. An old one offers what is taken by now,
which the commit refuses, or misses what was given back, which the next news mend.
"""

from __future__ import annotations

from holdfast.model.fit import claim
from holdfast.model.refusal import Refusal
from holdfast.propose.view import Candidate, Work


def resources(work: Work, candidate: Candidate) -> Refusal | None:
    """Whether the work fits on the node beside what is there."""
    held = claim(candidate.site.ledger, work.demand)
    return held if isinstance(held, Refusal) else None
