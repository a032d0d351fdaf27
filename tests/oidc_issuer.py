"""An OpenID Connect issuer of our own: real keys, and its documents over real TLS.

Tokens are put together by hand and signed with `cryptography` itself, so that a hostile one can say
whatever it likes, and the library that checks them is not the one that made them.
"""

from __future__ import annotations

import ssl
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from holdfast.host.oidc.envelope import text64
from holdfast.host.oidc.fetching import DISCOVERY
from holdfast.host.pki.certificates import CertificateAuthority, Purpose

KEYS = "/keys"


def number64(number: int) -> str:
    return text64(number.to_bytes((number.bit_length() + 7) // 8, "big"))


class Signer:
    """A signing key with an id: on P-256, or RSA."""

    def __init__(self, kid: str, *, is_rsa: bool = False, bits: int = 2_048) -> None:
        self.kid = kid
        self.key: Any = (
            rsa.generate_private_key(65_537, bits)
            if is_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        self.algorithm = "RS256" if is_rsa else "ES256"

    @property
    def jwk(self) -> dict[str, Any]:
        numbers = self.key.public_key().public_numbers()
        if self.algorithm == "RS256":
            shape = {"kty": "RSA", "n": number64(numbers.n), "e": number64(numbers.e)}
        else:
            x, y = (text64(it.to_bytes(32, "big")) for it in (numbers.x, numbers.y))
            shape = {"kty": "EC", "crv": "P-256", "x": x, "y": y}
        return {**shape, "kid": self.kid, "use": "sig", "alg": self.algorithm}

    def sign(self, data: bytes) -> bytes:
        if self.algorithm == "RS256":
            return bytes(self.key.sign(data, padding.PKCS1v15(), hashes.SHA256()))
        r, s = decode_dss_signature(self.key.sign(data, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def token(self, claims: dict[str, Any] | bytes, **header: Any) -> str:
        """A token of this key. Claims may be bytes that no encoder would make."""
        named = {"alg": self.algorithm, "typ": "JWT", "kid": self.kid, **header}
        head = msgspec.json.encode({key: it for key, it in named.items() if it is not None})
        return self.token_of(head, claims if isinstance(claims, bytes) else encoded(claims))

    def token_of(self, head: bytes, claims: bytes) -> str:
        signed = f"{text64(head)}.{text64(claims)}"
        return f"{signed}.{text64(self.sign(signed.encode()))}"


def encoded(claims: dict[str, Any]) -> bytes:
    return msgspec.json.encode(claims)


def hmac_token(secret: bytes, head: dict[str, Any], claims: dict[str, Any]) -> str:
    """What an attacker makes who has the public key and hopes that it is taken for a secret."""
    signed = f"{text64(encoded(head))}.{text64(encoded(claims))}"
    made = hmac.HMAC(secret, hashes.SHA256())
    made.update(signed.encode())
    return f"{signed}.{text64(made.finalize())}"


class HttpsIssuer:
    """An issuer on a port of its own. `asked` counts what was fetched, by path."""

    def __init__(self, folder: Path, *signers: Signer) -> None:
        self.signers = list(signers)
        self.asked: Counter[str] = Counter()
        self.is_away = False
        self.url = ""
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file = folder / "issuer-ca.crt"
        self._authority = CertificateAuthority.open(folder / "issuer-pki")
        self.ca_file.write_bytes(self._authority.pem)
        self._folder = folder
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> HttpsIssuer:
        purpose = Purpose(server_names=("127.0.0.1",))
        issued = self._authority.issue("issuer", purpose, life=timedelta(days=1))
        file = self._folder / "issuer.pem"
        file.write_bytes(issued.certificate + b"\n" + issued.key)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(file)
        self._runner = web.ServerRunner(web.Server(self._answer))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls).start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked[request.path] += 1
        if self.is_away:
            return web.Response(status=503)
        if request.path == DISCOVERY:
            return web.json_response({"issuer": self.url, "jwks_uri": self.url + KEYS})
        if request.path == KEYS:
            return web.json_response({"keys": [it.jwk for it in self.signers]})
        return web.Response(status=404)
