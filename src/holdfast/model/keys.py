"""The keys of all records in the store.

Each type of record has its own prefix, so that a watch of objects never sees a ledger and a list of
one kind is one range. Names cannot contain `/`, so every key is unambiguous.
"""

from __future__ import annotations

from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import Object
from holdfast.model.registry import kind_of

OBJECTS = "objects/"
LEDGERS = "ledgers/"
EPOCHS = "epochs/"
OPERATIONS = "operations/"
FLOORS = "floors/"
AUDIT = "audit/"
QUARANTINE = "quarantine/"
FORMATS = "formats/"
ENCRYPTION = "encryption/"
TRUST = "trust/"
PLANES = "planes/"

# The last code point. No store accepts a key that starts with it, so every key sorts before it.
END = "\U0010ffff"


def object_key(kind: Kind, namespace: str, name: str) -> str:
    """The key of one object."""
    # Every decision builds a dozen of these, so this does not call kind_prefix.
    if namespace and kind.namespaced:
        return f"{OBJECTS}{kind.plural}/{namespace}/{name}"
    return f"{OBJECTS}{kind.plural}/{name}"


def key_of(obj: Object) -> str:
    """The key of this object."""
    metadata = obj.metadata
    return object_key(kind_of(obj), metadata.namespace, metadata.name)


def kind_prefix(kind: Kind, namespace: str = "") -> str:
    """The prefix of all objects of a kind, or of those in one namespace."""
    if kind.namespaced and namespace:
        return f"{OBJECTS}{kind.plural}/{namespace}/"
    return f"{OBJECTS}{kind.plural}/"


def node_ledger(node: str) -> str:
    return f"{LEDGERS}node/{node}"


def quota_ledger(cohort: str) -> str:
    return f"{LEDGERS}quota/{cohort}"


def objects_ledger(tenant: str) -> str:
    return f"{LEDGERS}objects/{tenant}"


def disruption_ledger(namespace: str, workload: str) -> str:
    return f"{LEDGERS}disruption/{namespace}/{workload}"


def places_ledger(namespace: str, workload: str, page: int) -> str:
    return f"{LEDGERS}places/{namespace}/{workload}/{page}"


def grant_ledger(tenant: str) -> str:
    return f"{LEDGERS}grant/{tenant}"


def pools_ledger() -> str:
    return f"{LEDGERS}pools/all"


def access_ledger(namespace: str) -> str:
    return f"{LEDGERS}access/{namespace}"


def epoch(scope: str) -> str:
    return f"{EPOCHS}{scope}"


def epoch_floor() -> str:
    return f"{FLOORS}epochs"


def operation(operation_id: str) -> str:
    return f"{OPERATIONS}{operation_id}"


def audit_stamp() -> str:
    """The key where each transaction records who did what; the history keeps earlier values."""
    return f"{AUDIT}stamp/last"


def audit_head() -> str:
    """The key of the audit chain's head: how far the stamps are written to the journal."""
    return f"{AUDIT}head/chain"


def plane_format() -> str:
    """The key of the plane's format."""
    return f"{FORMATS}plane"


def plane_record() -> str:
    """The key of the record of the plane that the store belongs to."""
    return f"{PLANES}own"


def encryption_proof() -> str:
    """The key of a record that only servers with the plane's encryption key can read."""
    return f"{ENCRYPTION}proof"


def encryption_whole() -> str:
    """The key of the encrypted record that says whether all Secrets are encrypted."""
    return f"{ENCRYPTION}whole"


def trust_bundle() -> str:
    """The key of the certificate authorities that the plane trusts."""
    return f"{TRUST}bundle"


def quarantine(key: str) -> str:
    """The key that marks a record as quarantined."""
    return f"{QUARANTINE}{key}"


def after_prefix(prefix: str) -> str:
    """The smallest key that is larger than every key with this prefix: the end of its range.

    After all keys, as for an empty prefix, comes END.
    """
    kept = prefix.rstrip(END)
    if not kept:
        return END
    # Surrogates are not characters, so no key contains them and none is skipped.
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)
