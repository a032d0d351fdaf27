"""Keeps a server's certificates and its trust bundle current while it runs.

`server_process` runs this beside the HTTP server. Certificates are renewed in the middle of their
lives. The trust bundle is followed in the store: a newer one is accepted if an authority that is
trusted here has signed it, stored beside the keys, and used by all handshakes from then on. Open
connections continue. A server that cannot follow the removal of an authority stops: it would accept
certificates of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.host.pki import trust_bundle
from holdfast.host.pki.ca_keys import CertificateAuthorities, held_keys, keep_bundle
from holdfast.host.pki.certificates import RENEW_FROM, moment
from holdfast.host.pki.first_trust import Trust, alone, establish
from holdfast.host.server.settings import ServerSettings
from holdfast.model import keys
from holdfast.model.errors import HoldfastError, Invalid
from holdfast.model.transaction import ABSENT, Compare, CompareFailed, Put, Transaction
from holdfast.store.contract import Store

# Clocks may be set, and a suspended computer counts no sleep. A rotation waits for all servers.
LOOK_S = 2.0
PAUSE_MIN_S = 0.2
# There is time left until a certificate expires, and a full disk may have room by then.
AGAIN_S = 60.0

_log = logging.getLogger(__name__)


async def stored_bundle(store: Store) -> tuple[bytes, int]:
    """Return the signed bundle in the store, if there is one, and its revision."""
    key = keys.trust_bundle()
    page = await store.range(key, key + "\0", limit=1)
    for record in page.records:
        return record.value, record.modified
    return b"", ABSENT


async def publish_bundle(store: Store, text: bytes, instead_of: int) -> bool:
    """Replace the bundle of this revision. Return whether it was still the current one."""
    key = keys.trust_bundle()
    wish = Transaction((Compare(key, instead_of),), (Put(key, text),))
    return not isinstance(await store.txn(wish), CompareFailed)


class Outdated(Invalid):
    """An authority that is trusted here was removed, and this server cannot follow."""


class TrustUpkeep:
    """See the module's docstring. `applied` is called with what to use from now on, `ended` with
    the reason why this server must stop.
    """

    def __init__(
        self,
        settings: ServerSettings,
        trust: Trust,
        store: Store,
        applied: Callable[[Trust], Awaitable[None]],
        ended: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._settings, self._trust, self._store = settings, trust, store
        self._applied, self._ended = applied, ended
        self._turn = asyncio.Lock()
        self._due = renewal_due(trust)

    @property
    def authorities(self) -> CertificateAuthorities:
        """Return the authorities in use."""
        return self._trust.authorities

    async def run(self) -> None:
        """Run until cancelled."""
        said = ""
        while True:
            left_s = (self._due - datetime.now(UTC)).total_seconds()
            await asyncio.sleep(min(LOOK_S, max(PAUSE_MIN_S, left_s)))
            try:
                await self.look()
                said = ""
            except Outdated as error:
                self._ended(error.message)
                return
            except (HoldfastError, OSError) as error:
                if str(error) != said:
                    _log.warning("the certificates and trust bundle were not updated: %s", error)
                said = str(error)

    async def look(self) -> None:
        """Take a newer bundle, and renew what is due. Raises HoldfastError or OSError."""
        async with self._turn:
            await self._follow()
            if datetime.now(UTC) < self._due:
                return
            self._due = datetime.now(UTC) + timedelta(seconds=AGAIN_S)
            await self._use(await asyncio.to_thread(renew_trust, self._settings, self._trust))

    async def _follow(self) -> None:
        text, revision = await stored_bundle(self._store)
        mine = self.authorities
        there = trust_bundle.decode_bundle(text).generation if text else 0
        if there > mine.bundle.generation:
            await self._use(await self._taken(text))
        elif there < mine.bundle.generation:
            # The store was restored from an earlier time; what was removed must not come back.
            await publish_bundle(self._store, mine.text, revision)
        elif len(mine.held) < len(mine.bundle.authorities):
            # An operator may have copied the key of the next authority.
            held = await asyncio.to_thread(held_keys, self._settings.pki_directory, mine.bundle)
            if held.keys() != mine.held.keys():
                found = CertificateAuthorities(mine.bundle, held, mine.text)
                await self._use(msgspec.structs.replace(self._trust, authorities=found))

    async def _taken(self, text: bytes) -> Trust:
        """Accept a newer bundle. Raises Outdated, or HoldfastError if there is time."""
        mine, wanted = self.authorities.bundle, trust_bundle.decode_bundle(text)
        try:
            trust_bundle.verify_newer(mine, text)
            return await asyncio.to_thread(_kept, self._settings, text)
        except HoldfastError as error:
            if set(mine.fingerprints) <= set(wanted.fingerprints):
                raise
            raise Outdated(
                f"{error.message}. The plane no longer trusts a certificate authority that this "
                "server trusts: copy ca.crt, ca.key and ca.bundle from the pki directory of "
                f"another server into {self._settings.pki_directory}, and start it again"
            ) from error

    async def _use(self, fresh: Trust) -> None:
        self._trust = fresh
        await self._applied(fresh)
        self._due = await asyncio.to_thread(renewal_due, fresh)


def _kept(settings: ServerSettings, text: bytes) -> Trust:
    """Store a verified bundle, and issue what it requires."""
    directory = settings.pki_directory
    with alone(directory):
        before = CertificateAuthorities.load(directory).bundle
        # Another server may share the directory.
        if before.generation < trust_bundle.decode_bundle(text).generation:
            keep_bundle(directory, before, text)
    return establish(settings)


def renew_trust(settings: ServerSettings, trust: Trust) -> Trust:
    # Only loaded: a missing authority must not be created again under a running plane.
    there, ours = CertificateAuthorities.load(settings.pki_directory), trust.authorities
    if there.bundle.generation > ours.bundle.generation:
        # A server that shares the directory was first.
        trust_bundle.verify_newer(ours.bundle, there.text)
    elif there.pem != ours.pem:
        raise Invalid(
            f"{settings.pki_directory} holds another certificate authority than the one in use; "
            "restore its files, or restart this server to use the other one"
        )
    return establish(settings)


def renewal_due(trust: Trust) -> datetime:
    files = (trust.server[0].read_bytes(), trust.peer[0].read_bytes(), trust.admin.certificate)
    return min(moment(pem, RENEW_FROM) for pem in files)
