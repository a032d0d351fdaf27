"""Keeps the keys of issuers current in the background.

For each issuer one task fetches its discovery document and its key set: at the start, every
`REFRESH_S`, and soon after a token named an unknown key. Requests never wait for it. An issuer that
cannot be reached is tried again with a growing pause; until then its last keys are valid, for as
long as the file allows.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

import aiohttp

from holdfast.host.oidc import signing_keys
from holdfast.host.oidc.issuers import Issuers, KnownIssuer
from holdfast.host.process.metrics import Labels, Metrics
from holdfast.model.encoding import json_guard
from holdfast.model.errors import Invalid

DISCOVERY = "/.well-known/openid-configuration"
DOCUMENT_BYTES_MAX = 256 << 10
TIMEOUT_S = 10.0
REFRESH_S = 300.0
# Tokens with invented key ids cost nothing to make. However many arrive, an issuer is asked for
# them no more often than this.
ASKED_AGAIN_S = 10.0
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 60.0

_log = logging.getLogger(__name__)


class KeyFetcher:
    """Fetches the keys of one issuer. `run` continues until it is cancelled."""

    def __init__(
        self,
        known: KnownIssuer,
        monotonic_s: Callable[[], float] = time.monotonic,
        asked_again_s: float = ASKED_AGAIN_S,
    ) -> None:
        self._known, self._monotonic_s = known, monotonic_s
        self._asked_again_s = asked_again_s
        self._wanted = asyncio.Event()
        self._tls = ssl.create_default_context(cafile=known.config.ca_file or None)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        known.wants_keys = self._wanted.set
        self.issuer = known.config.issuer
        self.failures = 0

    async def run(self) -> None:
        pause_s = PAUSE_MIN_S
        while True:
            self._wanted.clear()
            began_s = self._monotonic_s()
            try:
                self._known.keys.replace(await self._fetched(), began_s)
            except (aiohttp.ClientError, TimeoutError, OSError, Invalid) as error:
                self.failures += 1
                _log.warning(
                    "the keys of the OpenID Connect issuer %s cannot be fetched: %s",
                    self._known.config.issuer,
                    error or type(error).__name__,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            pause_s = PAUSE_MIN_S
            await self._until_due()

    async def _until_due(self) -> None:
        """Wait for the next regular time, or for a token that names an unknown key."""
        await asyncio.sleep(self._asked_again_s)
        try:
            async with asyncio.timeout(REFRESH_S):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def _fetched(self) -> signing_keys.Keys:
        issuer = self._known.config.issuer
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        ) as session:
            document = json_guard.parse(await _get(session, issuer.rstrip("/") + DISCOVERY))
            if not isinstance(document, dict) or document.get("issuer") != issuer:
                raise Invalid(f"its discovery document is for another issuer, not for {issuer}")
            where = document.get("jwks_uri")
            if not isinstance(where, str) or urlsplit(where).scheme != "https":
                raise Invalid("its discovery document has no https address at jwks_uri")
            return signing_keys.parse_key_set(await _get(session, where))


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    """Fetch a document. A redirect is not followed: it could lead to any address."""
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise Invalid(f"{url} answered {response.status}")
        data = await response.content.read(DOCUMENT_BYTES_MAX + 1)
        while not response.content.at_eof() and len(data) <= DOCUMENT_BYTES_MAX:
            data += await response.content.read(DOCUMENT_BYTES_MAX + 1)
        if len(data) > DOCUMENT_BYTES_MAX:
            raise Invalid(f"{url} answered with more than {DOCUMENT_BYTES_MAX} bytes")
        return data


def key_fetchers(issuers: Issuers) -> list[KeyFetcher]:
    """Return a fetcher for each of these issuers. Raises Invalid for an unusable caFile."""
    found = []
    for known in issuers.known.values():
        try:
            found.append(KeyFetcher(known))
        except (OSError, ssl.SSLError) as error:
            raise Invalid(
                f"--oidc: caFile {known.config.ca_file} of {known.config.issuer} cannot be used: "
                f"{error}"
            ) from error
    return found


# Metrics of issuers' tokens and keys.


def count(metrics: Metrics, issuers: Issuers, tasks: Sequence[KeyFetcher]) -> None:
    """Add these metrics to the server's. No label is chosen by the sender of a token."""
    metrics.gauges(
        "oidc_tokens_total",
        "Presented tokens of OpenID Connect issuers, by outcome.",
        ("issuer", "outcome"),
        lambda: [(labels, count) for labels, count in issuers.outcomes.items()],
        kind="counter",
    )
    metrics.gauges(
        "oidc_keys_age_seconds",
        "Since the keys of an OpenID Connect issuer were fetched; absent before the first time.",
        ("issuer",),
        lambda: _ages(issuers),
    )
    metrics.gauges(
        "oidc_fetch_failures_total",
        "Times that the keys of an OpenID Connect issuer could not be fetched.",
        ("issuer",),
        lambda: [((it.issuer,), it.failures) for it in tasks],
        kind="counter",
    )


def _ages(issuers: Issuers) -> Iterable[tuple[Labels, float]]:
    now_s = time.monotonic()
    for name, known in issuers.known.items():
        age_s = known.keys.age_s(now_s)
        if age_s is not None:
            yield (name,), age_s
