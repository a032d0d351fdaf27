"""Get and list: from the hub's bytes, as new as the store was when the request arrived.

A list without a limit is sent whole, in pieces, since some clients ignore `continue`; a table
always has a limit, since clients that print tables follow `continue`. With a limit the first page
comes from the hub and the others from the store at the same revision, so that all pages together
show one moment; once that revision is compacted the answer is 410. A page for which many objects
would have to be examined in vain ends early and says where to go on.

Work for each object is done in slices (`loop_share`).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from holdfast.host.api import status_objects
from holdfast.host.api.call import Call, bad, reply
from holdfast.host.api.objects import presentation
from holdfast.host.api.objects.computed_fields import are_computed, with_computed_fields
from holdfast.host.api.objects.negotiation import TABLE
from holdfast.host.api.objects.presentation import ListMetadata, Rendering
from holdfast.host.api.objects.scope import NEEDED, SECRETS, node_needs, selection, visible
from holdfast.host.api.plain import JSON_HEADERS
from holdfast.host.audit.accesses import LIST, READ
from holdfast.model import keys
from holdfast.model.encoding.problems import excerpt
from holdfast.model.encoding.resource_versions import complete_version
from holdfast.model.errors import Invalid, Missing, Unavailable
from holdfast.model.refusal import Reason
from holdfast.model.transaction import Record
from holdfast.observe.entries import EntryReader, ObjectEntry, Unreadable
from holdfast.observe.entry_table import EntrySnapshot, parse_key
from holdfast.observe.selection import ObjectSelection

LIMIT_MAX = 500
# Larger responses are sent in pieces of this size, and other requests run in between.
PIECE_BYTES = 256 << 10
# How long a client may be ahead of this server, having read from another one.
AHEAD_S = 3.0
# At most this many objects are examined for one page, however few of them are selected.
LOOKED_AT_MAX = 10_000
TOKEN_MAX = 2_048
EXACT = "Exact"
NOT_OLDER_THAN = "NotOlderThan"


class PageToken(msgspec.Struct, frozen=True):
    """Where the next page begins. Clients send it back unchanged."""

    revision: Annotated[int, msgspec.Meta(gt=0, lt=1 << 62)]
    start: str


_TOKENS = msgspec.json.Decoder(PageToken)


class _Found(msgspec.Struct, frozen=True):
    entries: Sequence[ObjectEntry]
    revision: int
    more_from: str | None = None
    remaining: int | None = None


async def get(call: Call) -> web.StreamResponse:
    """One object."""
    call.demand("get")
    entry = await current(call)
    if entry is None:
        raise Missing(f"{call.kind.plural} {call.name!r} not found")
    if call.kind.plural == SECRETS:
        await call.witness(READ)
    shape = call.shape
    (entry,) = await _shown(call, [entry])
    data = entry.data
    if not shape and not call.route.facade:
        return reply(200, data)
    body = presentation.one(call.route.facade, shape, call.kind, data)
    if not body:
        raise _unreadable(call, "a newer version wrote it")
    return reply(200, body)


async def current(call: Call) -> ObjectEntry | None:
    """The object that the path names, as new as the caller demands, if the caller may see it."""
    services, kind = call.services, call.kind
    version = call.version
    if call.identity.node is not None and kind.plural in NEEDED:
        return await _needed_by_node(call, call.identity.node)
    # A caller that may see nothing of a kind must not learn whether a name exists.
    visible(call.identity, kind)
    if version is None:
        freshness = services.freshness
        if not (freshness.is_hub_fresh_now or await freshness.is_hub_fresh(patience_s=0)):
            # Reading one key costs less than waiting for the hub.
            return await _one_from_store(call)
    elif not await services.freshness.wait_for_revision(version.revision, AHEAD_S):
        raise too_new(call)
    broken = services.hub.unreadable.get(keys.object_key(kind, call.namespace, call.name))
    if broken is not None:
        raise _unreadable(call, broken)
    entry = services.hub.get(kind, call.namespace, call.name)
    return entry if entry is not None and _may_see(call, entry) else None


async def _needed_by_node(call: Call, node: str) -> ObjectEntry | None:
    """A Secret, or the record of a gang, for an agent. The permission and the object are read at
    the same revision.
    """
    if not await call.services.freshness.is_hub_fresh():
        raise Unavailable(
            f"this server is behind the store and cannot check access to {call.kind.plural}; try "
            "again"
        )
    hub = call.services.hub
    if not node_needs(hub, node, call.kind.plural, call.namespace, call.name):
        return None
    return hub.get(call.kind, call.namespace, call.name)


def _may_see(call: Call, entry: ObjectEntry) -> bool:
    if call.identity.node is None:
        return True
    return ObjectSelection(call.kind, fields=visible(call.identity, call.kind)).matches(entry)


async def _one_from_store(call: Call) -> ObjectEntry | None:
    key = keys.object_key(call.kind, call.namespace, call.name)
    page = await call.services.store.range(key, key + "\0", limit=1)
    for record in page.records:
        try:
            entry = EntryReader().read(call.kind, record.value, record.modified)
        except Unreadable as error:
            raise _unreadable(call, str(error)) from error
        if _may_see(call, entry):
            return entry
    return None


def _unreadable(call: Call, why: str) -> Unavailable:
    """The error for an object that exists and cannot be decoded: it must not look deleted."""
    return Unavailable(
        f"{call.kind.plural} {call.name!r} cannot be read: {why}; see `holdfast repair list`",
        code=Reason.RECORD_UNREADABLE,
    )


def too_new(call: Call) -> Unavailable:
    """The error for a client that has seen a newer revision than this server."""
    if call.version is not None and call.version.is_any:
        return Unavailable("this server is still reading the store; try again")
    version = call.query.get("resourceVersion", "")
    return Unavailable(
        f"Too large resource version: {version}", code=status_objects.VERSION_TOO_LARGE
    )


async def list_(call: Call) -> web.StreamResponse:
    """Many objects."""
    call.demand("list")
    chosen, shape = selection(call), call.shape
    limit = call.number("limit") or 0
    if limit or shape.startswith(TABLE):
        limit = min(limit or LIMIT_MAX, LIMIT_MAX)
    if call.kind.plural == SECRETS:
        await call.witness(LIST)
    found = await _found(call, chosen, limit)
    token = token_text(found.revision, found.more_from) if found.more_from is not None else ""
    listing = ListMetadata(complete_version(found.revision), token, found.remaining)
    entries = await _shown(call, found.entries)
    return await _send(call, Rendering(call.route.facade, shape, call.kind, listing), entries)


async def chosen_entries(
    call: Call, chosen: ObjectSelection, snapshot: EntrySnapshot, limit: int = 0
) -> tuple[list[ObjectEntry], ObjectEntry | None]:
    """The selected entries of a snapshot, and the entry that the next page begins with.

    With a limit at most LOOKED_AT_MAX are examined, where the next page may begin anywhere.
    """
    share = call.services.loop_share
    found: list[ObjectEntry] = []
    looked_at, is_everything = 0, chosen.is_everything
    is_bounded = limit and _may_begin_anywhere(call, chosen)
    looked_at_max = LOOKED_AT_MAX if is_bounded else snapshot.count
    for chunk in snapshot.chunks:
        if is_everything and not limit:
            found += chunk
        else:
            for entry in chunk:
                is_enough = limit and len(found) == limit
                if looked_at >= looked_at_max or (is_enough and is_everything):
                    return found, entry
                looked_at += 1
                if chosen.decodes and share.is_over:
                    await share.rest()
                if is_everything or chosen.matches(entry):
                    if is_enough:
                        return found, entry
                    found.append(entry)
        if share.is_over:
            await share.rest()
    return found, None


def _may_begin_anywhere(call: Call, chosen: ObjectSelection) -> bool:
    """Whether a page may begin with an object that is not selected: its name is in the token.

    An agent sees what is selected for it and nothing else, and a caller that asks for one name may
    have the right to see only that one.
    """
    return call.identity.node is None and chosen.name is None


async def _shown(call: Call, entries: Sequence[ObjectEntry]) -> Sequence[ObjectEntry]:
    """The objects as they are shown, with the fields that are not stored."""
    if not are_computed(call):
        return entries
    filled = await with_computed_fields(call, [entry.data for entry in entries])
    return [
        msgspec.structs.replace(entry, data=data)
        for entry, data in zip(entries, filled, strict=True)
    ]


async def _found(call: Call, chosen: ObjectSelection, limit: int) -> _Found:
    services, query = call.services, call.query
    _demand_sense(call)
    prefix = keys.kind_prefix(chosen.kind, chosen.namespace)
    if query.get("continue"):
        token = parse_token(query["continue"], prefix)
        return await _from_store(call, chosen, token.start, token.revision, limit)
    version = call.version
    if version is not None and query.get("resourceVersionMatch") == EXACT:
        if version.revision > await services.freshness.revision():
            raise too_new(call)
        return await _from_store(call, chosen, prefix, version.revision, limit)
    if version is not None:
        if not await services.freshness.wait_for_revision(version.revision, AHEAD_S):
            raise too_new(call)
    elif not await services.freshness.is_hub_fresh():
        return await _from_store(call, chosen, prefix, None, limit)
    snapshot, revision = services.hub.candidates(chosen), services.hub.revision
    entries, following = await chosen_entries(call, chosen, snapshot, limit)
    if following is None:
        return _Found(entries, revision)
    remaining = snapshot.count - limit if chosen.is_everything else None
    return _Found(entries, revision, _key(chosen, following), remaining)


def _demand_sense(call: Call) -> None:
    """Refuse the contradictory combinations of parameters that Kubernetes refuses."""
    match, version = call.query.get("resourceVersionMatch", ""), call.version
    if match not in ("", EXACT, NOT_OLDER_THAN):
        raise Invalid(f"resourceVersionMatch: {match[:40]!r}: must be {EXACT} or {NOT_OLDER_THAN}")
    goes_on = bool(call.query.get("continue"))
    if goes_on and version is not None and not version.is_any:
        bad("resourceVersion: may not be stated together with continue, which has one")
    if not match:
        return
    if goes_on:
        raise Invalid("resourceVersionMatch: may not be stated together with continue")
    if version is None:
        raise Invalid("resourceVersionMatch: may not be stated without resourceVersion")
    if match == EXACT and version.is_any:
        raise Invalid(f"resourceVersionMatch: {EXACT} may not be stated for resourceVersion 0")


async def _from_store(
    call: Call, chosen: ObjectSelection, start: str, at: int | None, limit: int
) -> _Found:
    """The entries from the store at one revision, for later pages and while the hub is behind."""
    end = keys.after_prefix(keys.kind_prefix(chosen.kind, chosen.namespace))
    reader, place = EntryReader(), start
    found: list[ObjectEntry] = []
    looked_at, share = 0, call.services.loop_share
    is_bounded = limit and _may_begin_anywhere(call, chosen)
    # With a selector most of what is read may not be wanted; whole pages save round trips.
    size = limit if limit and chosen.is_everything else LIMIT_MAX
    while True:
        page = await call.services.store.range(place, end, limit=size, at=at)
        at = page.revision
        # The last page may have had no selected object.
        await share.rest()
        for record in page.records:
            if share.is_over:
                await share.rest()
            entry = _read(chosen, reader, record)
            if entry is None:
                continue
            if is_bounded and looked_at >= LOOKED_AT_MAX:
                return _Found(found, at, record.key)
            looked_at += 1
            if not chosen.matches(entry):
                continue
            if limit and len(found) == limit:
                return _Found(found, at, record.key)
            found.append(entry)
        if page.more_from is None:
            return _Found(found, at)
        place = page.more_from
        if limit and len(found) == limit and chosen.is_everything:
            return _Found(found, at, place)


def _read(chosen: ObjectSelection, reader: EntryReader, record: Record) -> ObjectEntry | None:
    if parse_key(record.key) is None:
        return None
    try:
        return reader.read(chosen.kind, record.value, record.modified)
    except Unreadable:
        return None


def _key(chosen: ObjectSelection, entry: ObjectEntry) -> str:
    return keys.object_key(chosen.kind, entry.namespace, entry.name)


def token_text(revision: int, start: str) -> str:
    """The `continue` token for a list at a revision, from a key on."""
    return urlsafe_b64encode(msgspec.json.encode(PageToken(revision, start))).decode()


def parse_token(text: str, prefix: str) -> PageToken:
    """Parse a `continue` token. Raises Rejected if it is not ours or is for another list."""
    try:
        token = _TOKENS.decode(urlsafe_b64decode(text)) if len(text) <= TOKEN_MAX else None
    except (ValueError, msgspec.DecodeError):
        token = None
    if token is None:
        bad(f"continue: {excerpt(text)} is not a token of this server; start the list again")
    # Every token of ours is like this, and no store is asked for a key that it could not hold.
    if not token.start.startswith(prefix) or not token.start.isprintable():
        bad(f"continue: {excerpt(text)} is the token of another list; start this list again")
    return token


async def _send(
    call: Call, rendering: Rendering, entries: Sequence[ObjectEntry]
) -> web.StreamResponse:
    """Send a list: in one write if it is short, else in pieces."""
    share = call.services.loop_share
    response: web.StreamResponse | None = None
    piece, held, is_first = [rendering.head], len(rendering.head), True
    for entry in entries:
        item = entry.data if rendering.is_plain else rendering.item(entry.data)
        if not item:
            continue
        if not is_first:
            piece.append(b",")
        piece.append(item)
        held += len(item)
        is_first = False
        if held >= PIECE_BYTES:
            if response is None:
                response = web.StreamResponse(headers=JSON_HEADERS)
                response.enable_chunked_encoding()
                await response.prepare(call.request)
            await response.write(b"".join(piece))
            piece, held = [], 0
        if share.is_over:
            await share.rest()
    body = b"".join([*piece, rendering.tail])
    if response is None:
        return reply(200, body)
    await response.write(body)
    await response.write_eof()
    return response
