"""Proposal, pure: the scheduling queue, filters and scorers. A wrong one costs one refusal."""
