"""Where things are on a server."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.model.meta import API_GROUP
from holdfast.model.registry import Kind

GROUP = f"/apis/{API_GROUP}/v1"


def collection(kind: Kind, namespace: str) -> str:
    """All objects of a kind: of one namespace, or of all when it is empty."""
    if kind.namespaced and namespace:
        return f"{GROUP}/namespaces/{quote(namespace, safe='')}/{kind.plural}"
    return f"{GROUP}/{kind.plural}"


def one(kind: Kind, namespace: str, name: str, subresource: str = "") -> str:
    """One object, or a part of it."""
    path = f"{collection(kind, namespace)}/{quote(name, safe='')}"
    return f"{path}/{subresource}" if subresource else path


# Headers of our own, which servers read and clients send.

# The id of an operation, which takes effect once however often it is sent.
OPERATION_HEADER = "X-Holdfast-Operation"
# The term that a component acts under, as its epoch and its scope.
TERM_HEADER = "X-Holdfast-Term"
# The certificate authorities that a client trusts, by the first part of their fingerprints.
TRUST_HEADER = "X-Holdfast-Trust"
FINGERPRINT_SHORT = 16
