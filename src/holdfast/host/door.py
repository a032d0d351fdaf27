"""Tells who is asking, for every request: by certificate, by token, or nobody in particular.

Tokens and revocations are found in the hub, so that what is taken back ends to count as soon as the
hub knows, for the next request of a kept connection as for a new one. Streams that are open are
asked about again by `host/api/guests`.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from holdfast.host import authentication
from holdfast.host.authentication import Shown
from holdfast.model.identity import Identity
from holdfast.model.kinds.revocation import Revocation
from holdfast.model.kinds.token import Token
from holdfast.model.registry import kind_of_struct
from holdfast.model.revocations import ends, revocation_name
from holdfast.model.wire import decode_trusted
from holdfast.observe.hub import Hub

_TOKEN = kind_of_struct(Token)
_REVOCATION = kind_of_struct(Revocation)


class Door:
    """See the module's docstring. Given to the HTTP server as its way to authenticate."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        # A connection's certificate never changes, so it is read once.
        self._known: WeakKeyDictionary[Any, Shown] = WeakKeyDictionary()

    def __call__(self, request: web.BaseRequest) -> Identity:
        """Raises Forbidden (Unauthenticated) for a token or a certificate that is none any more."""
        shown = self.shown(request.transport)
        if shown is not None:
            return shown
        header = request.headers.get("Authorization", "")
        found = authentication.from_token(header, self._find, is_revoked=self._is_revoked)
        return found or authentication.anonymous()

    def shown(self, transport: Any) -> Identity | None:
        """Who is at the other end by the certificate alone, if anybody is. Raises Forbidden."""
        if transport is None:
            return None
        known = self._known.get(transport)
        if known is None:
            known = authentication.shown(transport)
            if known is None:
                return None
            self._known[transport] = known
        authentication.demand_current(known, self._is_revoked)
        return known.identity

    def _find(self, namespace: str, name: str) -> Token | None:
        entry = self._hub.get(_TOKEN, namespace, name)
        return decode_trusted(Token, entry.data) if entry is not None else None

    def _is_revoked(self, user: str, issued_ms: int) -> bool:
        entry = self._hub.get(_REVOCATION, "", revocation_name(user))
        if entry is None:
            return False
        return ends(decode_trusted(Revocation, entry.data), issued_ms)
