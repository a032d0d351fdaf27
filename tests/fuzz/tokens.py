"""What proves something: bearer tokens, join tokens, and the tokens by which a list goes on."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from holdfast.host.api.objects import reads
from holdfast.host.api.plane import decision_routes
from holdfast.host.oidc import signing_keys
from holdfast.host.oidc.envelope import text64
from holdfast.host.oidc.issuer_config import Issuer
from holdfast.host.oidc.issuers import Issuers
from holdfast.host.pki import join_tokens
from holdfast.host.server import authentication
from holdfast.model.errors import Forbidden, Invalid, Rejected
from holdfast.model.kinds.access import Token, TokenPurpose, TokenSpec
from holdfast.model.meta import ObjectMeta
from tests.fuzz.nasty import damaged, numbers, texts, words
from tests.fuzz.targets import Target, refused
from tests.oidc_issuer import Signer, encoded

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SECRET = "s" * 43
PREFIX = "objects/workloads/t/"
_TOKEN = Token(
    ObjectMeta(name="ci", namespace="t", creation_timestamp=NOW),
    spec=TokenSpec(
        purpose=TokenPurpose.BEARER,
        user="ci",
        hash=authentication.secret_hash(SECRET),
        expires=None,
    ),
)
# As a header's raw bytes come out of the HTTP server.
_RAW = st.binary(max_size=8).map(lambda data: data.decode("utf-8", "surrogateescape"))


def _find(namespace: str, name: str) -> Token | None:
    return _TOKEN if (namespace, name) == ("t", "ci") else None


def _bearer(header: str) -> str:
    try:
        found = authentication.from_token(header, _find, NOW)
    except Forbidden as error:
        return refused(error, hides=header[7:])
    assert found is None or (found.name == "ci" and SECRET in header)
    return "nobody" if found is None else "known"


_ISSUER = "https://login.example"
_SIGNER = Signer("k")
_ISSUERS = Issuers((Issuer(issuer=_ISSUER, audiences=("a",), user_prefix=""),), NOW.timestamp)
_ISSUERS.known[_ISSUER].keys.replace(
    signing_keys.parse_key_set(encoded({"keys": [_SIGNER.jwk]})), time.monotonic()
)
_HEAD = encoded({"alg": "ES256", "kid": "k"})
_CLAIMS = encoded(
    {"iss": _ISSUER, "aud": "a", "sub": "ann", "iat": NOW.timestamp(), "exp": NOW.timestamp() + 60}
)


def _signed(claims: bytes) -> str:
    try:
        found = _ISSUERS.identity(_SIGNER.token(claims))
    except Forbidden as error:
        return refused(error)
    assert not found.name.startswith(("system:", "tenant:"))
    return "known"


def _forged(head: bytes) -> str:
    """The signature is of another token, so nothing in a header may make it count."""
    if head == _HEAD:
        return "unchanged"
    _, claims, signature = _SIGNER.token_of(_HEAD, _CLAIMS).split(".")
    try:
        found = _ISSUERS.identity(f"{text64(head)}.{claims}.{signature}")
    except Forbidden as error:
        return refused(error)
    raise AssertionError(f"{head!r} made {found.name} of another token")


def _join(text: str) -> str:
    try:
        found = join_tokens.parse(text)
    except Invalid as error:
        return refused(error, hides=text)
    assert join_tokens.parse(found.text) == found
    assert found.secret not in repr(found)
    return "read"


def _continue(text: str) -> str:
    answers = []
    try:
        found = reads.parse_token(text, PREFIX)
        assert found.start.startswith(PREFIX)
        assert reads.parse_token(reads.token_text(found.revision, found.start), PREFIX) == found
        found.start.encode()
        assert 0 < found.revision < 1 << 63
        answers.append("read")
    except Rejected as error:
        refused(error)
    try:
        decision_routes.parse_token(text)
        answers.append("row")
    except Rejected as error:
        refused(error)
    return "+".join(answers) or "refused"


def _packed(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode()


_TOKENS = st.one_of(
    st.fixed_dictionaries(
        {"revision": numbers, "start": texts.map(lambda text: PREFIX + text) | texts}
    ).map(_packed),
    st.lists(numbers, max_size=3).map(_packed),
    words("e30=", "A", "=", "_", "-"),
)
_JOINS = st.tuples(
    words("join-1a2b", "-", "a"),
    st.sampled_from((".", "", "..")),
    st.just("S" * 43) | texts,
    st.sampled_from((".", "")),
    st.just("0" * 64) | texts,
).map("".join)

TARGETS = (
    Target(
        "bearer tokens",
        st.lists(
            st.sampled_from(("Bearer ", "bearer ", "t", "ci", ".", SECRET, " ", "Basic ")) | _RAW,
            max_size=8,
        ).map("".join)
        | words("Bearer ", "t.ci.", SECRET, "."),
        _bearer,
        seeds=(f"Bearer t.ci.{SECRET}",),
    ),
    Target("claims of signed tokens", damaged((_CLAIMS,)), _signed, seeds=(_CLAIMS,)),
    Target("headers of signed tokens", damaged((_HEAD,)), _forged, seeds=(_HEAD,)),
    Target("join tokens", _JOINS, _join, seeds=(f"join-1a2b.{'S' * 43}.{'0' * 64}", "a.b.c")),
    Target(
        "continue tokens",
        _TOKENS,
        _continue,
        seeds=(b'{"revision":17,"start":"objects/workloads/t/web"}', b"[17,3]"),
        of=lambda data, rng: urlsafe_b64encode(data).decode() if rng.randrange(9) else str(data),
    ),
)
