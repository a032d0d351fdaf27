"""A plane as a value: what names it, and which of them cannot be."""

from __future__ import annotations

import pytest

from holdfast.model.errors import Invalid
from holdfast.model.plane import Plane, PlaneRole, record_of, store_refusal


@pytest.mark.parametrize(
    "plane, shown",
    [
        (Plane(), "main"),
        (Plane("eu", region="eu-central"), "eu, region eu-central"),
        (Plane("eu", PlaneRole.REGION, "eu-central"), "eu, the region plane of eu-central"),
        (Plane("world", PlaneRole.GLOBAL), "world, the global plane"),
    ],
)
def test_a_plane_is_shown_with_its_role_and_region(plane: Plane, shown: str) -> None:
    assert str(plane) == shown


@pytest.mark.parametrize(
    "given, option",
    [
        ({"name": ""}, "--plane"),
        ({"name": "Eu"}, "--plane"),
        ({"name": "eu/1"}, "--plane"),
        ({"name": "a" * 64}, "--plane"),
        ({"region": "eu central"}, "--plane-region"),
        ({"role": PlaneRole.REGION}, "--plane-region"),
        ({"role": PlaneRole.GLOBAL, "region": "eu"}, "--plane-region"),
    ],
)
def test_a_plane_that_cannot_be_is_refused_by_the_option_that_says_so(given, option) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Invalid) as caught:
        Plane(**given)
    assert [error.path for error in caught.value.errors] == [option]


EU = Plane("eu", PlaneRole.REGION, "eu-central")


@pytest.mark.parametrize(
    "owner, started, options",
    [
        (Plane(), Plane("test"), "--plane=main --plane-role=both,"),
        (Plane(), EU, "--plane=main --plane-role=both,"),
        (EU, Plane("eu"), "--plane=eu --plane-role=region --plane-region=eu-central,"),
        (EU, Plane("eu", PlaneRole.REGION, "eu-west"), "--plane-region=eu-central,"),
        (Plane("world", PlaneRole.GLOBAL), EU, "--plane=world --plane-role=global,"),
    ],
)
def test_the_store_of_another_plane_is_refused_with_both_and_what_to_do(
    owner: Plane, started: Plane, options: str
) -> None:
    why = store_refusal(record_of(owner), started)
    assert f"belongs to plane {owner}, and" in why
    assert f"started for plane {started}:" in why
    assert f"{options} or" in why
    assert store_refusal(record_of(owner), owner) == ""


@pytest.mark.parametrize(
    "plane, region, may",
    [
        (Plane(), "anywhere", True),
        (Plane("eu", region="eu-central"), "eu-west", True),
        (EU, "eu-central", True),
        (EU, "eu-west", False),
        (EU, "", False),
        (Plane("world", PlaneRole.GLOBAL), "eu-central", False),
    ],
)
def test_a_region_plane_has_nodes_of_its_region_and_a_global_one_none(
    plane: Plane, region: str, may: bool
) -> None:
    why = plane.node_refusal(region)
    assert (why == "") is may
    assert may or str(plane) in why
