"""Signed JSON Web Tokens: what they hold, and whether a key has signed them.

The sender of a token writes its header. Only the key id is taken from it; the key must be one that
we have, and determines the algorithm. PyJWT checks the signature (docs/adr/0102-oidc.md). Documents
are decoded by the strict reader of `model/encoding/json_guard`: two readers that disagree about a
duplicate claim would be a vulnerability.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import jwt
import msgspec

from holdfast.model.encoding import json_guard
from holdfast.model.errors import Invalid

RS256, ES256 = "RS256", "ES256"
ALGORITHMS = (RS256, ES256)
# No request header is longer, so a token in one has fewer bytes.
TOKEN_MAX = 8 << 10
KEY_ID_MAX = 256
# The first characters of every such token: base64 of an object's first brace and quotation mark. No
# namespace has a capital letter, so the text of a Token object never begins like this.
BEGINS = "ey"

_SIGNATURES = jwt.PyJWS(algorithms=ALGORITHMS, options={"enforce_minimum_key_length": True})


class TokenRefused(Exception):
    """A token that is not valid; `reason` is for the operator's metrics, never for its sender."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TokenEnvelope(msgspec.Struct, frozen=True):
    """The contents of a token, not verified yet."""

    text: str
    algorithm: str
    key_id: str
    claims: dict[str, Any]


def text64(data: bytes) -> str:
    """Encode bytes as the parts of a token."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def is_signed_token(text: str) -> bool:
    """Return whether a text has the form of such a token, not that of a Token object."""
    return text.startswith(BEGINS) and text[2:3].isupper()


def parse_token(text: str) -> TokenEnvelope:
    """Return the parts of a token, not verified yet. Raises TokenRefused."""
    parts = text.split(".")
    if len(text) > TOKEN_MAX or not text.isascii() or len(parts) != 3:
        raise TokenRefused("Malformed")
    header, claims = _document(parts[0]), _document(parts[1])
    algorithm, key_id = header.get("alg"), header.get("kid", "")
    if algorithm not in ALGORITHMS:
        raise TokenRefused("Algorithm")
    if not isinstance(key_id, str) or len(key_id) > KEY_ID_MAX:
        raise TokenRefused("Malformed")
    # Critical extensions that are not supported, and a detached payload.
    if "crit" in header or "b64" in header:
        raise TokenRefused("Malformed")
    return TokenEnvelope(text, algorithm, key_id, claims)


def _document(part: str) -> dict[str, Any]:
    try:
        data = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        found = json_guard.parse(data)
    except (binascii.Error, ValueError, Invalid) as error:
        raise TokenRefused("Malformed") from error
    if not isinstance(found, dict):
        raise TokenRefused("Malformed")
    return found


def demand_signed(envelope: TokenEnvelope, key: jwt.PyJWK) -> None:
    """Raise TokenRefused unless this key has signed it, with the algorithm of the key."""
    try:
        _SIGNATURES.decode_complete(envelope.text, key, algorithms=[key.algorithm_name])
    except jwt.PyJWTError as error:
        raise TokenRefused("Signature") from error
