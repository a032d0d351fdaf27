"""`holdfast get -w`: what changes, for as long as somebody looks.

It goes on from the list that `getting` has printed. A server that goes away is named once and
waited for; when the history in between is lost, everything is printed again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from holdfast.cli.ending import warn
from holdfast.cli.getting import NAME, YAML, Question, show_document, show_table, tables
from holdfast.cli.tables import Table
from holdfast.host.client import Client, paths
from holdfast.host.client.answers import error_of, status_of
from holdfast.host.client.following import BOOKMARK_S, watched
from holdfast.model.errors import Expired, Unavailable
from holdfast.observe.retry import FOLLOW_POLICY

GONE = "   (deleted)"
_DELETED, _BOOKMARK, _ERROR = "DELETED", "BOOKMARK", "ERROR"


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: dict[str, Any]


async def watch(client: Client, question: Question) -> None:
    """Print what is there and then whatever changes, until it is interrupted."""
    follower = _Follower(client, question)
    failures, is_told, is_lost = 0, False, False
    await follower.list()
    while True:
        try:
            if is_lost:
                await follower.list()
                is_lost = False
            async for _ in follower.changes():
                failures, is_told = 0, False
        except Expired:
            is_lost = True
        except Unavailable as error:
            if not is_told:
                warn(f"{error.message}; waiting for it to come back")
            is_told = True
        # Also after a stream that ended in peace, which a server that stops does to all at once.
        failures += 1
        rng = client.performer.rng
        await asyncio.sleep(FOLLOW_POLICY.pause(failures, 0, rng) / 1_000)


class _Follower:
    """How far one watch was told, and in which columns."""

    def __init__(self, client: Client, question: Question) -> None:
        self._client, self._question = client, question
        self._printer = question.printer()
        self._version = ""

    async def list(self) -> None:
        """Print everything. The version of the list is where changes go on from."""
        if not self._question.is_table:
            # A watch from nowhere begins with what is there: one object after another, for a list
            # would never be closed.
            self._version = "0"
            return
        found = await tables(self._client, self._listed)
        self._version = found.metadata.resource_version
        show_table(self._question, found, self._printer)

    @property
    def _listed(self) -> Question:
        """A watch is always on a list, so one object is chosen by its name."""
        fields = self._question.fields
        if self._question.name:
            named = f"metadata.name={self._question.name}"
            fields = f"{fields},{named}" if fields else named
        return msgspec.structs.replace(self._question, name="", fields=fields)

    async def changes(self) -> AsyncGenerator[None, None]:
        """One watch until it ends: a turn for each event."""
        asked = self._listed
        query = {
            **asked.query,
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "bookmarkSeconds": str(BOOKMARK_S),
        }
        path = paths.collection(asked.kind, asked.namespace)
        lines = watched(self._client, path, query, self._question.headers)
        async with contextlib.aclosing(lines):
            async for line in lines:
                self._tell(line)
                yield

    def _tell(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line, type=_Event)
            if event.type == _ERROR:
                status = status_of(event.object)
                raise error_of(status.code, status)
            version = _version(event.object)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the server sent an event that cannot be read: {error}") from error
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
            show_table(question, msgspec.convert(event.object, Table), self._printer)
        else:
            mark = GONE if event.type == _DELETED else ""
            lines = self._printer.lines(msgspec.convert(event.object, Table))
            print("\n".join(lines) + mark, flush=True)


def _version(document: dict[str, Any]) -> str:
    """Of an object, or of the object in the one row of a table."""
    for row in document.get("rows") or ():
        return _version(row.get("object") or {})
    return str((document.get("metadata") or {}).get("resourceVersion", ""))
