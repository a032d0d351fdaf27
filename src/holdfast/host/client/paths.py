"""The paths of a server's API."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.model.errors import Invalid
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import API_GROUP

GROUP = f"/apis/{API_GROUP}/v1"


def segment(text: str, field: str) -> str:
    """Return a name as one segment of a path. Raises Invalid for one that leads elsewhere."""
    try:
        found = quote(text, safe="")
    except UnicodeEncodeError:
        raise Invalid(f"{field}: {text[:63]!a} must be Unicode text without surrogates") from None
    # Proxies and clients resolve these, however they are encoded.
    if found in ("", ".", ".."):
        raise Invalid(f"{field}: {text!r} must be the name of an object")
    return found


def collection(kind: Kind, namespace: str) -> str:
    """Return the path of a kind's objects in one namespace, or in all if it is empty."""
    if kind.namespaced and namespace:
        return f"{GROUP}/namespaces/{segment(namespace, 'namespace')}/{kind.plural}"
    return f"{GROUP}/{kind.plural}"


def one(kind: Kind, namespace: str, name: str, subresource: str = "") -> str:
    """Return the path of one object or of its subresource."""
    path = f"{collection(kind, namespace)}/{segment(name, 'name')}"
    return f"{path}/{subresource}" if subresource else path


# Our own headers, which clients send and servers read.

# The id of an operation, which takes effect once however often it is sent.
OPERATION_HEADER = "X-Holdfast-Operation"
# The term under which a component acts, as its epoch and its scope.
TERM_HEADER = "X-Holdfast-Term"
# The certificate authorities that a client trusts, by the first part of their fingerprints.
TRUST_HEADER = "X-Holdfast-Trust"
FINGERPRINT_SHORT = 16
