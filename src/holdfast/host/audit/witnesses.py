"""What `plane` tells the audit of by itself: who was turned away, and its own certificates."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from holdfast.host import clock
from holdfast.host.api.app import Observer
from holdfast.host.api.call import source_of
from holdfast.host.audit.accesses import ISSUE, Accesses, certified
from holdfast.host.certificates import issued_ms, serial_of
from holdfast.host.trust import ADMIN, SERVER, Trust

UNAUTHENTICATED = 401
# What was issued so lately was issued by this start or renewal of the server.
LATELY_MS = 60_000


def failures_told(accesses: Accesses, credential: Callable[[web.BaseRequest], str]) -> Observer:
    """An observer of the HTTP server: each 401 is a failed authentication, on whatever path."""

    def observe(request: web.BaseRequest, code: int, _seconds: float) -> None:
        if code == UNAUTHENTICATED:
            accesses.failed(source_of(request), credential(request))

    return observe


def tell_of_own(accesses: Accesses, trust: Trust) -> None:
    """The server's own certificates, and the administrator's, if they are new."""
    since_ms = clock.now().wall_ms - LATELY_MS
    files = {SERVER: trust.server[0].read_bytes(), "peer": trust.peer[0].read_bytes()}
    for name, pem in {**files, ADMIN: trust.admin.certificate}.items():
        if issued_ms(serial_of(pem), 0.0) >= since_ms:
            accesses.note(certified(ISSUE, pem, name))
