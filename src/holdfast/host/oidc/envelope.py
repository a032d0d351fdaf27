"""Signed JSON Web Tokens: what they hold, and whether a key has signed them.

The header of a token is written by whoever sends it. It is asked for one thing, which of the keys
that we have already is meant; the algorithm belongs to that key. PyJWT checks the signature
(docs/adr/0102-oidc.md); documents are read by the strict reader of `model/encoding/json_guard`,
since two readers that disagree about a claim that is given twice are a way in.
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
# No header of a request is longer, so a token that comes in one has fewer bytes.
TOKEN_MAX = 8 << 10
KEY_ID_MAX = 256
# The first characters of every such token: base64 of an object's first brace and quotation mark. No
# namespace has a capital letter, so the text of a Token object never begins so.
BEGINS = "ey"

_SIGNATURES = jwt.PyJWS(algorithms=ALGORITHMS, options={"enforce_minimum_key_length": True})


class TokenRefused(Exception):
    """A token that does not count; `reason` is for the operator's metrics, never for its sender."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TokenEnvelope(msgspec.Struct, frozen=True):
    """What a token says, before anybody has checked that it is true."""

    text: str
    algorithm: str
    key_id: str
    claims: dict[str, Any]


def text64(data: bytes) -> str:
    """Bytes as the parts of a token are written."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def is_signed_token(text: str) -> bool:
    """Whether this has the form of such a token, and not that of a Token object's text."""
    return text.startswith(BEGINS) and text[2:3].isupper()


def parse_token(text: str) -> TokenEnvelope:
    """The parts of a token. Nothing of it may be believed yet. Raises Refused."""
    parts = text.split(".")
    if len(text) > TOKEN_MAX or not text.isascii() or len(parts) != 3:
        raise TokenRefused("Malformed")
    header, claims = _document(parts[0]), _document(parts[1])
    algorithm, key_id = header.get("alg"), header.get("kid", "")
    if algorithm not in ALGORITHMS:
        raise TokenRefused("Algorithm")
    if not isinstance(key_id, str) or len(key_id) > KEY_ID_MAX:
        raise TokenRefused("Malformed")
    # What must be understood and is not; and a payload that is not where it should be.
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
    """Raises Refused unless this key has signed it, by the algorithm of the key."""
    try:
        _SIGNATURES.decode_complete(envelope.text, key, algorithms=[key.algorithm_name])
    except jwt.PyJWTError as error:
        raise TokenRefused("Signature") from error
