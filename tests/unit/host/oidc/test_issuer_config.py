"""The file of issuers: no issuer may give names that belong to the plane or to another issuer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.host.oidc.issuer_config import AUDIENCES_MAX, ISSUERS_MAX, read
from holdfast.model.errors import Invalid

GOOD: dict[str, Any] = {
    "issuer": "https://login.example.com/realm",
    "audiences": ["holdfast"],
    "userPrefix": "corp:",
    "groupsPrefix": "corp:",
    "groupsClaim": "groups",
    "tenants": {"risk-team": ["risk"]},
}


def written(folder: Path, *issuers: Any, **more: Any) -> Path:
    path = folder / "issuers.yaml"
    path.write_bytes(msgspec.json.encode({"issuers": list(issuers), **more}))
    return path


def test_a_file_of_issuers_is_read_as_yaml_and_as_json(tmp_path: Path) -> None:
    (found,) = read(written(tmp_path, GOOD)).issuers
    assert (found.user_claim, found.groups_claim, found.skew_seconds) == ("sub", "groups", 30)
    assert found.tenants == {"risk-team": ("risk",)}
    text = "issuers:\n- issuer: https://a.example\n  audiences: [x]\n  userPrefix: ''\n"
    (tmp_path / "plain.yaml").write_text(text)
    assert read(tmp_path / "plain.yaml").issuers[0].issuer == "https://a.example"


@pytest.mark.parametrize(
    "changed, field",
    [
        ({"issuer": "http://login.example.com"}, "issuer"),
        ({"issuer": "https://ann@login.example.com"}, "issuer"),
        ({"issuer": "https://login.example.com?x=1"}, "issuer"),
        ({"issuer": "https://[::1"}, "issuer"),
        ({"audiences": []}, "audiences"),
        ({"audiences": [""]}, "audiences"),
        ({"audiences": [f"a{n}" for n in range(AUDIENCES_MAX + 1)]}, "audiences"),
        ({"userPrefix": "system:"}, "userPrefix"),
        ({"userPrefix": "system:node:"}, "userPrefix"),
        ({"userPrefix": "syst"}, "userPrefix"),
        ({"userPrefix": "tenant:"}, "userPrefix"),
        ({"groupsPrefix": "tenant:risk"}, "groupsPrefix"),
        ({"groupsPrefix": "t"}, "groupsPrefix"),
        ({"userPrefix": "a b"}, "userPrefix"),
        ({"userPrefix": "x" * 65}, "userPrefix"),
        ({"userClaim": ""}, "userClaim"),
        ({"tenants": {"g": ["*"]}}, "tenants"),
        ({"tenants": {"g": ["risk:admins"]}}, "tenants"),
        ({"groupsClaim": ""}, "tenants"),
        ({"skewSeconds": 301}, "skewSeconds"),
        ({"skewSeconds": -1}, "skewSeconds"),
        ({"maxLifeSeconds": 59}, "maxLifeSeconds"),
        ({"keysMaxAgeSeconds": 604_801}, "keysMaxAgeSeconds"),
        ({"userprefix": "x"}, "userprefix"),
        ({"audiences": "holdfast"}, "audiences"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(
    tmp_path: Path, changed: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid, match=field):
        read(written(tmp_path, {**GOOD, **changed}))


@pytest.mark.parametrize("prefix", ["corp:", "corp:x", "co", ""])
def test_two_issuers_cannot_name_the_same_user(tmp_path: Path, prefix: str) -> None:
    other = {**GOOD, "issuer": "https://b.example", "userPrefix": prefix, "groupsPrefix": "b:"}
    with pytest.raises(Invalid, match=r"issuers\[1\].userPrefix"):
        read(written(tmp_path, GOOD, other))


def test_groups_of_an_issuer_equal_local_ones_only_where_that_is_written(tmp_path: Path) -> None:
    """A missing prefix must not make the issuer's `admins` those of the plane."""
    silent = {key: value for key, value in GOOD.items() if key != "groupsPrefix"}
    with pytest.raises(Invalid, match=r"issuers\[0\].groupsPrefix: must be given"):
        read(written(tmp_path, silent))
    (found,) = read(written(tmp_path, {**GOOD, "groupsPrefix": ""})).issuers
    assert found.groups_prefix == ""
    # Without a claim for groups there are none to name.
    without = {key: it for key, it in silent.items() if key not in ("groupsClaim", "tenants")}
    assert read(written(tmp_path, without)).issuers[0].groups_prefix is None


def test_two_issuers_cannot_name_the_same_group_nor_be_the_same(tmp_path: Path) -> None:
    other = {**GOOD, "issuer": "https://b.example", "userPrefix": "b:"}
    with pytest.raises(Invalid, match=r"issuers\[1\].groupsPrefix"):
        read(written(tmp_path, GOOD, other))
    with pytest.raises(Invalid, match="must be named once"):
        read(written(tmp_path, GOOD, {**GOOD, "userPrefix": "b:", "groupsPrefix": "b:"}))
    assert len(read(written(tmp_path, GOOD, {**other, "groupsPrefix": "b:"})).issuers) == 2


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        read(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("issuers: [")
    with pytest.raises(Invalid, match="must be YAML"):
        read(tmp_path / "bad.yaml")
    with pytest.raises(Invalid, match=f"from 1 to {ISSUERS_MAX}"):
        read(written(tmp_path))
