"""The paths of a server's API."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.model.meta import API_GROUP
from holdfast.model.registry import Kind

GROUP = f"/apis/{API_GROUP}/v1"


def collection(kind: Kind, namespace: str) -> str:
    """Return the path of a kind's objects in one namespace, or in all if it is empty."""
    if kind.namespaced and namespace:
        return f"{GROUP}/namespaces/{quote(namespace, safe='')}/{kind.plural}"
    return f"{GROUP}/{kind.plural}"


def one(kind: Kind, namespace: str, name: str, subresource: str = "") -> str:
    """Return the path of one object or of its subresource."""
    path = f"{collection(kind, namespace)}/{quote(name, safe='')}"
    return f"{path}/{subresource}" if subresource else path


# Our own headers, which clients send and servers read.

# The id of an operation, which takes effect once however often it is sent.
OPERATION_HEADER = "X-Holdfast-Operation"
# The term under which a component acts, as its epoch and its scope.
TERM_HEADER = "X-Holdfast-Term"
# The certificate authorities that a client trusts, by the first part of their fingerprints.
TRUST_HEADER = "X-Holdfast-Trust"
FINGERPRINT_SHORT = 16
