"""A component follows the trust bundle of its plane while it runs, without a restart.

The servers say with their list (`discovering`) which generation they have. A newer one is fetched,
taken if an authority that is trusted here has signed it, and kept beside the certificate before it
is used: the servers are told what is trusted with the next request, and a restart must not undo it.
When another authority signs, `rotation` renews the certificates early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast.host import trust_bundle
from holdfast.host.authorities import BUNDLE, CERTIFICATES
from holdfast.host.client.answers import Answer
from holdfast.host.errands import Errand
from holdfast.host.files import write_private
from holdfast.host.join_words import BUNDLE_PATH
from holdfast.host.remote import Remote
from holdfast.host.rotation import Rotation
from holdfast.host.trust_bundle import Bundle
from holdfast.model.errors import HoldfastError, Invalid
from holdfast.model.identity import Identity
from holdfast.observe.news import SERVERS

TIMEOUT_S = 10.0


class TrustFollowing:
    """One component's. `changed` is called when there is another bundle."""

    def __init__(
        self,
        remote: Remote,
        sender: Identity,
        rotation: Rotation,
        directory: Path,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._remote, self._sender, self._rotation = remote, sender, rotation
        self._directory, self._changed = directory, changed
        self._bundle = kept(directory)
        rotation.expect(_signer(self._bundle))

    async def follow(self, generation: int) -> bool:
        """Take the servers' bundle if theirs is newer; whether it was. Raises HoldfastError."""
        if generation <= self._bundle.generation:
            return False
        wanted = Errand("GET", BUNDLE_PATH, _text)
        text = await self._remote.run(self._sender, SERVERS, wanted, TIMEOUT_S)
        try:
            if trust_bundle.unproven(text).generation <= self._bundle.generation:
                # A server that has not followed the others yet was asked.
                return False
            bundle = trust_bundle.adopted(self._bundle, text)
            await asyncio.to_thread(keep, self._directory, text)
        except (Invalid, OSError) as error:
            why = error.message if isinstance(error, HoldfastError) else str(error)
            self._rotation.trouble = f"the trust bundle of the plane cannot be taken: {why}"
            return False
        await self._rotation.trust(bundle.pem, _signer(bundle))
        self._bundle = bundle
        self._rotation.trouble = ""
        self._changed()
        return True


def kept(directory: Path) -> Bundle:
    """The bundle in a directory of certificates. Raises Invalid or OSError."""
    pem, path = (directory / CERTIFICATES).read_bytes(), directory / BUNDLE
    return trust_bundle.of_files(pem, path.read_bytes() if path.exists() else b"")


def keep(directory: Path, text: bytes) -> None:
    """Keep a bundle that is proven."""
    write_private(directory / BUNDLE, text)
    write_private(directory / CERTIFICATES, trust_bundle.unproven(text).pem)


def _signer(bundle: Bundle) -> str:
    names = {known: name for name, known in trust_bundle.names(bundle).items()}
    return names[bundle.signs]


def _text(answer: Answer) -> bytes:
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    return answer.body
