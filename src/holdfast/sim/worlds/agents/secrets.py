"""The Secrets of this world, made so that their values are recognised wherever they turn up."""

from __future__ import annotations

from base64 import b64encode

from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import EnvVar, File, SecretRef
from holdfast.model.meta import ObjectMeta

NAME, KEY, OTHER = "key", "value", "other"
# What no text of anybody else has in it, as it is and in base64 (for it begins each value).
MARK = "hush"
_SEALED = b64encode(MARK.encode()).decode()[:5]
ENV = (EnvVar("KEY", secret=SecretRef(NAME, KEY)),)
FILES = (File("key", secret=SecretRef(NAME, KEY)),)


def secret(tenant: str, edition: int, *, has_key: bool = True) -> Secret:
    """One edition of the secret of a tenant, perhaps without what work needs of it."""
    value = b64encode(f"{MARK}-{tenant}-{edition}".encode()).decode()
    return Secret(
        metadata=ObjectMeta(name=NAME, namespace=tenant), data={KEY if has_key else OTHER: value}
    )


def contains_secret(text: str | bytes) -> bool:
    """Whether a value is to be seen in a text."""
    if isinstance(text, bytes):
        return MARK.encode() in text or _SEALED.encode() in text
    return MARK in text or _SEALED in text
