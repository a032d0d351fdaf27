"""Authentication: certificates, tokens, and everything that only looks like one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.host.server.authentication import from_certificate, from_token, secret_hash
from holdfast.model.errors import Forbidden
from holdfast.model.kinds.access import Token, TokenPurpose, TokenSpec
from holdfast.model.meta import ObjectMeta

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "s3cret-and-long-enough-to-be-random"


def token(**spec: object) -> Token:
    given = {
        "user": "tenant:risk:bot",
        "groups": ("tenant:risk:bots",),
        "hash": secret_hash(SECRET),
        **spec,
    }
    metadata = ObjectMeta(name="bot", namespace="risk", creation_timestamp=NOW)
    return Token(metadata, spec=TokenSpec(**given))  # type: ignore[arg-type]


def ask(header: str, found: Token | None = None) -> object:
    return from_token(header, lambda namespace, name: found, NOW)


def test_a_certificate_names_its_bearer_and_its_tenants() -> None:
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


def test_a_certificate_with_two_names_is_refused() -> None:
    peer = {"subject": ((("commonName", "ada"), ("commonName", "system:node:a")),)}
    assert from_certificate(peer) is None
    assert from_certificate({}) is None


def test_a_certificate_with_more_groups_than_a_check_can_walk_is_refused() -> None:
    groups = tuple((("organizationName", f"g{n}"),) for n in range(65))
    assert from_certificate({"subject": (*groups, (("commonName", "ada"),))}) is None


def test_a_group_of_a_tenants_own_making_is_no_tenant() -> None:
    peer = {"subject": ((("organizationName", "tenant:risk:bots"),), (("commonName", "ada"),))}
    identity = from_certificate(peer)
    assert identity is not None
    assert (identity.groups, identity.tenants) == (("tenant:risk:bots",), ())


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
        (f"Bearer risk.bot.{SECRET}", token(user="root")),
        (f"Bearer risk.bot.{SECRET}", token(groups=("tenant:risk:bots", "system:masters"))),
        (f"Bearer risk.bot.{SECRET}", token(groups=("tenant:globex",))),
        (f"Bearer risk.bot.{SECRET}", token(groups=tuple(f"tenant:risk:{n}" for n in range(65)))),
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


@pytest.mark.parametrize("expires", [None, NOW + timedelta(days=3_650)])
def test_a_stored_token_counts_for_no_longer_than_the_server_allows(
    expires: datetime | None,
) -> None:
    """Also one that an earlier version accepted, and one of unknown age. [B5]"""
    found = token(expires=expires)

    def at(later: timedelta, it: Token = found) -> object:
        header, life_ms = f"Bearer risk.bot.{SECRET}", 60_000
        return from_token(header, lambda *_: it, NOW + later, life_max_ms=life_ms)

    assert at(timedelta(seconds=59)) is not None
    with pytest.raises(Forbidden):
        at(timedelta(seconds=60))
    ageless = msgspec.structs.replace(token(), metadata=ObjectMeta(name="bot", namespace="risk"))
    with pytest.raises(Forbidden):
        at(timedelta(0), ageless)


def test_without_a_token_no_identity_is_claimed() -> None:
    assert ask("") is None
