"""Message classes of etcd's v3 protocol, built at import from `schema.py`.

Read `messages.pyi` for their fields: it is what the type checker reads too.
"""

from __future__ import annotations

from holdfast.store.etcd.schema import SCHEMA, build_classes

# The values of etcd's enums that we use.
COMPARE_EQUAL = 0
TARGET_MOD = 2
EVENT_PUT = 0
EVENT_DELETE = 1

_CLASSES = build_classes(SCHEMA)
globals().update(_CLASSES)

__all__ = ["COMPARE_EQUAL", "EVENT_DELETE", "EVENT_PUT", "TARGET_MOD", *_CLASSES]  # noqa: PLE0604
