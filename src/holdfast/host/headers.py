"""Headers of our own, which servers read and clients send."""

from __future__ import annotations

# The id of an operation, which takes effect once however often it is sent.
OPERATION_HEADER = "X-Holdfast-Operation"
# The term that a component acts under, as its epoch and its scope.
TERM_HEADER = "X-Holdfast-Term"
