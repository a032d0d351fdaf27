"""Tells who is asking, for every request: by certificate, by token, or nobody in particular.

Tokens are found in the hub, so that one that is revoked ends to count as soon as the hub knows.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from holdfast.host import authentication
from holdfast.model.identity import Identity
from holdfast.model.kinds.token import Token
from holdfast.model.registry import kind_of_struct
from holdfast.model.wire import decode_trusted
from holdfast.observe.hub import Hub

_TOKEN = kind_of_struct(Token)


class Door:
    """See the module's docstring. Given to the HTTP server as its way to authenticate."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        # A connection's certificate never changes, so it is read once: who it is, until when.
        self._known: WeakKeyDictionary[Any, tuple[Identity, float]] = WeakKeyDictionary()

    def __call__(self, request: web.BaseRequest) -> Identity:
        """Raises Forbidden (Unauthenticated) for a token or a certificate that is none any more."""
        transport = request.transport
        if transport is not None:
            known = self._known.get(transport) or self._read(transport)
            if known is not None:
                identity, until_s = known
                authentication.demand_current(until_s)
                return identity
        header = request.headers.get("Authorization", "")
        return authentication.from_token(header, self._find) or authentication.anonymous()

    def _read(self, transport: Any) -> tuple[Identity, float] | None:
        peer = transport.get_extra_info("peercert")
        identity = authentication.from_certificate(peer)
        if identity is None:
            return None
        known = self._known[transport] = (identity, authentication.ends_s(peer))
        return known

    def _find(self, namespace: str, name: str) -> Token | None:
        entry = self._hub.get(_TOKEN, namespace, name)
        return decode_trusted(Token, entry.data) if entry is not None else None
