"""What the watch hub keeps of each object: its bytes as clients get them, and selectable fields.

The store keeps an object without its resourceVersion, which follows from the record's revision. It
is inserted into the bytes here, where the encoder would have put it, so that an answer needs no
decoding and equals the encoding of the object. The labels and the few fields that watchers select
by are read when the object arrives (`partial_decode`). Any other field that a selector names is
decoded on demand.
"""

from __future__ import annotations

from functools import cache

import msgspec

from holdfast.model.encoding.encrypted_records import unreadable_reason
from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.kind_declaration import Kind
from holdfast.model.registry import KINDS
from holdfast.model.selection.field_selector import parse_field_selector
from holdfast.observe.partial_decode import partial_reader

# Agents watch their replicas by these fields, controllers those of their workload, and kubectl the
# events of an object: often enough to keep them decoded. The first two exist for every kind.
_EVERY_KIND = ("metadata.name", "metadata.namespace")
_KEPT: dict[str, tuple[str, ...]] = {
    "replicas": ("status.binding.node", "status.state", "spec.workload"),
    "nodes": ("status.phase",),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
        "type",
    ),
}
# The number of different texts and label maps that are shared; beyond it sharing starts over.
_SHARED_MAX = 50_000

_UID = b'"uid":"'
_METADATA = b'"metadata":{'


class Unreadable(Exception):
    """A stored object is damaged: not even its name and its labels can be read."""


class ObjectEntry(msgspec.Struct, frozen=True, gc=False):
    """One object at one revision. `fields` are the values of its kind's `kept_paths`, in order."""

    fields: tuple[str, ...]
    revision: int
    labels: dict[str, str]
    data: bytes

    @property
    def name(self) -> str:
        return self.fields[0]

    @property
    def namespace(self) -> str:
        return self.fields[1]


@cache
def kept_paths(kind: Kind) -> tuple[str, ...]:
    """The fields that are kept decoded in every entry of a kind."""
    return (*_EVERY_KIND, *_KEPT.get(kind.plural, ()))


@cache
def _attributes(kind: Kind) -> tuple[tuple[str, ...], ...]:
    return tuple(
        parse_field_selector(f"{path}=x", kind.struct)[0].attributes for path in kept_paths(kind)
    )


def with_version(value: bytes, revision: int) -> bytes:
    """A stored object with the resourceVersion that follows from its revision.

    Names are the only texts before the uid and contain no quotes, so the first match is the
    object's own.
    """
    at = value.find(_UID)
    if at >= 0:
        end = value.index(b'"', at + len(_UID)) + 1
        return b"%b,%b%b" % (value[:end], _version(revision), value[end:])
    at = value.index(_METADATA) + len(_METADATA)
    comma = b"" if value[at : at + 1] == b"}" else b","
    return b"%b%b%b%b" % (value[:at], _version(revision), comma, value[at:])


def with_deletion_version(entry: ObjectEntry, revision: int) -> bytes:
    """The last state of an object with the revision of its deletion, for a DELETED event."""
    return entry.data.replace(_version(entry.revision), _version(revision), 1)


def _version(revision: int) -> bytes:
    return b'"resourceVersion":"%b"' % object_version(revision).encode()


class EntryReader:
    """Makes entries. Equal texts and label maps are stored once: replicas have most in common."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._labels: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._partial_readers = {it.plural: partial_reader(it, _attributes(it)) for it in KINDS}

    def read(self, kind: Kind, value: bytes, revision: int) -> ObjectEntry:
        """The entry of a stored object. Raises Unreadable."""
        try:
            return self._entry(kind, value, revision)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Unreadable(unreadable_reason(value) or str(error)) from error

    def _entry(self, kind: Kind, value: bytes, revision: int) -> ObjectEntry:
        labels, (name, *others) = self._partial_readers[kind.plural](value)
        texts = self._texts
        if len(texts) >= _SHARED_MAX:
            texts.clear()
        fields = (name, *map(texts.setdefault, others, others))
        return ObjectEntry(
            fields, revision, self._shared_labels(labels), with_version(value, revision)
        )

    def _shared_labels(self, labels: dict[str, str]) -> dict[str, str]:
        if len(self._labels) >= _SHARED_MAX:
            self._labels.clear()
        return self._labels.setdefault(tuple(labels.items()), labels)
