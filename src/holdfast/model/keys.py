"""Where things lie in the store.

One prefix per sort of record, so that a watch of objects never sees a ledger and a list of one
kind is one range. Names cannot contain `/`, which keeps every key unambiguous.
"""

from __future__ import annotations

from holdfast.model.meta import Object
from holdfast.model.registry import Kind, kind_of

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

# The last code point. No store takes a key that begins with it, so every key comes before it.
END = "\U0010ffff"


def object_key(kind: Kind, namespace: str, name: str) -> str:
    """The key of one object."""
    # Every decision makes a dozen of these, so this does not go through kind_prefix.
    if namespace and kind.namespaced:
        return f"{OBJECTS}{kind.plural}/{namespace}/{name}"
    return f"{OBJECTS}{kind.plural}/{name}"


def key_of(obj: Object) -> str:
    """The key of this object."""
    metadata = obj.metadata
    return object_key(kind_of(obj), metadata.namespace, metadata.name)


def kind_prefix(kind: Kind, namespace: str = "") -> str:
    """The prefix of all objects of a kind, or of those of one namespace."""
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
    """Where each transaction says who did what in it; the history keeps what it overwrites."""
    return f"{AUDIT}stamp/last"


def audit_head() -> str:
    """How far what was said there is written down."""
    return f"{AUDIT}head/chain"


def plane_format() -> str:
    """Where the plane's format is written down."""
    return f"{FORMATS}plane"


def encryption_proof() -> str:
    """Where a record is kept that only servers with the plane's key can read."""
    return f"{ENCRYPTION}proof"


def encryption_whole() -> str:
    """Where it is kept, encrypted, whether all Secrets of the plane are encrypted."""
    return f"{ENCRYPTION}whole"


def trust_bundle() -> str:
    """Where the certificate authorities that the plane trusts are kept."""
    return f"{TRUST}bundle"


def quarantine(key: str) -> str:
    """Where it is written down that a record is in quarantine."""
    return f"{QUARANTINE}{key}"


def after_prefix(prefix: str) -> str:
    """The smallest key that is larger than every key with this prefix: the end of its range.

    After all keys, as for an empty prefix, comes END.
    """
    kept = prefix.rstrip(END)
    if not kept:
        return END
    # The surrogates are no characters, so no key holds them and none is skipped.
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)
