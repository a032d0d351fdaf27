"""Taints. An old picture may miss one that was just set; the commit knows it."""

from __future__ import annotations

from holdfast.model.placing import taint_refusal
from holdfast.model.refusal import Refusal
from holdfast.propose.view import Candidate, Work


def taints(work: Work, candidate: Candidate) -> Refusal | None:
    """Whether the work puts up with the node's taints."""
    return taint_refusal(candidate.gate, work.replica.spec.template.placement)
