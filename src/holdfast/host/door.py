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
        # A connection's certificate never changes, so it is read once.
        self._known: WeakKeyDictionary[Any, Identity] = WeakKeyDictionary()

    def __call__(self, request: web.BaseRequest) -> Identity:
        """Raises Forbidden (Unauthenticated) for a token that is none."""
        transport = request.transport
        if transport is not None:
            known = self._known.get(transport)
            if known is None:
                known = authentication.from_certificate(transport.get_extra_info("peercert"))
                if known is not None:
                    self._known[transport] = known
            if known is not None:
                return known
        header = request.headers.get("Authorization", "")
        return authentication.from_token(header, self._find) or authentication.anonymous()

    def _find(self, namespace: str, name: str) -> Token | None:
        entry = self._hub.get(_TOKEN, namespace, name)
        return decode_trusted(Token, entry.data) if entry is not None else None
