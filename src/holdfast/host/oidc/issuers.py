"""Turns a signed token of an issuer into an identity. Nothing here waits.

A token is checked in this order: form, issuer, key, signature, times, audience, claims, user,
groups, revocation. Its sender gets one message for every cause; the cause is counted for operators.
A valid token is cached until it expires, so that a client with many requests costs one signature
check. Revocations and the expiry are checked each time.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.host.oidc import envelope
from holdfast.host.oidc.envelope import TokenEnvelope, TokenRefused
from holdfast.host.oidc.issuer_config import RESERVED, Issuer
from holdfast.host.oidc.signing_keys import KeySet
from holdfast.host.server.authentication import (
    TENANT_GROUP,
    IsRevoked,
    identity_of,
    invalid_token_error,
    never_revoked,
)
from holdfast.model.access.identity import Identity
from holdfast.model.validation.access import GROUPS_MAX
from holdfast.model.validation.text import is_token

REMEMBERED_MAX = 4_096
AUDIENCES_MAX = 64


class VerifiedToken(msgspec.Struct, frozen=True):
    """A verified token: its identity, its validity, and the keys that verified it."""

    identity: Identity
    issuer: str
    issued_ms: int
    until_s: float
    keys: int


class KnownIssuer:
    """One issuer: its configuration and its keys."""

    def __init__(self, config: Issuer) -> None:
        self.config, self.keys = config, KeySet()
        # Set by a token that names an unknown key; `fetching` checks it.
        self.wants_keys: Callable[[], None] = lambda: None


class Issuers:
    """All issuers of a server."""

    def __init__(
        self,
        configs: Sequence[Issuer],
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.known = {it.issuer: KnownIssuer(it) for it in configs}
        self._now_s, self._monotonic_s = now_s, monotonic_s
        self.verified_tokens: dict[bytes, VerifiedToken] = {}
        # Accepted and refused tokens, by issuer and reason.
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def identity(self, text: str, is_revoked: IsRevoked = never_revoked) -> Identity:
        """Return the identity of a token. Raises Forbidden (Unauthenticated) with one message."""
        try:
            found = self._verified(text)
            if is_revoked(found.identity.name, found.issued_ms):
                self._count(found.issuer, "Revoked")
                raise invalid_token_error()
        except TokenRefused:
            raise invalid_token_error() from None
        self._count(found.issuer, "Accepted")
        return found.identity

    def _verified(self, text: str) -> VerifiedToken:
        digest = hashlib.sha256(text.encode(errors="replace")).digest()
        remembered = self.verified_tokens.get(digest)
        if remembered is not None:
            if self._still_counts(remembered):
                return remembered
            del self.verified_tokens[digest]
        issuer = ""
        try:
            opened = envelope.parse_token(text)
            known = self._issuer_of(opened)
            issuer = known.config.issuer
            found = self._check(opened, known)
        except TokenRefused as refused:
            self._count(issuer, refused.reason)
            raise
        if len(self.verified_tokens) >= REMEMBERED_MAX:
            self.verified_tokens.clear()
        self.verified_tokens[digest] = found
        return found

    def _still_counts(self, verified: VerifiedToken) -> bool:
        """Return whether a cached token is still valid. Keys that are too old end it as well."""
        known = self.known[verified.issuer]
        age_s = known.keys.age_s(self._monotonic_s())
        return (
            self._now_s() < verified.until_s
            and verified.keys == known.keys.version
            and age_s is not None
            and age_s <= known.config.keys_max_age_seconds
        )

    def _issuer_of(self, opened: TokenEnvelope) -> KnownIssuer:
        issuer = opened.claims.get("iss")
        known = self.known.get(issuer) if isinstance(issuer, str) else None
        if known is None:
            raise TokenRefused("UnknownIssuer")
        return known

    def _check(self, opened: TokenEnvelope, known: KnownIssuer) -> VerifiedToken:
        config = known.config
        try:
            key = known.keys.key_for(opened, self._monotonic_s(), config.keys_max_age_seconds)
        except TokenRefused:
            known.wants_keys()
            raise
        envelope.demand_signed(opened, key)
        issued_s, until_s = _times(opened.claims, config, self._now_s())
        # The issuer's clock may be ahead: in doubt a token was issued before a revocation.
        issued_ms = int((issued_s - config.skew_seconds) * 1_000)
        _demand_audience(opened.claims, config)
        for claim, wanted in config.required_claims.items():
            if opened.claims.get(claim) != wanted:
                raise TokenRefused("RequiredClaim")
        identity = identity_of(_user(opened.claims, config), _groups(opened.claims, config))
        return VerifiedToken(identity, config.issuer, issued_ms, until_s, known.keys.version)

    def _count(self, issuer: str, outcome: str) -> None:
        self.outcomes[issuer, outcome] += 1


def _times(claims: dict[str, Any], config: Issuer, now_s: float) -> tuple[float, float]:
    """Return when it was issued and when it expires for us. Raises TokenRefused.

    A token must state both: without the time of issue a revocation could not be checked.
    """
    issued_s, ends_s = _moment(claims, "iat"), _moment(claims, "exp")
    starts_s = _moment(claims, "nbf") if "nbf" in claims else issued_s
    if max(issued_s, starts_s) > now_s + config.skew_seconds:
        raise TokenRefused("NotYetValid")
    until_s = min(ends_s, issued_s + config.max_life_seconds) + config.skew_seconds
    if now_s >= until_s:
        raise TokenRefused("Expired")
    return issued_s, until_s


def _moment(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise TokenRefused("Times")
    return float(value)


def _demand_audience(claims: dict[str, Any], config: Issuer) -> None:
    given = claims.get("aud")
    audiences = [given] if isinstance(given, str) else given
    if not isinstance(audiences, list) or len(audiences) > AUDIENCES_MAX:
        raise TokenRefused("Audience")
    if not any(isinstance(it, str) and it in config.audiences for it in audiences):
        raise TokenRefused("Audience")


def _user(claims: dict[str, Any], config: Issuer) -> str:
    given = claims.get(config.user_claim)
    if not isinstance(given, str) or not given:
        raise TokenRefused("User")
    if config.user_claim == "email" and claims.get("email_verified") is not True:
        # An unverified address may be anyone's.
        raise TokenRefused("EmailNotVerified")
    name = config.user_prefix + given
    if not is_token(name) or name.startswith(RESERVED):
        raise TokenRefused("User")
    return name


def _groups(claims: dict[str, Any], config: Issuer) -> tuple[str, ...]:
    """Return the groups of a token, and those of the tenants that its groups are mapped to.

    A list that is too long is refused as a whole: taking a part of it would be a guess. A group
    with a reserved name, or one that a binding cannot name, is left out: it grants nothing.
    """
    given = claims.get(config.groups_claim, []) if config.groups_claim else []
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list) or len(listed) > GROUPS_MAX:
        raise TokenRefused("Groups")
    if not all(isinstance(it, str) for it in listed):
        raise TokenRefused("Groups")
    named = ((config.groups_prefix or "") + it for it in listed)
    own = [it for it in named if is_token(it) and not it.startswith(RESERVED)]
    mapped = [TENANT_GROUP + tenant for it in listed for tenant in config.tenants.get(it, ())]
    groups = tuple(dict.fromkeys((*own, *mapped)))
    if len(groups) > GROUPS_MAX:
        raise TokenRefused("Groups")
    return groups
