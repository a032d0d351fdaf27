"""Labels: what the work demands of the node's labels.

The commit does not ask again: labels are the proposer's rule. An old picture places the work on a
node whose labels have just changed, as if it had been placed a moment earlier.
"""

from __future__ import annotations

from holdfast.model.placing import selector_refusal
from holdfast.model.refusal import Refusal
from holdfast.propose.view import Candidate, Work


def labels(work: Work, candidate: Candidate) -> Refusal | None:
    """Whether the node has the labels that the work asks for."""
    node = candidate.site.node
    have = node.metadata.labels if node is not None else {}
    return selector_refusal(have, work.replica.spec.template.placement)
