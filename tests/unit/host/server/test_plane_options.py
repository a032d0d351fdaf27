"""The plane on a server's command line, and in what the server answers."""

from __future__ import annotations

import argparse

import pytest

from holdfast.host.server.component_pulses import ComponentPulses
from holdfast.host.server.server_options import add_options, settings_of
from holdfast.model.errors import Invalid
from holdfast.model.plane import Plane, PlaneRole


def given(*arguments: str) -> Plane:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return settings_of(parser.parse_args(arguments)).plane


def test_a_server_serves_the_plane_that_its_options_name() -> None:
    assert given() == Plane("main", PlaneRole.BOTH)
    options = ("--plane=eu", "--plane-role=region", "--plane-region=eu-central")
    assert given(*options) == Plane("eu", PlaneRole.REGION, "eu-central")
    assert ComponentPulses("one", given(*options)).recent_pulses().plane == given(*options)


@pytest.mark.parametrize(
    "options", [("--plane=Eu",), ("--plane-role=region",), ("--plane-role=star",)]
)
def test_a_plane_that_cannot_be_is_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match=r"^--plane"):
        given(*options)
