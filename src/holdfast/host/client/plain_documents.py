"""Objects as plain documents: dicts as a user wrote or read them, for example from YAML."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.host.client import paths
from holdfast.model.encoding import wire
from holdfast.model.errors import Invalid, Missing
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import API_VERSION, Object
from holdfast.model.registry import KINDS, kind_named

Document = Mapping[str, Any]
_SHOWN = 80


class DocumentSubject(msgspec.Struct, frozen=True):
    """The object that a document describes."""

    kind: Kind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        return paths.one(self.kind, self.namespace, self.name)

    @property
    def title(self) -> str:
        return f"{self.kind.singular}.holdfast.dev/{self.name}"


def subject_of(document: Document, namespace: str) -> DocumentSubject:
    """The object that a document describes. Raises Invalid with the field that is wrong.

    `namespace` is for a document that names none.
    """
    kind = kind_of_document(document)
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise Invalid(f"metadata.name: {_shown(name)} must be a name: apply requires one")
    own = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    if own is not None and not isinstance(own, str):
        raise Invalid(f"metadata.namespace: {_shown(own)} must be a string")
    return DocumentSubject(kind, (own or namespace) if kind.namespaced else "", name)


def kind_of_document(document: Document) -> Kind:
    """The kind that a document names. Raises Invalid."""
    version = document.get("apiVersion")
    if version != API_VERSION:
        raise Invalid(f"apiVersion: {_shown(version)} must be {API_VERSION}")
    name = document.get("kind")
    if not isinstance(name, str) or not name:
        raise Invalid(f"kind: {_shown(name)} must be the name of a kind, such as Workload")
    try:
        return kind_named(name)
    except Missing as error:
        near = difflib.get_close_matches(name, [kind.name for kind in KINDS], n=1)
        hint = f"unknown kind {name[:63]!r}; did you mean {near[0]}?" if near else error.message
        raise Invalid(f"kind: {hint}") from None


def decode_document(document: Document) -> Object:
    """The object of a document. Raises Invalid that names every problem."""
    return wire.decode(kind_of_document(document), encode_document(document), strict=True).object


def encode_document(document: Document) -> bytes:
    """The document as JSON. Raises Invalid for what JSON cannot express."""
    try:
        # msgspec writes NaN as null, which would remove the field.
        text = json.dumps(document, allow_nan=False, ensure_ascii=False, default=_as_dict)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the document cannot be written as JSON: {error}") from None


def _as_dict(value: object) -> dict[str, Any]:
    """Return a mapping of another class as a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:_SHOWN]
