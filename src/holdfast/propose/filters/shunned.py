"""Nodes that the commit refused a moment ago, although this picture said yes.

Until there is news of such a node, or for a short time, it is seen wrongly: proposing it again
would be refused again. The reason is the commit's own.
"""

from __future__ import annotations

from holdfast.model.refusal import Refusal
from holdfast.propose.view import Candidate, Work


def shunned(work: Work, candidate: Candidate) -> Refusal | None:
    """Whether the node is left alone for a moment."""
    return candidate.shunned
