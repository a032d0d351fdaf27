"""A line in the server's log for each forbidden change (403), if the operator wants it.

Not part of the audit: nothing was changed, and a refused client could write as much as it likes. So
the rate of lines is limited, and the number of dropped ones is logged. Queries, headers and bodies
are not logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web

from holdfast.host.api.app import Observer
from holdfast.host.api.call import source_of
from holdfast.host.audit.accesses import ISSUE, AccessRecorder, certificate_record
from holdfast.host.pki.certificates import issued_ms, serial_of
from holdfast.host.pki.first_trust import ADMIN, SERVER, Trust
from holdfast.host.process import clock
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError

# This many lines at once, and one more each second.
BURST = 20
EVERY_MS = 1_000
TEXT_MAX = 200
FORBIDDEN = 403
_READS = ("GET", "HEAD", "OPTIONS")
_log = logging.getLogger(__name__)


class RefusalLog:
    """An observer of the HTTP server. It authenticates again, since refusals are rare."""

    def __init__(
        self,
        authenticate: Callable[[web.BaseRequest], Identity],
        now_ms: Callable[[], int] = clock.monotonic_ms,
    ) -> None:
        self._authenticate, self._now_ms = authenticate, now_ms
        self._left, self._since_ms = BURST, now_ms()
        self._unsaid = 0

    def observe(self, request: web.BaseRequest, code: int, _seconds: float) -> None:
        """Observe a completed request."""
        if code != FORBIDDEN or request.method in _READS:
            return
        if not self._may_speak():
            self._unsaid += 1
            return
        try:
            who = self._authenticate(request).name
        except HoldfastError:
            who = "an unknown caller"
        path = request.raw_path.partition("?")[0]
        unsaid, self._unsaid = self._unsaid, 0
        more = f" ({unsaid} others were not logged)" if unsaid else ""
        _log.warning("refused to %s: %s %s%s", _plain(who), request.method, _plain(path), more)

    def _may_speak(self) -> bool:
        now_ms = self._now_ms()
        earned = (now_ms - self._since_ms) // EVERY_MS
        if earned:
            self._left = min(BURST, self._left + earned)
            self._since_ms += earned * EVERY_MS
        if not self._left:
            return False
        self._left -= 1
        return True


def both(first: Observer, second: Observer) -> Observer:
    """Return an observer that calls two others."""

    def observe(request: web.BaseRequest, code: int, seconds: float) -> None:
        first(request, code, seconds)
        second(request, code, seconds)

    return observe


def _plain(text: str) -> str:
    """Return a text that cannot forge lines in a log."""
    shown = "".join(it if it.isprintable() else "?" for it in text[:TEXT_MAX])
    return shown if len(text) <= TEXT_MAX else f"{shown}..."


# What a server itself reports to the audit: failed authentications, and its own certificates.

UNAUTHENTICATED = 401
# A certificate this recent was issued by this start or renewal of the server.
LATELY_MS = 60_000


def failure_observer(
    accesses: AccessRecorder, credential: Callable[[web.BaseRequest], str]
) -> Observer:
    """Return an observer of the HTTP server: each 401 is a failed authentication."""

    def observe(request: web.BaseRequest, code: int, _seconds: float) -> None:
        if code == UNAUTHENTICATED:
            accesses.failed(source_of(request), credential(request))

    return observe


def record_own_certificates(accesses: AccessRecorder, trust: Trust) -> None:
    """Record the server's own certificates, and the administrator's, if they are new."""
    since_ms = clock.now().wall_ms - LATELY_MS
    files = {SERVER: trust.server[0].read_bytes(), "peer": trust.peer[0].read_bytes()}
    for name, pem in {**files, ADMIN: trust.admin.certificate}.items():
        if issued_ms(serial_of(pem), 0.0) >= since_ms:
            accesses.note(certificate_record(ISSUE, pem, name))
