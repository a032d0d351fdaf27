"""Residency: the law of the region. What is not known is refused, here as in the commit.

A region or tenant that this picture lacks keeps the work waiting until it is told of.
"""

from __future__ import annotations

from holdfast.model.placing import residency_refusal
from holdfast.model.refusal import Refusal
from holdfast.propose.view import Candidate, Work


def residency(work: Work, candidate: Candidate) -> Refusal | None:
    """Whether the data of this work may be in the node's region."""
    placement = work.replica.spec.template.placement
    return residency_refusal(placement, work.tenant, candidate.gate.region, candidate.region)
