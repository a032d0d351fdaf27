"""`holdfast get`: lists and single objects, as the servers' tables or as whole documents."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import yaml

from holdfast.cli.exit_codes import UsageError, plain, warn
from holdfast.cli.tables import ServerTable, TablePrinter
from holdfast.host.client import AsyncClient, paths
from holdfast.host.client.answers import UNREADABLE, error_of, status_of
from holdfast.host.client.list_watch import BOOKMARK_S, reopen, watch_pieces
from holdfast.host.client.reading import LIST_TRIES_MAX, PAGE
from holdfast.model.errors import Expired, Unavailable
from holdfast.model.kind_declaration import Kind

TABLE_TYPE = "application/json;as=Table;v=v1;g=meta.k8s.io"
TABLE, WIDE, JSON, YAML, NAME = "table", "wide", "json", "yaml", "name"
_FIRST = ("apiVersion", "kind", "metadata")
FORMS = (TABLE, WIDE, JSON, YAML, NAME)
# `-o value=status.state` prints one field of each object, for scripts.
VALUE = "value="


class GetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to read and how to print it.

    name: one object; empty means all of the kind.
    namespace: empty means all.
    """

    kind: Kind
    name: str = ""
    namespace: str = ""
    labels: str = ""
    fields: str = ""
    form: str = TABLE

    @property
    def is_table(self) -> bool:
        return self.form in (TABLE, WIDE, NAME)

    @property
    def shows_namespaces(self) -> bool:
        return self.kind.namespaced and not self.namespace

    @property
    def headers(self) -> dict[str, str]:
        return {"Accept": TABLE_TYPE if self.is_table else "application/json"}

    @property
    def query(self) -> dict[str, str]:
        """The query that selects the objects of a list."""
        chosen = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in chosen.items() if value}

    @property
    def place(self) -> str:
        """The namespace in words, for messages."""
        if not self.kind.namespaced:
            return ""
        return f" in namespace {self.namespace}" if self.namespace else " in any namespace"

    def printer(self) -> TablePrinter:
        return TablePrinter(wide=self.form == WIDE, namespaces=self.shows_namespaces)


def form_of(text: str) -> str:
    """The output form that `-o` names. Raises UsageError."""
    if text in FORMS or (text.startswith(VALUE) and all(text.removeprefix(VALUE).split("."))):
        return text
    raise UsageError(
        f"--output: {text[:40]!r} must be one of {', '.join(FORMS)}, or {VALUE}FIELD such as "
        f"{VALUE}status.state"
    )


async def get(client: AsyncClient, question: GetOptions) -> None:
    """Print the objects that `question` selects."""
    if question.is_table:
        show_table(question, await tables(client, question), question.printer())
    else:
        show_document(await objects(client, question), question.form)


def value(document: Any, path: str) -> str:
    """The value of a field of an object; empty where the field does not exist."""
    for step in path.split("."):
        document = document.get(step) if isinstance(document, dict) else None
    if document is None or isinstance(document, str):
        return document or ""
    return json.dumps(document, ensure_ascii=False)


def show_table(question: GetOptions, table: ServerTable, printer: TablePrinter) -> None:
    """Print a table, or the names in it."""
    if question.form == NAME:
        for row in table.rows:
            print(f"{question.kind.singular}.holdfast.dev/{plain(row.object.metadata.name)}")
        return
    lines = printer.lines(table)
    if lines:
        print("\n".join(lines), flush=True)
    else:
        warn(f"No {question.kind.plural}{question.place}.")


def _rank(key: str) -> int:
    return _FIRST.index(key) if key in _FIRST else len(_FIRST)


def show_document(document: dict[str, Any], form: str) -> None:
    """Print a whole object or list, apiVersion and kind first."""
    if form.startswith(VALUE):
        for one in document.get("items", [document]):
            print(plain(value(one, form.removeprefix(VALUE))), flush=True)
        return
    document = {key: document[key] for key in sorted(document, key=_rank)}
    if form == JSON:
        print(json.dumps(document, indent=2, ensure_ascii=False), flush=True)
    else:
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        print(text, end="", flush=True)


async def tables(client: AsyncClient, question: GetOptions) -> ServerTable:
    """The table of all selected objects, as of one revision."""
    found = [msgspec.convert(page, ServerTable) for page in await _pages(client, question)]
    every = [row for page in found for row in page.rows]
    # All pages have the same columns, so the first page's columns are good for all.
    return msgspec.structs.replace(found[0], rows=every)


async def objects(client: AsyncClient, question: GetOptions) -> dict[str, Any]:
    """The object, or a list of all, as the server sends it."""
    first, *others = await _pages(client, question)
    if not question.name:
        first["items"] = [item for page in (first, *others) for item in page.get("items") or ()]
        first.get("metadata", {}).pop("continue", None)
    return first


