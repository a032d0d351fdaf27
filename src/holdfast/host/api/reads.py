"""Get and list: from the hub's bytes, as new as the store was when the request arrived.

A list without a limit is sent whole, in pieces, since some clients ignore `continue`. With a limit
the first page comes from the hub and the others from the store at the very same revision, so that
all pages together are one moment; when that is compacted the answer is 410.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from holdfast.host.api import presentation, status
from holdfast.host.api.call import Call, bad, reply
from holdfast.host.api.negotiation import TABLE
from holdfast.host.api.plain import JSON_HEADERS
from holdfast.host.api.presentation import Listing
from holdfast.host.api.scope import SECRETS, is_given, selection, visible
from holdfast.model import keys
from holdfast.model.errors import Invalid, Missing, Unavailable
from holdfast.model.problems import excerpt
from holdfast.model.versions import complete_version
from holdfast.observe.cabinet import parsed_key
from holdfast.observe.entries import Entry, Reader
from holdfast.observe.selection import Selection

LIMIT_MAX = 500
# Larger answers are sent in pieces of this size, between which others have their turn.
PIECE_BYTES = 256 << 10
# How long a client may be ahead of this server, having read from another one.
AHEAD_S = 3.0
TOKEN_MAX = 2_048
EXACT = "Exact"
NOT_OLDER_THAN = "NotOlderThan"


class Token(msgspec.Struct, frozen=True):
    """Where the next page begins. Clients hand it back as it is."""

    revision: Annotated[int, msgspec.Meta(gt=0, lt=1 << 62)]
    start: str


_TOKENS = msgspec.json.Decoder(Token)


class _Found(msgspec.Struct, frozen=True):
    entries: Sequence[Entry]
    revision: int
    more_from: str | None = None


async def get(call: Call) -> web.StreamResponse:
    """One object."""
    call.demand("get")
    entry = await current(call)
    if entry is None:
        raise Missing(f"{call.kind.plural} {call.name!r} not found")
    shape = call.shape
    if not shape and not call.route.facade:
        return reply(200, entry.data)
    return reply(200, presentation.one(call.route.facade, shape, call.kind, entry.data))


async def current(call: Call) -> Entry | None:
    """The object that the path names, as new as the caller demands, if he may see it."""
    services, kind = call.services, call.kind
    version = call.version
    if call.identity.node is not None and kind.plural == SECRETS:
        return await _given(call, call.identity.node)
    # Who may see nothing of a kind learns no more of its names than that.
    visible(call.identity, kind)
    if version is None:
        freshness = services.freshness
        if not (freshness.is_hub_fresh_now or await freshness.is_hub_fresh(patience_s=0)):
            # Reading one key costs less than waiting for the hub.
            return await _one_from_store(call)
    elif not await services.freshness.reached(version.revision, AHEAD_S):
        raise too_new(call)
    entry = services.hub.get(kind, call.namespace, call.name)
    return entry if entry is not None and _may_see(call, entry) else None


async def _given(call: Call, node: str) -> Entry | None:
    """A Secret for an agent. What it refers to is judged on the same moment as it is read."""
    if not await call.services.freshness.is_hub_fresh():
        raise Unavailable("the server is behind the store and cannot say who may see this")
    hub = call.services.hub
    if not is_given(hub, node, call.namespace, call.name):
        return None
    return hub.get(call.kind, call.namespace, call.name)


def _may_see(call: Call, entry: Entry) -> bool:
    if call.identity.node is None:
        return True
    return Selection(call.kind, fields=visible(call.identity, call.kind)).matches(entry)


async def _one_from_store(call: Call) -> Entry | None:
    key = keys.object_key(call.kind, call.namespace, call.name)
    page = await call.services.store.range(key, key + "\0", limit=1)
    for record in page.records:
        entry = Reader().read(call.kind, record.value, record.modified)
        if _may_see(call, entry):
            return entry
    return None


def too_new(call: Call) -> Unavailable:
    """What a client hears that has seen more than this server has."""
    if call.version is not None and call.version.is_any:
        return Unavailable("the server is still reading the store")
    version = call.query.get("resourceVersion", "")
    return Unavailable(f"Too large resource version: {version}", code=status.VERSION_TOO_LARGE)


async def list_(call: Call) -> web.StreamResponse:
    """Many objects."""
    call.demand("list")
    chosen, shape = selection(call), call.shape
    limit = call.number("limit") or 0
    limit = min(limit, LIMIT_MAX) if limit else 0
    found = await _found(call, chosen, limit)
    entries, more_from = found.entries, found.more_from
    remaining = None
    if more_from is None and limit and len(entries) > limit:
        more_from = _key(chosen, entries[limit])
        remaining = len(entries) - limit if chosen.is_everything else None
        entries = entries[:limit]
    token = token_text(found.revision, more_from) if more_from is not None else ""
    listing = Listing(complete_version(found.revision), token, remaining)
    data = [entry.data for entry in entries]
    if shape.startswith(TABLE):
        body = presentation.table(call.route.facade, shape, call.kind, data, listing)
        return reply(200, body)
    head = presentation.head(call.route.facade, shape, call.kind, listing)
    return await _send(call, head, presentation.items(call.route.facade, shape, data))


async def _found(call: Call, chosen: Selection, limit: int) -> _Found:
    services, query = call.services, call.query
    _demand_sense(call)
    prefix = keys.kind_prefix(chosen.kind, chosen.namespace)
    if query.get("continue"):
        token = parsed_token(query["continue"], prefix)
        return await _from_store(call, chosen, token.start, token.revision, limit)
    version = call.version
    if version is not None and query.get("resourceVersionMatch") == EXACT:
        if version.revision > await services.freshness.revision():
            raise too_new(call)
        return await _from_store(call, chosen, prefix, version.revision, limit)
    if version is not None:
        if not await services.freshness.reached(version.revision, AHEAD_S):
            raise too_new(call)
    elif not await services.freshness.is_hub_fresh():
        return await _from_store(call, chosen, prefix, None, limit)
    return _Found(services.hub.select(chosen), services.hub.revision)


def _demand_sense(call: Call) -> None:
    """Refuse the same combinations of parameters as Kubernetes, which say two things at once."""
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
    call: Call, chosen: Selection, start: str, at: int | None, limit: int
) -> _Found:
    """The same from the store, at one revision, for pages and for when the hub is behind."""
    end = keys.after_prefix(keys.kind_prefix(chosen.kind, chosen.namespace))
    reader, place = Reader(), start
    found: list[Entry] = []
    # With a selector most of what is read may not be wanted; whole pages save round trips.
    size = limit if limit and chosen.is_everything else LIMIT_MAX
    while True:
        page = await call.services.store.range(place, end, limit=size, at=at)
        at = page.revision
        for record in page.records:
            if parsed_key(record.key) is None:
                continue
            entry = reader.read(chosen.kind, record.value, record.modified)
            if not chosen.matches(entry):
                continue
            # The next page begins with something that the caller may see: its name is in the token.
            if limit and len(found) == limit:
                return _Found(found, at, record.key)
            found.append(entry)
        if page.more_from is None:
            return _Found(found, at)
        place = page.more_from
        if limit and len(found) == limit and chosen.is_everything:
            return _Found(found, at, place)


def _key(chosen: Selection, entry: Entry) -> str:
    return keys.object_key(chosen.kind, entry.namespace, entry.name)


def token_text(revision: int, start: str) -> str:
    """What a client hands back to go on from there."""
    return urlsafe_b64encode(msgspec.json.encode(Token(revision, start))).decode()


def parsed_token(text: str, prefix: str) -> Token:
    """A token of ours, for this very list: it must not lead anywhere else. Raises Rejected."""
    try:
        token = _TOKENS.decode(urlsafe_b64decode(text)) if len(text) <= TOKEN_MAX else None
    except (ValueError, msgspec.DecodeError):
        token = None
    if token is None:
        bad(f"continue: {excerpt(text)} is not a token of this server")
    # Nothing that we made is otherwise, and no store is asked for what it could not hold.
    if not token.start.startswith(prefix) or not token.start.isprintable():
        bad(f"continue: {excerpt(text)} belongs to another list")
    return token


async def _send(call: Call, head: bytes, items: Sequence[bytes]) -> web.StreamResponse:
    size = len(head) + sum(map(len, items)) + max(0, len(items) - 1) + 2
    if size <= PIECE_BYTES:
        return reply(200, b"%b%b]}" % (head, b",".join(items)))
    response = web.StreamResponse(headers={**JSON_HEADERS, "Content-Length": str(size)})
    await response.prepare(call.request)
    piece, held = [head], len(head)
    for index, item in enumerate(items):
        if index:
            piece.append(b",")
        piece.append(item)
        held += len(item)
        if held >= PIECE_BYTES:
            await response.write(b"".join(piece))
            piece, held = [], 0
    await response.write(b"".join([*piece, b"]}"]))
    await response.write_eof()
    return response
