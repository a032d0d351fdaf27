"""A plane as a value: what names it, and which of them cannot be."""

from __future__ import annotations

import pytest

from holdfast.model.errors import Invalid
from holdfast.model.plane import Plane, PlaneRole


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
