"""A component follows the trust bundle of its plane while it runs, without a restart.

The servers announce their generation with their list (`server_discovery`). A newer bundle is
fetched, accepted if an authority that is trusted here has signed it, and stored beside the
certificate before it is used: the next request tells the servers what is trusted, and a restart
must not undo that. When another authority signs, `CertificateRenewal` renews the certificates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.request_calls import ApiCall
from holdfast.host.pki import trust_bundle
from holdfast.host.pki.ca_keys import BUNDLE, CERTIFICATES
from holdfast.host.pki.component_credentials import CertificateRenewal
from holdfast.host.pki.join_protocol import BUNDLE_PATH
from holdfast.host.pki.trust_bundle import TrustBundle
from holdfast.host.process.files import write_private
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError, Invalid
from holdfast.observe.watch_events import SERVERS

TIMEOUT_S = 10.0


class TrustFollower:
    """Follows the bundle for one component. `changed` is called when there is a new bundle."""

    def __init__(
        self,
        api_client: ApiClient,
        sender: Identity,
        rotation: CertificateRenewal,
        directory: Path,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._api_client, self._sender, self._rotation = api_client, sender, rotation
        self._directory, self._changed = directory, changed
        self._bundle = load_bundle(directory)
        rotation.expect(_signer(self._bundle))

    async def follow(self, generation: int) -> bool:
        """Take the servers' bundle if it is newer. Return whether it was. Raises HoldfastError."""
        if generation <= self._bundle.generation:
            return False
        wanted = ApiCall("GET", BUNDLE_PATH, _text)
        text = await self._api_client.run(self._sender, SERVERS, wanted, TIMEOUT_S)
        try:
            if trust_bundle.decode_bundle(text).generation <= self._bundle.generation:
                # The answer came from a server that has not followed the others yet.
                return False
            bundle = trust_bundle.verify_newer(self._bundle, text)
            await asyncio.to_thread(save_bundle, self._directory, text)
        except (Invalid, OSError) as error:
            why = error.message if isinstance(error, HoldfastError) else str(error)
            self._rotation.trouble = f"the trust bundle of the plane cannot be taken: {why}"
            return False
        await self._rotation.trust(bundle.pem, _signer(bundle))
        self._bundle = bundle
        self._rotation.trouble = ""
        self._changed()
        return True


def load_bundle(directory: Path) -> TrustBundle:
    """Return the bundle in a directory of certificates. Raises Invalid or OSError."""
    pem, path = (directory / CERTIFICATES).read_bytes(), directory / BUNDLE
    return trust_bundle.bundle_of_files(pem, path.read_bytes() if path.exists() else b"")


def save_bundle(directory: Path, text: bytes) -> None:
    """Store a verified bundle."""
    write_private(directory / BUNDLE, text)
    write_private(directory / CERTIFICATES, trust_bundle.decode_bundle(text).pem)


def _signer(bundle: TrustBundle) -> str:
    names = {known: name for name, known in trust_bundle.names(bundle).items()}
    return names[bundle.signs]


def _text(answer: HttpAnswer) -> bytes:
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    return answer.body
