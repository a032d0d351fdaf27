"""Tokens of an issuer: valid ones give an identity, hostile ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization

from holdfast.host.oidc import signing_keys
from holdfast.host.oidc.envelope import TOKEN_MAX, is_signed_token, text64
from holdfast.host.oidc.issuer_config import Issuer
from holdfast.host.oidc.issuers import REMEMBERED_MAX, Issuers
from holdfast.model.errors import Forbidden
from tests.oidc_issuer import Signer, encoded, hmac_token

URL = "https://login.example.com"
OTHER_URL = "https://other.example.com"
NOW_S = 1_800_000_000.0
SIGNER, RSA_SIGNER = Signer("one"), Signer("two", is_rsa=True)
STRANGER = Signer("one")
CONFIG = Issuer(
    issuer=URL,
    audiences=("holdfast",),
    user_prefix="",
    groups_prefix="",
    groups_claim="groups",
    tenants={"risk-team": ("risk",)},
)


class Clock:
    def __init__(self) -> None:
        self.wall_s, self.monotonic_s = NOW_S, 100.0


class Rig:
    """Issuers whose keys are known from the start."""

    def __init__(self, *configs: Issuer) -> None:
        self.clock = Clock()
        self.issuers = Issuers(
            configs or (CONFIG,), lambda: self.clock.wall_s, lambda: self.clock.monotonic_s
        )
        self.told(SIGNER, RSA_SIGNER)

    def told(self, *signers: Signer, url: str = URL) -> None:
        data = encoded({"keys": [it.jwk for it in signers]})
        self.issuers.known[url].keys.replace(
            signing_keys.parse_key_set(data), self.clock.monotonic_s
        )

    def refusal(self, token: str) -> str:
        """Return why a token is refused; its sender gets one message for all reasons."""
        before = self.issuers.outcomes.copy()
        with pytest.raises(Forbidden, match=r"^the bearer token is not valid here: [a-z`, ]+$"):
            self.issuers.identity(token)
        ((_, reason),) = self.issuers.outcomes - before
        return reason


def claims(**more: Any) -> dict[str, Any]:
    base = {"iss": URL, "aud": "holdfast", "sub": "ann", "iat": NOW_S - 10, "exp": NOW_S + 600}
    return {key: it for key, it in {**base, **more}.items() if it is not None}


@pytest.mark.parametrize("signer", [SIGNER, RSA_SIGNER], ids=["ES256", "RS256"])
def test_a_good_token_names_its_user_its_groups_and_the_tenants_they_are_mapped_to(
    signer: Signer,
) -> None:
    rig = Rig()
    token = signer.token(claims(groups=["ops", "risk-team"], aud=["other", "holdfast"]))
    assert is_signed_token(token)
    found = rig.issuers.identity(token)
    assert found.name == "ann"
    assert found.groups == ("ops", "risk-team", "tenant:risk")
    assert found.tenants == ("risk",)


def test_prefixes_stand_before_users_and_groups_and_tenants_are_mapped_by_claims() -> None:
    named = {"user_prefix": "corp:", "groups_prefix": "corp-group:"}
    rig = Rig(msgspec.structs.replace(CONFIG, **named))
    found = rig.issuers.identity(SIGNER.token(claims(groups=["risk-team"])))
    assert (found.name, found.groups) == ("corp:ann", ("corp-group:risk-team", "tenant:risk"))


HOSTILE: dict[str, tuple[str, Callable[[], str]]] = {
    "expired": ("Expired", lambda: SIGNER.token(claims(exp=NOW_S - 31))),
    "too old for this server": (
        "Expired",
        lambda: SIGNER.token(claims(iat=NOW_S - 86_431, exp=NOW_S + 9_999_999)),
    ),
    "not yet valid": ("NotYetValid", lambda: SIGNER.token(claims(nbf=NOW_S + 31))),
    "issued tomorrow": ("NotYetValid", lambda: SIGNER.token(claims(iat=NOW_S + 31))),
    "issued tomorrow, good since yesterday": (
        "NotYetValid",
        lambda: SIGNER.token(claims(iat=NOW_S + 31, nbf=NOW_S - 10)),
    ),
    "no end": ("Times", lambda: SIGNER.token(claims(exp=None))),
    "no issue": ("Times", lambda: SIGNER.token(claims(iat=None))),
    "end is text": ("Times", lambda: SIGNER.token(claims(exp="9999999999"))),
    "end is true": ("Times", lambda: SIGNER.token(claims(exp=True))),
    "wrong audience": ("Audience", lambda: SIGNER.token(claims(aud="other"))),
    "no audience": ("Audience", lambda: SIGNER.token(claims(aud=None))),
    "audience is an object": ("Audience", lambda: SIGNER.token(claims(aud={"holdfast": 1}))),
    "too many audiences": (
        "Audience",
        lambda: SIGNER.token(claims(aud=[*(["x"] * 64), "holdfast"])),
    ),
    "wrong issuer": ("UnknownIssuer", lambda: SIGNER.token(claims(iss=OTHER_URL))),
    "issuer with a slash": ("UnknownIssuer", lambda: SIGNER.token(claims(iss=URL + "/"))),
    "issuer is a list": ("UnknownIssuer", lambda: SIGNER.token(claims(iss=[URL]))),
    "another's signature": ("Signature", lambda: STRANGER.token(claims())),
    "unknown key": ("UnknownKey", lambda: SIGNER.token(claims(), kid="three")),
    "key id is a path": ("UnknownKey", lambda: SIGNER.token(claims(), kid="../../dev/null")),
    "key id is a query": ("UnknownKey", lambda: SIGNER.token(claims(), kid="x' OR '1'='1")),
    "key id is a number": ("Malformed", lambda: SIGNER.token(claims(), kid=1)),
    "key id is long": ("Malformed", lambda: SIGNER.token(claims(), kid="k" * 257)),
    "another curve": (
        "Algorithm",
        lambda: SIGNER.token(claims(), kid=None, alg="ES384"),
    ),
    "key in the header": (
        "Signature",
        lambda: STRANGER.token(claims(), jwk=STRANGER.jwk, jku=URL, x5u=URL),
    ),
    "no algorithm": ("Algorithm", lambda: SIGNER.token(claims(), alg=None)),
    "algorithm of the other key": ("UnknownKey", lambda: SIGNER.token(claims(), alg="RS256")),
    "the other key's id": ("UnknownKey", lambda: SIGNER.token(claims(), kid="two")),
    "critical extension": ("Malformed", lambda: SIGNER.token(claims(), crit=["b64"], b64=False)),
    "claims twice": (
        "Malformed",
        lambda: SIGNER.token(encoded(claims())[:-1] + b',"sub":"system:admin"}'),
    ),
    "header twice": (
        "Malformed",
        lambda: SIGNER.token_of(b'{"alg":"ES256","kid":"one","kid":"one"}', encoded(claims())),
    ),
    "claims are a list": ("Malformed", lambda: SIGNER.token(b"[]")),
    "claims are deep": ("Malformed", lambda: SIGNER.token(b"[" * 2_000)),
    "claims are no text": ("Malformed", lambda: SIGNER.token(b"\xff\xfe")),
    "two parts": ("Malformed", lambda: SIGNER.token(claims()).rpartition(".")[0]),
    "four parts": ("Malformed", lambda: SIGNER.token(claims()) + ".x"),
    "too large": ("Malformed", lambda: SIGNER.token(claims(more="x" * TOKEN_MAX))),
    "blank in the signature": ("Signature", lambda: SIGNER.token(claims()) + " "),
    "empty signature": ("Signature", lambda: SIGNER.token(claims()).rpartition(".")[0] + "."),
    "no user": ("User", lambda: SIGNER.token(claims(sub=None))),
    "empty user": ("User", lambda: SIGNER.token(claims(sub=""))),
    "user is a list": ("User", lambda: SIGNER.token(claims(sub=["ann"]))),
    "a node": ("User", lambda: SIGNER.token(claims(sub="system:node:n1"))),
    "a controller": ("User", lambda: SIGNER.token(claims(sub="system:controller:workload"))),
    "nobody": ("User", lambda: SIGNER.token(claims(sub="system:anonymous"))),
    "a tenant's service": ("User", lambda: SIGNER.token(claims(sub="tenant:risk:bot"))),
    "unicode user": ("User", lambda: SIGNER.token(claims(sub="ａnn"))),
    "user with a blank": ("User", lambda: SIGNER.token(claims(sub="ann admin"))),
    "user with a line": ("User", lambda: SIGNER.token(claims(sub="ann\nX-User: bob"))),
    "user that is long": ("User", lambda: SIGNER.token(claims(sub="a" * 254))),
    "65 groups": ("Groups", lambda: SIGNER.token(claims(groups=[f"g{n}" for n in range(65)]))),
    "64 groups and a tenant": (
        "Groups",
        lambda: SIGNER.token(claims(groups=["risk-team", *(f"g{n}" for n in range(63))])),
    ),
    "groups are an object": ("Groups", lambda: SIGNER.token(claims(groups={"a": 1}))),
    "groups of numbers": ("Groups", lambda: SIGNER.token(claims(groups=["a", 1]))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_token_is_refused_with_one_sentence_and_counted_by_its_cause(name: str) -> None:
    """[B5]"""
    reason, made = HOSTILE[name]
    assert Rig().refusal(made()) == reason


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS256", "HS512", "PS256"])
def test_no_token_chooses_a_weaker_algorithm(algorithm: str) -> None:
    """Neither `none` nor an algorithm for which the public key would be a secret. [B5]"""
    head = {"alg": algorithm, "kid": "one"}
    unsigned = f"{text64(encoded(head))}.{text64(encoded(claims()))}."
    public = SIGNER.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for token in (unsigned, hmac_token(public, head, claims())):
        assert Rig().refusal(token) == "Algorithm"


def test_reserved_groups_of_a_token_are_left_out() -> None:
    """A claim never gives a built-in group, nor a tenant that is not mapped."""
    given = ["system:masters", "tenant:risk", "tenant:*", "tenant:risk:admins", "a b", "ops", ""]
    found = Rig().issuers.identity(SIGNER.token(claims(groups=given)))
    assert (found.groups, found.tenants) == (("ops",), ())


def test_groups_are_ignored_without_a_claim_for_them() -> None:
    rig = Rig(msgspec.structs.replace(CONFIG, groups_claim="", tenants={}))
    assert rig.issuers.identity(SIGNER.token(claims(groups=["ops"]))).groups == ()


def test_an_address_counts_only_if_the_issuer_has_verified_it() -> None:
    """[B5]"""
    rig = Rig(msgspec.structs.replace(CONFIG, user_claim="email"))
    given = {"email": "ann@example.com"}
    assert rig.refusal(SIGNER.token(claims(**given))) == "EmailNotVerified"
    assert rig.refusal(SIGNER.token(claims(**given, email_verified="true"))) == "EmailNotVerified"
    token = SIGNER.token(claims(**given, email_verified=True))
    assert rig.issuers.identity(token).name == "ann@example.com"


def test_a_required_claim_must_have_its_value() -> None:
    """[B5]"""
    rig = Rig(msgspec.structs.replace(CONFIG, required_claims={"hd": "example.com"}))
    assert rig.refusal(SIGNER.token(claims())) == "RequiredClaim"
    assert rig.refusal(SIGNER.token(claims(hd="example.org"))) == "RequiredClaim"
    assert rig.issuers.identity(SIGNER.token(claims(hd="example.com"))).name == "ann"


def test_clocks_may_differ_a_little_and_no_more() -> None:
    rig = Rig()
    assert rig.issuers.identity(SIGNER.token(claims(exp=NOW_S - 29))).name == "ann"
    assert rig.issuers.identity(SIGNER.token(claims(iat=NOW_S + 29))).name == "ann"


def test_a_remembered_token_ends_with_its_time_its_keys_and_its_user() -> None:
    """A verified token is not valid for ever."""
    rig, token = Rig(), SIGNER.token(claims())
    assert rig.issuers.identity(token).name == "ann"
    with pytest.raises(Forbidden):
        rig.issuers.identity(token, lambda user, issued_ms: user == "ann")
    assert rig.issuers.identity(token).name == "ann"
    rig.told(RSA_SIGNER)
    assert rig.refusal(token) == "UnknownKey"
    rig.told(SIGNER)
    assert rig.issuers.identity(token).name == "ann"
    rig.clock.wall_s = NOW_S + 631
    assert rig.refusal(token) == "Expired"


def test_a_revocation_ends_all_tokens_that_may_have_been_issued_before_it() -> None:
    """The issuer's clock may be ahead: a slightly younger token is not valid either."""
    rig, moments = Rig(), list[int]()
    rig.issuers.identity(SIGNER.token(claims()), lambda user, ms: bool(moments.append(ms)))
    assert moments == [int((NOW_S - 10 - 30) * 1_000)]


