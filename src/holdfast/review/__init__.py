"""Capacity, what-if, commitments, the design-review report; runs as a client."""
