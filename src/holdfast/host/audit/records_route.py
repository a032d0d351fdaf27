"""/audit/records: the audit records on this server, for auditors, a page at a time.

Callers with permission for the path see all of them, as they are in the files. With `namespace` a
tenant's own auditors may ask, who may list `auditrecords` there: they get records of their tenant
and nothing that names objects of others. Each of several servers has its part; `holdfast audit
list` asks all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
from aiohttp import web

from holdfast.host.api import status_objects
from holdfast.host.api.call import bad, parse_query, reply
from holdfast.host.audit.segments import lines_of, segments
from holdfast.model.access.identity import AUDITORS, Identity, acts_as
from holdfast.model.access.rights import Permission
from holdfast.model.audit.audit_records import AuditRecord, Head, Mutation, mutation_of, record_of
from holdfast.model.errors import Forbidden, HoldfastError
from holdfast.model.refusal import Reason

PATH = "/audit/records"
RESOURCE = "auditrecords"
LIMIT, LIMIT_MAX = 100, 500
# The most records that are read for one answer; with fewer matches it says where to continue.
LOOKED_AT_MAX = 10_000
FILTERS = ("namespace", "who", "verb", "kind", "name")
_NUMBERED = b'{"number":'

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ShownRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A record as it is shown. A tenant gets no hash: parts of the record may be left out.

    number, revision, at: as in the chain.
    said: what was done; empty for a gap.
    """

    number: int
    revision: int
    at: int
    said: Mutation | None = None
    previous: str = ""
    hash: str = ""


class RecordPage(msgspec.Struct, frozen=True, rename="camel"):
    """A page.

    server: whose part of the chain it is from.
    after: where to ask for the next page; the same as asked when there is nothing more yet.
    """

    server: str
    head: Head
    after: int
    records: tuple[ShownRecord, ...] = ()


class RecordQuery(msgspec.Struct, frozen=True):
    """What a caller asks for."""

    after: int
    limit: int
    wanted: dict[str, str]

    @property
    def namespace(self) -> str:
        return self.wanted.get("namespace", "")


def handlers(
    folder: Path,
    server: str,
    head: Callable[[], Head],
    authenticate: Callable[[web.BaseRequest], Identity],
    may_path: Callable[[Identity, str, str], bool],
    may: Callable[[Identity, Permission], bool],
) -> dict[str, Handler]:
    """Return the handler by path."""
    # Files are read in a thread, one request at a time, so that others are not delayed.
    reading = asyncio.Lock()

    async def show(request: web.BaseRequest) -> web.StreamResponse:
        try:
            identity = authenticate(request)
            if not acts_as(identity):
                raise Forbidden(
                    "authentication required: present a client certificate or bearer token",
                    code=Reason.UNAUTHENTICATED,
                )
            wish = _wish(request.raw_path.partition("?")[2])
            sees_all = may_path(identity, "get", PATH)
            if not sees_all and not _is_own(identity, wish.namespace, may):
                raise Forbidden(
                    f"{identity.name} may not get {PATH}; members of the group {AUDITORS} may, and "
                    f"with ?namespace= identities that may list {RESOURCE} there",
                    code=Reason.NOT_ALLOWED,
                )
            upto = head()
            async with reading:
                found = await asyncio.to_thread(page, folder, wish, upto.number, sees_all=sees_all)
        except HoldfastError as error:
            return reply(*status_objects.of(error))
        # A tenant learns nothing about the activity of others, except through the numbers.
        shown_head = upto if sees_all else Head(number=upto.number)
        return reply(200, msgspec.json.encode(RecordPage(server, shown_head, *found)))

    return {PATH: show}


def _is_own(
    identity: Identity, namespace: str, may: Callable[[Identity, Permission], bool]
) -> bool:
    return bool(namespace) and may(identity, Permission("list", RESOURCE, "", namespace, ""))


def _wish(query: str) -> RecordQuery:
    given = parse_query(query)
    unknown = sorted(given.keys() - {*FILTERS, "after", "limit"})
    if unknown:
        bad(f"unknown parameter {unknown[0][:40]!r}: use after, limit, and {FILTERS}")
    for name in ("after", "limit"):
        text = given.get(name, "0")
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            bad(f"{name}: {text[:40]!r} must be a whole number")
    limit = int(given.get("limit", "0")) or LIMIT
    wanted = {name: given[name] for name in FILTERS if given.get(name)}
    return RecordQuery(int(given.get("after", "0")), min(limit, LIMIT_MAX), wanted)


def page(
    folder: Path, wish: RecordQuery, upto: int, *, sees_all: bool
) -> tuple[int, tuple[ShownRecord, ...]]:
    """Return where to continue, and the matching records, the oldest first."""
    found: list[ShownRecord] = []
    after, looked_at = wish.after, 0
    for line in _after(folder, wish.after):
        looked_at += 1
        try:
            record = record_of(line)
        except msgspec.DecodeError:
            continue
        # Records beyond the head may still turn out not to be part of the chain.
        if record.number > upto:
            break
        after = max(after, record.number)
        shown = _shown(record, wish, sees_all=sees_all)
        if shown is not None:
            found.append(shown)
        if len(found) == wish.limit or looked_at == LOOKED_AT_MAX:
            break
    return after, tuple(found)


def _shown(record: AuditRecord, wish: RecordQuery, *, sees_all: bool) -> ShownRecord | None:
    """Return the record as this caller may see it; None if it does not match."""
    said = None if record.is_gap else mutation_of(record)
    if wish.wanted and said is None:
        return None
    if said is not None and any(getattr(said, it) != of for it, of in wish.wanted.items()):
        return None
    place = (record.number, record.revision, record.at)
    if sees_all or said is None:
        return ShownRecord(*place, said, record.previous, record.hash) if sees_all else None
    own = tuple(it for it in said.more if it.split("/")[1:2] == [wish.namespace])
    return ShownRecord(*place, msgspec.structs.replace(said, more=own))


def _after(folder: Path, after: int) -> Iterator[bytes]:
    """Yield the lines of the records after this one; files before it are not read."""
    files = segments(folder)
    for at, segment in enumerate(files):
        if at + 1 < len(files) and files[at + 1].first <= after + 1:
            continue
        for line in lines_of(segment.path):
            number = line[len(_NUMBERED) : line.find(b",")]
            if line.startswith(_NUMBERED) and number.isdigit() and int(number) <= after:
                continue
            yield line
