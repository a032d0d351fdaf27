"""The file that names the OpenID Connect issuers of a server (`--oidc FILE`), and its rules.

Every rule that keeps an issuer from naming the identities of others is checked here, at the start:
the text of a token is only ever appended to a prefix from this file.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import yaml

from holdfast.host.server.authentication import TENANT_GROUP
from holdfast.model.access.identity import SYSTEM_PREFIX
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.validation.names import is_name
from holdfast.model.validation.text import is_token

OPTION = "--oidc"
FILE_BYTES_MAX = 1 << 20
ISSUERS_MAX = 16
AUDIENCES_MAX = 16
MAPPINGS_MAX = 1_000
PREFIX_MAX = 64
SKEW_MAX_S = 300
LIFE_MIN_S, LIFE_MAX_S = 60, 30 * 86_400
KEYS_AGE_MIN_S, KEYS_AGE_MAX_S = 600, 7 * 86_400
# Only the plane itself gives names with these prefixes: components, built-in groups, and those of
# tenants. No claim yields one of them.
RESERVED = (SYSTEM_PREFIX, TENANT_GROUP)


class Issuer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One issuer.

    issuer: its URL, exactly as in the claim `iss`.
    audiences: a token must name one of these in `aud`.
    user_prefix, groups_prefix: prefixes of each user and each group that a token names. That of
        groups must be given with groups_claim. With an empty one the issuer's names are the same as
        those of other people and groups of the plane.
    user_claim, groups_claim: the claims with them; without a claim for groups there are none.
    tenants: by group as the token names it, the tenants in which its members may work.
    required_claims: claims that must have exactly these values.
    ca_file: the authorities to trust for its TLS; empty means those of the system.
    skew_seconds: by how much its clock and ours may differ.
    max_life_seconds: the longest life of a token after its issue.
    keys_max_age_seconds: for how long its keys are valid when it cannot be reached.
    """

    issuer: str
    audiences: tuple[str, ...]
    user_prefix: str
    groups_prefix: str | None = None
    user_claim: str = "sub"
    groups_claim: str = ""
    tenants: dict[str, tuple[str, ...]] = {}
    required_claims: dict[str, str] = {}
    ca_file: str = ""
    skew_seconds: int = 30
    max_life_seconds: int = 86_400
    keys_max_age_seconds: int = 6 * 3_600


class OidcConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All issuers of a server."""

    issuers: tuple[Issuer, ...] = ()


def read(path: Path) -> OidcConfig:
    """Read the issuers from a file. Raises Invalid with the field that is wrong."""
    try:
        text = path.read_bytes()
        if len(text) > FILE_BYTES_MAX:
            raise _wrong("", str(path), f"must have at most {FILE_BYTES_MAX} bytes")
        config = msgspec.convert(yaml.safe_load(text), OidcConfig)
    except OSError as error:
        raise _wrong("", str(path), f"cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _wrong("", str(path), f"must be YAML or JSON: {error}") from error
    except msgspec.ValidationError as error:
        raise _wrong("", str(path), str(error)) from error
    check(config)
    return config


def check(config: OidcConfig) -> None:
    """Refuse a file that lets an issuer name identities that are not its own."""
    if not 1 <= len(config.issuers) <= ISSUERS_MAX:
        raise _wrong("issuers", str(len(config.issuers)), f"must be from 1 to {ISSUERS_MAX}")
    for index, issuer in enumerate(config.issuers):
        _check_issuer(f"issuers[{index}]", issuer)
        for other in config.issuers[:index]:
            _check_apart(f"issuers[{index}]", issuer, other)


def _check_issuer(at: str, issuer: Issuer) -> None:
    if not _is_https(issuer.issuer):
        rule = "must be an https URL without query, fragment and user"
        raise _wrong(f"{at}.issuer", issuer.issuer, rule)
    if not 1 <= len(issuer.audiences) <= AUDIENCES_MAX or not all(issuer.audiences):
        rule = f"must have from 1 to {AUDIENCES_MAX} items, none of them empty"
        raise _wrong(f"{at}.audiences", str(list(issuer.audiences)), rule)
    for field, prefix in (
        ("userPrefix", issuer.user_prefix),
        ("groupsPrefix", issuer.groups_prefix or ""),
    ):
        if prefix and not is_token(prefix, PREFIX_MAX):
            rule = f"must be at most {PREFIX_MAX} characters of plain ASCII without blanks"
            raise _wrong(f"{at}.{field}", prefix, rule)
        if _is_near_reserved(prefix):
            rule = f"must not begin with {' or '.join(RESERVED)}, nor with a part of these"
            raise _wrong(f"{at}.{field}", prefix, rule)
    if issuer.groups_claim and issuer.groups_prefix is None:
        rule = "must be given with groupsClaim, such as corp: (or '' if no other groups are used)"
        raise _wrong(f"{at}.groupsPrefix", "", rule)
    if not issuer.user_claim:
        raise _wrong(f"{at}.userClaim", "", "must be given")
    _check_tenants(f"{at}.tenants", issuer)
    for field, value, low, high in (
        ("skewSeconds", issuer.skew_seconds, 0, SKEW_MAX_S),
        ("maxLifeSeconds", issuer.max_life_seconds, LIFE_MIN_S, LIFE_MAX_S),
        ("keysMaxAgeSeconds", issuer.keys_max_age_seconds, KEYS_AGE_MIN_S, KEYS_AGE_MAX_S),
    ):
        if not low <= value <= high:
            raise _wrong(f"{at}.{field}", str(value), f"must be from {low} to {high}")


def _check_tenants(at: str, issuer: Issuer) -> None:
    if issuer.tenants and not issuer.groups_claim:
        raise _wrong(at, "", "needs groupsClaim: it maps groups of the token to tenants")
    if len(issuer.tenants) > MAPPINGS_MAX:
        raise _wrong(at, str(len(issuer.tenants)), f"must have at most {MAPPINGS_MAX} entries")
    for group, tenants in issuer.tenants.items():
        for tenant in tenants:
            if not is_name(tenant):
                raise _wrong(f"{at}[{group}]", tenant, "must be the name of a tenant")


def _check_apart(at: str, issuer: Issuer, other: Issuer) -> None:
    """Check that two issuers cannot give the same name to two people."""
    if issuer.issuer == other.issuer:
        raise _wrong(f"{at}.issuer", issuer.issuer, "must be named once")
    pairs = [("userPrefix", issuer.user_prefix, other.user_prefix)]
    if issuer.groups_claim and other.groups_claim:
        given = (issuer.groups_prefix or "", other.groups_prefix or "")
        pairs.append(("groupsPrefix", *given))
    for field, mine, theirs in pairs:
        if mine.startswith(theirs) or theirs.startswith(mine):
            rule = f"must not begin with that of {other.issuer}, nor the other way round"
            raise _wrong(f"{at}.{field}", mine, rule)


def _is_near_reserved(prefix: str) -> bool:
    """Return whether a claim could complete it to a reserved name, as with `sys`."""
    return bool(prefix) and any(prefix.startswith(it) or it.startswith(prefix) for it in RESERVED)


def _is_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
        good = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return good and parts.username is None and not parts.query and not parts.fragment


def _wrong(field: str, value: str, rule: str) -> Invalid:
    error = FieldError(f"{OPTION} {field}".rstrip(), value[:80], rule)
    return Invalid(str(error), (error,))
