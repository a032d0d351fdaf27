"""Region, zone and pool. They never change under a node, so that an old picture is right."""

from __future__ import annotations

from holdfast.model.placing import site_refusal
from holdfast.model.refusal import Refusal
from holdfast.propose.view import Candidate, Work


def site(work: Work, candidate: Candidate) -> Refusal | None:
    """Whether the node is where the work asks to be."""
    return site_refusal(candidate.gate, work.replica.spec.template.placement)
