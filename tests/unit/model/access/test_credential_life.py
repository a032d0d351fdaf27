"""What a revocation is called, and what it ends."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.access.credential_life import revocation_name, revokes
from holdfast.model.kinds.access import Revocation, RevocationSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import timestamp
from holdfast.model.validation import names
from tests.documents import Row, check

NOW_MS = 1_800_000_000_123


def revocation(before_ms: int | None = NOW_MS) -> Revocation:
    before = timestamp(before_ms) if before_ms is not None else None
    spec = RevocationSpec(user="ann", before=before)
    return Revocation(ObjectMeta(name="user.ann"), spec=spec)


@pytest.mark.parametrize(
    "user, name",
    [
        ("system:node:web-1.eu", "system.node.web-1.eu"),
        ("system:scheduler:main", "system.scheduler.main"),
        ("ann", "user.ann"),
    ],
)
def test_the_name_can_be_read(user: str, name: str) -> None:
    assert revocation_name(user) == name


USERS = st.text(
    st.sampled_from("ab.:-A@é") | st.characters(min_codepoint=33, max_codepoint=126), max_size=12
) | st.sampled_from(
    ["system:node:a", "system:node:a.b", "system.node.a", "user.a", "a", "system:node:", "other.a"]
)


@given(USERS, USERS)
def test_no_two_users_share_a_name_and_each_name_is_one(one: str, other: str) -> None:
    """Otherwise a user named like a node could be mistaken for it. [A9]"""
    assert names.is_dotted(revocation_name(one))
    assert (revocation_name(one) == revocation_name(other)) == (one == other)


def test_it_ends_what_was_issued_until_its_moment_and_nothing_later() -> None:
    assert revokes(revocation(), NOW_MS)
    assert revokes(revocation(), 0)
    assert not revokes(revocation(), NOW_MS + 1)
    assert not revokes(revocation(None), 0)


ROWS: list[Row] = [
    ("Revocation", {"metadata.name": "user.bob"}, "metadata.name", "must be user.ann"),
    ("Revocation", {"spec.user": "a b"}, "spec.user", "without blanks"),
    ("Revocation", {"spec.user": ""}, "spec.user", "must be given"),
    (
        "Token",
        {"metadata.namespace": "holdfast-system", "spec.user": "system:node:a"},
        "spec.user",
        "must not be a component",
    ),
    ("Token", {"spec.singleUse": True}, "spec.singleUse", "must be left out for Bearer"),
    ("Revocation", {"spec.reason": "a\x07b"}, "spec.reason", "U+0007"),
    (
        "Revocation",
        {
            "spec.before": timestamp(NOW_MS).isoformat(),
            "spec.expires": (timestamp(NOW_MS) - timedelta(1)).isoformat(),
        },
        "spec.expires",
        "must not be before spec.before",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[2]} {row[3]}")
def test_a_revocation_that_says_nothing_clear_is_refused(row: Row) -> None:
    check(row)
