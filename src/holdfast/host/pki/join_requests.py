"""Reads the request of a node that wants to join. Its sender is not authenticated yet."""

from __future__ import annotations

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.host.api import status_objects
from holdfast.host.pki.certificates import COMMON_NAME_MAX
from holdfast.host.pki.join_protocol import JoinRequest
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.errors import FieldError, Invalid, Rejected

# `join_admission` asks here for the parts and decides what they allow.

_CURVES = (ec.SECP256R1, ec.SECP384R1)
_REQUESTS = msgspec.json.Decoder(JoinRequest)


def decode_join_request(body: bytes) -> JoinRequest:
    """Decode a body. Raises Rejected."""
    try:
        return _REQUESTS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The body may hold a secret, so the message does not repeat it.
        raise Rejected(
            "the body must be JSON with node, request and optionally token",
            code=status_objects.BAD_REQUEST,
        ) from None


def identity_name(node: str) -> str:
    """Return the identity of a node. Raises Invalid if it is not a node's name."""
    name = who.agent(node).name
    # The length first: the pattern check caches its arguments.
    if len(name) > COMMON_NAME_MAX or Identity(name=name).node != node:
        most = COMMON_NAME_MAX - len(who.NODE_PREFIX)
        rule = f"must be lower-case letters, digits, - and ., at most {most} of them"
        error = FieldError("node", repr(node[:63]), rule)
        raise Invalid(str(error), (error,))
    return name


def signed_key(pem: str) -> ec.EllipticCurvePublicKey:
    """Return the key of a signing request that the key itself signed. Nothing else is used."""
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        key = request.public_key()
        # Before its signature is verified, which can take very long with some other keys.
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _CURVES):
            raise _no_request("must be for a key on the curve P-256 or P-384")
        is_signed = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        raise _no_request("is not a certificate signing request") from None
    if not is_signed:
        raise _no_request("is not signed by its own key")
    return key


def _no_request(rule: str) -> Invalid:
    error = FieldError("request", "", rule)
    return Invalid(str(error), (error,))
