"""Readiness: phase, drain and cordon.

Whether heartbeats are late is judged by controller:nodes, which makes such a node Suspect; a
scheduler hears none itself. An old picture offers a node that is suspected by now, and the commit
refuses it.
"""

from __future__ import annotations

from holdfast.model.placing import gate_refusal
from holdfast.model.refusal import Refusal
from holdfast.propose.view import Candidate, Work


def readiness(work: Work, candidate: Candidate) -> Refusal | None:
    """Whether the node takes any new work."""
    return gate_refusal(candidate.gate)
