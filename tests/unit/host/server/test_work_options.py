"""The options for the resources of work that does not state them."""

from __future__ import annotations

import pytest

from holdfast.cli.up import server_arguments, up
from holdfast.host.__main__ import parser, settings_of
from holdfast.host.server.settings import ServerSettings
from holdfast.host.server.work_options import WorkRules, work_rules
from holdfast.model.errors import Invalid
from holdfast.model.kinds.template import Resources


def passed(*line: str) -> ServerSettings:
    """Return the arguments of the server of `holdfast up`."""
    given = up.make_context("up", list(line)).params
    return settings_of(parser().parse_args(["serve", *server_arguments(given)]))


def test_a_server_has_rules_unless_configured_otherwise() -> None:
    usual = passed().work
    assert usual.default == Resources(cpu="100m", memory="128Mi", disk="512Mi")
    assert usual.minimum == Resources(cpu="10m", memory="4Mi")
    assert passed("--default-resources", "cpu=1").work.default == Resources(cpu="1")
    none = passed("--default-resources", "", "--minimum-resources", "")
    assert none.work == WorkRules()


@pytest.mark.parametrize(
    "default, minimum, sentence",
    [
        ("gpu=1", "", "--default-resources: gpu: must be cpu, memory or disk"),
        ("cpu", "", "--default-resources: cpu: must be KEY=VALUE"),
        ("", "cpu=much", "--minimum-resources: cpu=much: must be a quantity"),
        ("cpu=5m", "cpu=10m", "--default-resources: cpu=5m: must be at least 10m"),
    ],
)
def test_rules_that_make_no_sense_are_refused(default: str, minimum: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        work_rules(default, minimum)
