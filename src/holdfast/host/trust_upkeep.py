"""Keeps a server's own certificates from ending while it runs.

`plane` lets this run beside the HTTP server. New connections are made under the new certificates;
those that are open go on. The authority itself is read at a start alone: a plane under another one
is another plane to everybody who has a certificate.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

from holdfast.host.authorities import Authorities
from holdfast.host.certificates import RENEW_FROM, moment
from holdfast.host.settings import Settings
from holdfast.host.trust import Trust, establish
from holdfast.model.errors import HoldfastError, Invalid

# A clock may be set, and a suspended computer counts no sleep: so often is looked at the time.
LOOK_S = 60.0
PAUSE_MIN_S = 0.2

_log = logging.getLogger(__name__)


async def renew_for_ever(
    settings: Settings,
    trust: Trust,
    server: ssl.SSLContext,
    peer: ssl.SSLContext,
    taken: Callable[[Trust], object],
    told: Callable[[Trust], None] = lambda fresh: None,
) -> None:
    """Renew what is past the first part of its life. After that `taken` is called in a thread, and
    `told` on the loop.
    """
    due = await asyncio.to_thread(_due, trust)
    while True:
        left_s = (due - datetime.now(UTC)).total_seconds()
        await asyncio.sleep(min(LOOK_S, max(PAUSE_MIN_S, left_s)))
        if datetime.now(UTC) < due:
            continue
        try:
            fresh = await asyncio.to_thread(_renewed, settings, trust)
            # Not in a thread: a handshake in between would find the next certificate and no key.
            _use(fresh, server, peer)
            await asyncio.to_thread(taken, fresh)
            told(fresh)
            due = await asyncio.to_thread(_due, fresh)
        except (HoldfastError, OSError) as error:
            # There is time left until the end, and a full disk may have room by then.
            _log.warning("the certificates of this server cannot be renewed: %s", error)
            await asyncio.sleep(LOOK_S)


def _renewed(settings: Settings, trust: Trust) -> Trust:
    # Only looked at: who is not there is not made anew under a plane that runs.
    if Authorities.load(settings.pki_directory).pem != trust.authorities.pem:
        raise Invalid("there is another authority in its place; it counts from the next start on")
    return establish(settings)


def _use(fresh: Trust, server: ssl.SSLContext, peer: ssl.SSLContext) -> None:
    server.load_cert_chain(*fresh.server)
    peer.load_cert_chain(*fresh.peer)


def _due(trust: Trust) -> datetime:
    files = (trust.server[0].read_bytes(), trust.peer[0].read_bytes(), trust.admin.certificate)
    return min(moment(pem, RENEW_FROM) for pem in files)
