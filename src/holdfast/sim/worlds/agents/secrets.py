"""The Secrets of this world. Their values are recognisable wherever they appear."""

from __future__ import annotations

from base64 import b64encode

from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import EnvVar, File, SecretRef
from holdfast.model.meta import ObjectMeta

NAME, KEY, OTHER = "key", "value", "other"
# No other text contains this, neither plain nor in base64 (each value begins with it).
MARK = "hush"
_MARK_BASE64 = b64encode(MARK.encode()).decode()[:5]
ENV = (EnvVar("KEY", secret=SecretRef(NAME, KEY)),)
FILES = (File("key", secret=SecretRef(NAME, KEY)),)


def secret(tenant: str, edition: int, *, has_key: bool = True) -> Secret:
    """One edition of the Secret of a tenant, on request without the key that work needs."""
    value = b64encode(f"{MARK}-{tenant}-{edition}".encode()).decode()
    return Secret(
        metadata=ObjectMeta(name=NAME, namespace=tenant), data={KEY if has_key else OTHER: value}
    )


def contains_secret(text: str | bytes) -> bool:
    """Whether a text contains the value of a Secret."""
    if isinstance(text, bytes):
        return MARK.encode() in text or _MARK_BASE64.encode() in text
    return MARK in text or _MARK_BASE64 in text
