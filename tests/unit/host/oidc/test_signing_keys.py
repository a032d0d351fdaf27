"""Key sets of issuers: what they may hold, and which keys are used."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.host.oidc.envelope import text64
from holdfast.host.oidc.signing_keys import KEYS_MAX, KeySet, parse_key_set
from holdfast.model.errors import Invalid
from tests.oidc_issuer import Signer, encoded

SIGNER, RSA_SIGNER = Signer("one"), Signer("two", is_rsa=True)


def key_set(*entries: Any) -> bytes:
    return encoded({"keys": list(entries)})


def test_keys_for_other_purposes_and_algorithms_are_left_out() -> None:
    """A set may hold more than signing keys; no secret in it becomes one."""
    good = SIGNER.jwk
    others: list[Any] = [
        {"kty": "oct", "k": text64(b"secret"), "kid": "shared", "alg": "HS256"},
        {**good, "kid": "encrypts", "use": "enc"},
        {**good, "kid": "other-algorithm", "alg": "ES384"},
        {**good, "kid": "other-curve", "crv": "P-384"},
        {**good, "kid": "not-on-the-curve", "x": text64(b"\1" * 32)},
        {**good, "kid": "half", "x": None},
        {**good, "kid": "numbers", "x": 1, "y": 2},
        {**good, "kid": 7},
        {"kty": "RSA", "kid": "nothing"},
        {**RSA_SIGNER.jwk, "kid": "hmac", "alg": "HS256"},
        Signer("weak", is_rsa=True, bits=1_024).jwk,
        "no key",
    ]
    assert list(parse_key_set(key_set(good, RSA_SIGNER.jwk, *others))) == [
        ("one", "ES256"),
        ("two", "RS256"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [], "keys": []}',
        key_set(SIGNER.jwk, SIGNER.jwk),
        key_set(*({"kty": "x"} for _ in range(KEYS_MAX + 1))),
    ],
    # The keys are different in each process, and all processes must have the same names of tests.
    ids=["empty", "list", "object", "keys-object", "no-keys", "keys-twice", "key-twice", "many"],
)
def test_what_is_no_usable_key_set_is_refused(data: bytes) -> None:
    """Then the previous keys stay valid."""
    with pytest.raises(Invalid):
        parse_key_set(data)


def test_the_version_changes_with_the_keys_and_not_with_each_fetch() -> None:
    kept = KeySet()
    kept.replace(parse_key_set(key_set(SIGNER.jwk)), 1.0)
    first = kept.version
    kept.replace(parse_key_set(key_set(SIGNER.jwk)), 5.0)
    assert (kept.version, kept.age_s(6.0)) == (first, 1.0)
    kept.replace(parse_key_set(key_set(Signer("one").jwk)), 6.0)
    assert kept.version != first
