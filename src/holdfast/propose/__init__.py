"""Proposal, pure: the scheduling queue, filters and scorers. A wrong proposal costs one rejected commit."""
