"""What each client presents and trusts during a rotation, as this server sees it.

`server_process` passes every request here. Our own clients say which authorities they trust
(`Access`); the handshake proves which one issued their certificate. Nothing is stored outside a
rotation or over a restart: clients ask every few seconds, so a server knows all of them after
`OBSERVE_S`. `ca_rotation` combines what all servers have seen.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from enum import Enum

import msgspec
from aiohttp import web

from holdfast.host.client.paths import TRUST_HEADER
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.service_tokens import is_service_token
from holdfast.host.pki.trust_bundle import SHORT
from holdfast.host.server import authentication
from holdfast.host.server.authenticator import Authenticator
from holdfast.model.access.identity import (
    ANONYMOUS,
    NODE_PREFIX,
    SERVER_PREFIX,
    SYSTEM_PREFIX,
)
from holdfast.model.errors import HoldfastError

# Every component asks for the servers more often than this (`server_discovery`).
OBSERVE_S = 15.0
PARTS_MAX = 50_000
# A request that took longer may show the state before the last change.
FRESH_S = 5.0
_TRUSTS = re.compile(rf"[0-9a-f]{{{SHORT}}}(?:,[0-9a-f]{{{SHORT}}}){{0,3}}")


class ClientSort(Enum):
    """The sort of client."""

    NODE = "node"
    COMPONENT = "component"
    PERSON = "person"
    WORK = "work"


class SeenClient(msgspec.Struct, frozen=True):
    """What one client presented last.

    authority: the fingerprint of the authority of its certificate or token; empty for other tokens.
    trusts: those of our authorities that it trusts, in short; None if it did not say.
    at_s: when, by the wall clock of the server.
    """

    name: str
    sort: ClientSort
    authority: str
    trusts: tuple[str, ...] | None
    at_s: float


class SeenClients:
    """See the module's docstring."""

    def __init__(
        self, authorities: CertificateAuthorities, now_s: Callable[[], float] = time.time
    ) -> None:
        self._authorities, self._now_s = authorities, now_s
        self._parts: dict[tuple[str, str], SeenClient] = {}
        # Since when requests are observed; None while they are not.
        self._since_s: float | None = None
        self.authenticator: Authenticator | None = None

    @property
    def observed_s(self) -> float:
        """Return for how long requests were observed."""
        if not self._is_on() or self._since_s is None:
            return 0.0
        return self._now_s() - self._since_s

    def all(self) -> tuple[SeenClient, ...]:
        """Return what is known of each client and certificate authority."""
        return tuple(self._parts.values()) if self._is_on() else ()

    def observe(self, request: web.BaseRequest, code: int, seconds: float) -> None:
        """Observe a completed request."""
        if not self._is_on() or seconds > FRESH_S or code == 401 or self.authenticator is None:
            return
        header = request.headers.get("Authorization", "")
        if is_service_token(header.removeprefix(authentication.BEARER).strip()):
            return
        try:
            shown = self.authenticator.certificate(request.transport)
            name = (shown.identity if shown is not None else self.authenticator(request)).name
        except HoldfastError:
            return
        trusts = self._trusts(request.headers.get(TRUST_HEADER, ""))
        authority = self._authorities.names.get(shown.issuer, "") if shown is not None else ""
        sort = _sort(name)
        if sort is not None and (authority or trusts is not None):
            self._note(name, sort, authority, trusts)

    def _trusts(self, said: str) -> tuple[str, ...] | None:
        """Return those of our authorities that a client says it trusts. It could invent others,
        which would make a record each.
        """
        if not _TRUSTS.fullmatch(said):
            return None
        named = said.split(",")
        ours = (known[:SHORT] for known in self._authorities.names.values())
        return tuple(it for it in ours if it in named)

    def token_shown(self, account: str, replica: str, authority: str) -> None:
        """Note a service token of this authority."""
        if self._is_on():
            self._note(f"{account} ({replica})", ClientSort.WORK, authority, None)

    def _note(
        self, name: str, sort: ClientSort, authority: str, trusts: tuple[str, ...] | None
    ) -> None:
        # Each certificate of a person counts: copies of a kubeconfig may be in several places.
        key = (name, f"{authority}{trusts}" if sort is ClientSort.PERSON else "")
        self._parts.pop(key, None)
        self._parts[key] = SeenClient(name, sort, authority, trusts, self._now_s())
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


def _sort(name: str) -> ClientSort | None:
    if name.startswith(SERVER_PREFIX) or name == ANONYMOUS:
        return None
    if name.startswith(NODE_PREFIX):
        return ClientSort.NODE
    return ClientSort.COMPONENT if name.startswith(SYSTEM_PREFIX) else ClientSort.PERSON