def test_keys_of_an_issuer_that_is_away_count_for_a_bounded_time() -> None:
    """Also for a token that was verified before. [B5]"""
    rig, token = Rig(), SIGNER.token(claims())
    rig.clock.monotonic_s += CONFIG.keys_max_age_seconds
    assert rig.issuers.identity(token).name == "ann"
    rig.clock.monotonic_s += 1
    assert rig.refusal(token) == "KeysTooOld"
    rig.told(SIGNER)
    assert rig.issuers.identity(token).name == "ann"


def test_no_token_counts_before_the_issuers_keys_are_read() -> None:
    """[B5]"""
    rig = Rig(CONFIG, msgspec.structs.replace(CONFIG, issuer=OTHER_URL))
    assert rig.refusal(SIGNER.token(claims(iss=OTHER_URL))) == "KeysTooOld"


def test_one_issuers_key_does_not_sign_for_another() -> None:
    """[B5]"""
    rig = Rig(CONFIG, msgspec.structs.replace(CONFIG, issuer=OTHER_URL, user_prefix="other:"))
    rig.told(STRANGER, url=OTHER_URL)
    assert rig.refusal(STRANGER.token(claims())) == "Signature"
    assert rig.issuers.identity(STRANGER.token(claims(iss=OTHER_URL))).name == "other:ann"


