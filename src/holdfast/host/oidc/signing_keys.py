"""The public keys of one issuer, as of its last key set.

A key is identified by its id and its algorithm, which follows from the kind of key: RSA keys sign
RS256, keys on P-256 ES256. Other keys in a set are ignored, so that no token can choose a weaker
algorithm. Keys are valid for a bounded time after they were last fetched.
"""

from __future__ import annotations

from typing import Any

import jwt

from holdfast.host.oidc.envelope import ES256, RS256, TokenEnvelope, TokenRefused
from holdfast.model.encoding import json_guard
from holdfast.model.errors import Invalid

KEYS_MAX = 100
RSA_BITS_MIN, RSA_BITS_MAX = 2_048, 8_192

# By id and algorithm.
Keys = dict[tuple[str, str], jwt.PyJWK]


class KeySet:
    """The keys of one issuer, and when they were fetched."""

    def __init__(self) -> None:
        self._keys: Keys = {}
        self._heard_s: float | None = None
        # Changes with the keys: what removed keys verified must be verified again.
        self.version = 0

    def replace(self, keys: Keys, now_s: float) -> None:
        """Replace the keys by a new set."""
        if {at: _numbers(key) for at, key in keys.items()} != {
            at: _numbers(key) for at, key in self._keys.items()
        }:
            self._keys = keys
            self.version += 1
        self._heard_s = now_s

    def __len__(self) -> int:
        return len(self._keys)

    def age_s(self, now_s: float) -> float | None:
        """Return how long ago the keys were fetched; None if they never were."""
        return None if self._heard_s is None else now_s - self._heard_s

    def key_for(self, envelope: TokenEnvelope, now_s: float, age_max_s: float) -> jwt.PyJWK:
        """Return the key that a token names, or the only one. Raises TokenRefused."""
        age_s = self.age_s(now_s)
        if age_s is None or age_s > age_max_s:
            raise TokenRefused("KeysTooOld")
        if envelope.key_id:
            found = self._keys.get((envelope.key_id, envelope.algorithm))
        else:
            fitting = [key for (_, alg), key in self._keys.items() if alg == envelope.algorithm]
            found = fitting[0] if len(fitting) == 1 else None
        if found is None:
            raise TokenRefused("UnknownKey")
        return found


def parse_key_set(data: bytes) -> Keys:
    """Return the usable keys of a key set. Raises Invalid if it is not a key set."""
    document = json_guard.parse(data)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise Invalid(f"a key set must have `keys`, a list of at most {KEYS_MAX}")
    keys: Keys = {}
    for entry in listed:
        found = _usable(entry)
        if found is None:
            continue
        at = (str(entry.get("kid", "")), found.algorithm_name)
        if at in keys:
            raise Invalid(f"the key set names key {at[0][:80]!r} more than once")
        keys[at] = found
    if not keys:
        raise Invalid("the key set has no key for RS256 or ES256")
    return keys


def _usable(entry: Any) -> jwt.PyJWK | None:
    """Return the key of an entry, if its algorithm is accepted here."""
    if not isinstance(entry, dict):
        return None
    algorithm = _algorithm(entry)
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        return None
    if entry.get("use", "sig") != "sig" or not isinstance(entry.get("kid", ""), str):
        return None
    # A public set should hold no private keys; only the public numbers are used.
    public = {name: entry.get(name) for name in ("kty", "crv", "n", "e", "x", "y") if name in entry}
    try:
        key = jwt.PyJWK(public, algorithm)
    except jwt.PyJWTError:
        return None
    bits = getattr(key.key, "key_size", 0)
    if algorithm == RS256 and not RSA_BITS_MIN <= bits <= RSA_BITS_MAX:
        return None
    return key


def _algorithm(entry: dict[str, Any]) -> str | None:
    if entry.get("kty") == "RSA":
        return RS256
    is_p256 = entry.get("kty") == "EC" and entry.get("crv") == "P-256"
    return ES256 if is_p256 else None


def _numbers(key: jwt.PyJWK) -> Any:
    return key.key.public_numbers()
