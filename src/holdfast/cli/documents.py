"""Reads the documents that a user wrote: YAML and JSON, several per file, files in a folder.

`apply` sends them. A document knows where it came from, so that errors can name the place.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.exit_codes import UsageError
from holdfast.host.api.objects import yaml_text
from holdfast.model.encoding import wire
from holdfast.model.errors import Invalid
from holdfast.model.kind_declaration import Kind
from holdfast.model.registry import KINDS

FILE_BYTES_MAX = 8 << 20
DOCUMENTS_MAX = 10_000
STDIN = "-"
ENDINGS = (".yaml", ".yml", ".json")


class Document(msgspec.Struct, frozen=True):
    """One document.

    file: as it was given on the command line.
    place: which document of its file, for messages.
    """

    file: str
    place: str
    tree: dict[str, Any]

    @property
    def title(self) -> str:
        """The document's name in messages."""
        metadata = self.tree.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        what = " ".join(str(it)[:63] for it in (self.tree.get("kind", ""), name) if it)
        return f"{self.file}, {self.place}" + (f" ({what})" if what else "")


def documents(given: str) -> list[Document]:
    """Every document of a file, of a folder, or of standard input for `-`. Raises Invalid."""
    found = [document for file in _files(given) for document in _of_file(file)]
    if not found:
        raise Invalid(f"{_title(given)}: contains no document")
    return found


def _files(given: str) -> list[str]:
    if given == STDIN or not Path(given).is_dir():
        return [given]
    files = sorted(str(it) for it in Path(given).iterdir() if it.suffix in ENDINGS)
    if not files:
        raise Invalid(f"{given}: contains no file that ends in {', '.join(ENDINGS)}")
    return files


def _of_file(file: str) -> Iterator[Document]:
    text = _text(file)
    try:
        trees = _trees(text)
    except Invalid as error:
        raise Invalid(f"{_title(file)}: {error.message}") from error
    for number, (place, tree) in enumerate(trees, 1):
        if number > DOCUMENTS_MAX:
            raise Invalid(f"{_title(file)}: must have at most {DOCUMENTS_MAX} documents")
        if not isinstance(tree, dict):
            raise Invalid(f"{_title(file)}, {place}: must be an object, with kind and metadata")
        yield from _unfolded(_title(file), place, tree)


def _trees(text: str) -> list[tuple[str, Any]]:
    """Each document with its place. Empty documents, as between two `---`, are skipped."""
    if text.lstrip()[:1] == "{":
        return [("document 1", wire.decode_tree(text.encode()))]
    return [
        (f"document {number} at line {line}", tree)
        for number, (line, tree) in enumerate(yaml_text.documents(text), 1)
        if tree is not None
    ]


def _unfolded(file: str, place: str, tree: dict[str, Any]) -> Iterator[Document]:
    """The objects of a list, or the one object."""
    items = tree.get("items")
    if not str(tree.get("kind", "")).endswith("List") or not isinstance(items, list):
        yield Document(file, place, tree)
        return
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise Invalid(f"{file}, {place}, item {number}: must be an object")
        yield Document(file, f"{place}, item {number}", item)


def _text(file: str) -> str:
    try:
        if file == STDIN:
            content = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise Invalid(f"{_title(file)}: must be at most {FILE_BYTES_MAX >> 20} MiB long")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"{_title(file)}: must be UTF-8 text: {error.reason}") from error


def _title(file: str) -> str:
    return "standard input" if file == STDIN else file


# Kinds as users type them: `workloads`, `workload`, `wl`, `Workload`, or `workload/hello`.

_BY_NAME = {
    name: kind for kind in KINDS for name in (kind.plural, kind.singular, *kind.short_names)
}


def kind_named(text: str) -> Kind:
    """The kind that the text names. Raises UsageError with the closest match."""
    wanted = text.lower().partition(".")[0]
    found = _BY_NAME.get(wanted)
    if found is not None:
        return found
    near = difflib.get_close_matches(wanted, [kind.plural for kind in KINDS], n=1)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else "it must be one of " + ", ".join(kind.plural for kind in KINDS)
    )
    raise UsageError(f"KIND: unknown kind {text[:63]!r}; {hint}")


def kind_and_name(kind: str, name: str) -> tuple[Kind, str]:
    """Kind and name, also from one argument `KIND/NAME`. Raises UsageError."""
    first, slash, second = kind.partition("/")
    if slash and name:
        raise UsageError(
            f"NAME: {name[:63]!r} must not be given: {kind[:63]!r} already contains a name"
        )
    if slash and not second:
        raise UsageError(f"KIND: {kind[:63]!r} must have a name after the slash")
    return kind_named(first), second or name
