"""What a hand sees: everything as of one revision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from holdfast.commit.records import readable, versioned
from holdfast.model import keys
from holdfast.model.meta import Object
from holdfast.model.registry import kind_of_struct
from holdfast.model.transaction import Record

Kindly = TypeVar("Kindly", bound=Object)

# Objects are immutable and a record's revision names its content, so all hands share one decoding.
_DECODED_MAX = 20_000
_decoded: dict[tuple[str, int, bytes], Any] = {}


def value_of(key: str, modified: int, value: bytes) -> Any:
    name = (key, modified, value)
    found = _decoded.get(name)
    if found is None:
        if len(_decoded) >= _DECODED_MAX:
            _decoded.clear()
        found = readable(Record(key, value, modified, modified))
        if isinstance(found, Object):
            found = versioned(found, modified)
        _decoded[name] = found
    return found


class Look:
    """What a hand saw as of one revision, by kind and key."""

    def __init__(self, revision: int, values: Iterable[tuple[str, Any]]) -> None:
        self.revision = revision
        self._values: dict[type[Any], dict[str, Any]] = {}
        for key, value in values:
            self._values.setdefault(type(value), {})[key] = value

    def all(self, struct: type[Kindly]) -> Iterable[Kindly]:
        """Everything of a kind, by key."""
        return self._values.get(struct, {}).values()

    def keyed(self, struct: type[Any]) -> dict[str, Any]:
        """The same with its keys, for records that do not carry their own."""
        return self._values.get(struct, {})

    def get(self, struct: type[Kindly], namespace: str, name: str) -> Kindly | None:
        found = self.keyed(struct)
        return found.get(keys.object_key(kind_of_struct(struct), namespace, name))