async def _pages(client: AsyncClient, question: GetOptions) -> list[dict[str, Any]]:
    for _ in range(LIST_TRIES_MAX - 1):
        try:
            return await _pages_once(client, question)
        except Expired:
            # The revision of the first page is compacted: read the list again from the start.
            continue
    return await _pages_once(client, question)


async def _pages_once(client: AsyncClient, question: GetOptions) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    if question.name:
        path = paths.one(question.kind, question.namespace, question.name)
        return [await _read(client, path, {}, question.headers)]
    path = paths.collection(question.kind, question.namespace)
    query = {**question.query, "limit": str(PAGE)}
    while True:
        page = await _read(client, path, query, question.headers)
        pages.append(page)
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return pages
        query["continue"] = str(token)


async def _read(
    client: AsyncClient, path: str, query: dict[str, str], headers: dict[str, str]
) -> dict[str, Any]:
    body = await client.read(path, query, headers=headers)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE as error:
        raise Unavailable(f"the server sent an unreadable answer: {error}") from error


# `holdfast get -w`: prints changes until it is interrupted.
#
# The watch continues from the printed list. When a server goes away, a message says so once and the
# watch waits for it; when the history in between is compacted, everything is printed again.

GONE = "   (deleted)"
_DELETED, _BOOKMARK, _ERROR = "DELETED", "BOOKMARK", "ERROR"


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: dict[str, Any]


async def watch(client: AsyncClient, question: GetOptions) -> None:
    """Print the present objects and then every change, until it is interrupted."""
    follower = _Follower(client, question)
    await follower.list()
    changes = reopen(follower.changes, client.performer.rng, follower.lose, follower.complain)
    async with contextlib.aclosing(changes):
        async for _ in changes:
            follower.has_complained = False


class _Follower:
    """One watch: the last version that it has seen, and its columns."""

    def __init__(self, client: AsyncClient, question: GetOptions) -> None:
        self._client, self._question = client, question
        self._printer = question.printer()
        self._version = ""
        self._is_lost = self.has_complained = False

    def lose(self) -> None:
        """Print everything again: the changes since then are not known any more."""
        self._is_lost = True

    def complain(self, error: Unavailable) -> None:
        """Say once that no server answers."""
        if not self.has_complained:
            warn(f"{error.message}; waiting for it to come back")
        self.has_complained = True

    async def list(self) -> None:
        """Print everything. Changes continue from the version of the list."""
        if not self._question.is_table:
            # A watch from version 0 begins with the present objects, one after another: the end
            # of a printed list would never come.
            self._version = "0"
            return
        found = await tables(self._client, self._listed)
        self._version = found.metadata.resource_version
        show_table(self._question, found, self._printer)

    @property
    def _listed(self) -> GetOptions:
        """The same as a list: a watch is always on a list, so a field selector names the object."""
        fields = self._question.fields
        if self._question.name:
            named = f"metadata.name={self._question.name}"
            fields = f"{fields},{named}" if fields else named
        return msgspec.structs.replace(self._question, name="", fields=fields)

    async def changes(self) -> AsyncGenerator[None, None]:
        """Print the events of one watch until it ends; yields after each batch."""
        if self._is_lost:
            await self.list()
            self._is_lost = False
        asked = self._listed
        query = {
            **asked.query,
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "bookmarkSeconds": str(BOOKMARK_S),
        }
        path = paths.collection(asked.kind, asked.namespace)
        watch = watch_pieces(
            self._client.transport, path, query, headers=self._question.headers, any_server=True
        )
        async with contextlib.aclosing(watch) as pieces:
            async for lines in pieces:
                for line in lines:
                    self._print_event(line)
                yield

    def _print_event(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line, type=_Event)
            if event.type == _ERROR:
                status = status_of(event.object)
                raise error_of(status.code, status)
            version = _version(event.object)
        except UNREADABLE as error:
            raise Unavailable(f"the server sent an unreadable event: {error}") from error
        if event.type != _BOOKMARK:
            self._show(event)
        self._version = version or self._version

    def _show(self, event: _Event) -> None:
        question = self._question
        if not question.is_table:
            if question.form == YAML:
                print("---")
            show_document(event.object, question.form)
        elif question.form == NAME:
            show_table(question, msgspec.convert(event.object, ServerTable), self._printer)
        else:
            mark = GONE if event.type == _DELETED else ""
            lines = self._printer.lines(msgspec.convert(event.object, ServerTable))
            print("\n".join(lines) + mark, flush=True)


def _version(document: dict[str, Any]) -> str:
    """The version of an object, or of the object in the only row of a table."""
    for row in document.get("rows") or ():
        return _version(row.get("object") or {})
    return str((document.get("metadata") or {}).get("resourceVersion", ""))
