"""How long a server waits for a client, as its command line states it."""

from __future__ import annotations

import argparse

import pytest

from holdfast.host.__main__ import parser
from holdfast.host.server.client_timeouts import OPTIONS, ClientTimeouts, patience_of
from holdfast.host.server.server_options import add_options, settings_of
from holdfast.model.errors import Invalid


def given(*words: str) -> ClientTimeouts:
    command = argparse.ArgumentParser()
    add_options(command)
    return patience_of(command.parse_args(words))


def test_every_time_has_an_option_of_its_own() -> None:
    """A slow link needs no change of code."""
    assert given() == ClientTimeouts()
    for number, (option, (field, _)) in enumerate(OPTIONS.items(), start=1):
        assert getattr(given(f"--{option}", str(number)), field) == number
    assert {field for field, _ in OPTIONS.values()} == set(ClientTimeouts.__struct_fields__)


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "3601", "1e9", "0x1"])
def test_what_is_no_time_is_refused_by_its_option(text: str) -> None:
    """No wait is endless, and none so short that good clients are disconnected."""
    with pytest.raises(Invalid, match=r"--body-timeout.*from 0.1 to 3600") as caught:
        given("--body-timeout", text)
    assert caught.value.errors[0].path == "--body-timeout"


def test_a_server_is_started_with_it() -> None:
    arguments = parser().parse_args(["serve", "--header-timeout", "2.5"])
    assert settings_of(arguments).patience == ClientTimeouts(header_s=2.5)
