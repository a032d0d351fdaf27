"""Who is asking: certificates, tokens, and everything that only looks like one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.host.authentication import from_certificate, from_token, hashed
from holdfast.model.errors import Forbidden
from holdfast.model.kinds.token import Token, TokenPurpose, TokenSpec
from holdfast.model.meta import ObjectMeta

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "s3cret-and-long-enough-to-be-random"


def token(**spec: object) -> Token:
    given = {"user": "tenant:risk:bot", "groups": ("tenant:risk",), "hash": hashed(SECRET), **spec}
    return Token(ObjectMeta(name="bot", namespace="risk"), spec=TokenSpec(**given))  # type: ignore[arg-type]


def ask(header: str, found: Token | None = None) -> object:
    return from_token(header, lambda namespace, name: found, NOW)


def test_a_certificate_names_its_bearer_and_his_tenants() -> None:
    """[B3]"""
    peer = {
        "subject": (
            (("organizationName", "tenant:risk"),),
            (("organizationName", "auditors"),),
            (("commonName", "ada"),),
        )
    }
    identity = from_certificate(peer)
    assert identity is not None
    assert (identity.name, identity.tenants) == ("ada", ("risk",))
    assert identity.groups == ("tenant:risk", "auditors")


def test_a_certificate_with_two_names_is_nobody() -> None:
    peer = {"subject": ((("commonName", "ada"), ("commonName", "system:node:a")),)}
    assert from_certificate(peer) is None
    assert from_certificate({}) is None


def test_a_token_is_its_user() -> None:
    identity = ask(f"Bearer risk.bot.{SECRET}", token())
    assert identity is not None
    assert identity.name == "tenant:risk:bot"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "header, found",
    [
        ("Basic abc", token()),
        ("Bearer", token()),
        ("Bearer risk.bot", token()),
        ("Bearer risk.bot.wrong", token()),
        (f"Bearer risk.bot.{SECRET}.x", token()),
        (f"Bearer risk.bot.{SECRET}", None),
        (f"Bearer risk.bot.{SECRET}", token(revoked=True)),
        (f"Bearer risk.bot.{SECRET}", token(expires=NOW)),
        (f"Bearer risk.bot.{SECRET}", token(purpose=TokenPurpose.JOIN)),
        (f"Bearer risk.bot.{SECRET}", token(user="")),
        (f"Bearer risk.bot.{SECRET}", token(user="system:node:a")),
        ("Bearer risk.bot." + "x" * 600, token()),
        # As raw bytes of a header come out of the HTTP server.
        ("Bearer risk.bot.\udcff\udcfe", token()),
        ("Bearer risk.bot.\u00e9", token()),
        ("Bearer risk.bot.", token(hash="")),
    ],
)
def test_whatever_only_looks_like_a_token_is_refused_with_one_sentence(
    header: str, found: Token | None
) -> None:
    """[B5]"""
    with pytest.raises(Forbidden, match="the bearer token is not valid here"):
        ask(header, found)


def test_a_token_is_good_until_it_expires() -> None:
    assert ask(f"Bearer risk.bot.{SECRET}", token(expires=NOW + timedelta(seconds=1)))


def test_without_a_token_nobody_is_claimed() -> None:
    assert ask("") is None
