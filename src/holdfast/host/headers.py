"""Headers of our own, which servers read and clients send."""

from __future__ import annotations

# The id of an operation, which takes effect once however often it is sent.
OPERATION_HEADER = "X-Holdfast-Operation"
# The term that a component acts under, as its epoch and its scope.
TERM_HEADER = "X-Holdfast-Term"
# The certificate authorities that a client trusts, by the first part of their fingerprints.
TRUST_HEADER = "X-Holdfast-Trust"
FINGERPRINT_SHORT = 16