def test_an_unknown_key_asks_for_the_issuers_keys_and_a_wrong_signature_does_not() -> None:
    """Otherwise the sender of invalid tokens decides how often an issuer is asked."""
    rig, asked = Rig(), list[str]()
    rig.issuers.known[URL].wants_keys = lambda: asked.append("keys")
    rig.refusal(STRANGER.token(claims()))
    assert not asked
    rig.refusal(SIGNER.token(claims(), kid="new"))
    assert asked == ["keys"]


def test_a_token_without_key_id_is_checked_by_the_only_key_of_its_algorithm() -> None:
    rig = Rig()
    token = SIGNER.token(claims(), kid=None)
    assert rig.issuers.identity(token).name == "ann"
    rig.told(SIGNER, Signer("another"))
    assert rig.refusal(token) == "UnknownKey"


def test_what_is_remembered_is_bounded() -> None:
    rig = Rig()
    for number in range(3):
        rig.issuers.identity(SIGNER.token(claims(jti=str(number))))
    remembered = rig.issuers.verified_tokens
    assert len(remembered) == 3
    for number in range(REMEMBERED_MAX):
        remembered[number.to_bytes(4, "big")] = next(iter(remembered.values()))
    rig.issuers.identity(SIGNER.token(claims(jti="last")))
    assert len(remembered) == 1
