"""What each part shows and trusts while a certificate authority is rotated, as this server sees it.

`plane` has every request observed. A client of ours says which authorities it trusts (`Access`);
which one has issued its certificate is proven by the handshake. Nothing is kept while no rotation
is under way, nor over a restart: parts ask every few seconds, so that a server knows of all of them
after `OBSERVE_S`. `ca_rotation` puts together what all servers have seen.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from enum import Enum

import msgspec
from aiohttp import web

from holdfast.host import authentication
from holdfast.host.authorities import Authorities
from holdfast.host.door import Door
from holdfast.host.headers import TRUST_HEADER
from holdfast.host.service_tokens import is_service_token
from holdfast.host.trust_bundle import SHORT
from holdfast.model.errors import HoldfastError
from holdfast.model.identity import ANONYMOUS, NODE_PREFIX, SERVER_PREFIX, SYSTEM_PREFIX

# Every component asks for the servers more often than this (`discovering`).
OBSERVE_S = 15.0
PARTS_MAX = 50_000
# A request that took longer may tell what was so before the last change.
FRESH_S = 5.0
_TRUSTS = re.compile(rf"[0-9a-f]{{{SHORT}}}(?:,[0-9a-f]{{{SHORT}}}){{0,3}}")


class Sort(Enum):
    """Who is asking."""

    NODE = "node"
    COMPONENT = "component"
    PERSON = "person"
    WORK = "work"


class Seen(msgspec.Struct, frozen=True):
    """What one part has shown last.

    authority: the fingerprint of the authority that its certificate or token comes from; empty for
        other tokens.
    trusts: those of our authorities that it trusts, in short; None if it did not say.
    at_s: when, by the wall clock of the server.
    """

    name: str
    sort: Sort
    authority: str
    trusts: tuple[str, ...] | None
    at_s: float


class SeenParts:
    """See the module's docstring."""

    def __init__(self, authorities: Authorities, now_s: Callable[[], float] = time.time) -> None:
        self._authorities, self._now_s = authorities, now_s
        self._parts: dict[tuple[str, str], Seen] = {}
        # Since when everything is observed; None while nothing is.
        self._since_s: float | None = None
        self.door: Door | None = None

    @property
    def observed_s(self) -> float:
        """For how long everything was observed."""
        if not self._is_on() or self._since_s is None:
            return 0.0
        return self._now_s() - self._since_s

    def all(self) -> tuple[Seen, ...]:
        """What is known, of each part and certificate authority."""
        return tuple(self._parts.values()) if self._is_on() else ()

    def observe(self, request: web.BaseRequest, code: int, seconds: float) -> None:
        """Is told of every request when it is over."""
        if not self._is_on() or seconds > FRESH_S or code == 401 or self.door is None:
            return
        header = request.headers.get("Authorization", "")
        if is_service_token(header.removeprefix(authentication.BEARER).strip()):
            return
        try:
            shown = self.door.certificate(request.transport)
            name = (shown.identity if shown is not None else self.door(request)).name
        except HoldfastError:
            return
        trusts = self._trusts(request.headers.get(TRUST_HEADER, ""))
        authority = self._authorities.names.get(shown.issuer, "") if shown is not None else ""
        sort = _sort(name)
        if sort is not None and (authority or trusts is not None):
            self._note(name, sort, authority, trusts)

    def _trusts(self, said: str) -> tuple[str, ...] | None:
        """Those of our authorities that a client says it trusts. Names of others are of its own
        making, and would make a record each.
        """
        if not _TRUSTS.fullmatch(said):
            return None
        named = said.split(",")
        ours = (known[:SHORT] for known in self._authorities.names.values())
        return tuple(it for it in ours if it in named)

    def token_shown(self, account: str, replica: str, authority: str) -> None:
        """Work has shown a service token of this authority."""
        if self._is_on():
            self._note(f"{account} ({replica})", Sort.WORK, authority, None)

    def _note(self, name: str, sort: Sort, authority: str, trusts: tuple[str, ...] | None) -> None:
        # Of a person each certificate counts: copies of a kubeconfig may be in several places.
        key = (name, f"{authority}{trusts}" if sort is Sort.PERSON else "")
        self._parts.pop(key, None)
        self._parts[key] = Seen(name, sort, authority, trusts, self._now_s())
        if len(self._parts) > PARTS_MAX:
            self._parts.pop(next(iter(self._parts)))

    def _is_on(self) -> bool:
        if self._authorities.bundle.is_stable:
            self._parts.clear()
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = self._now_s()
        return True


def _sort(name: str) -> Sort | None:
    if name.startswith(SERVER_PREFIX) or name == ANONYMOUS:
        return None
    if name.startswith(NODE_PREFIX):
        return Sort.NODE
    return Sort.COMPONENT if name.startswith(SYSTEM_PREFIX) else Sort.PERSON
