"""Arguments and variables: what is replaced, what stays, and what is refused before it is built."""

from __future__ import annotations

import os

import pytest

from holdfast.agent.runtime_protocol import Attempt, Launch
from holdfast.host.runtime.surroundings import surroundings, user
from holdfast.model.errors import Invalid
from holdfast.model.kinds.template import EnvVar, Template
from tests.yardstick import assert_cheap


def _found(template: Template) -> tuple[tuple[str, ...], dict[str, str]]:
    launch = Launch(Attempt("u", 2), "team", "web-0", template, 41, None, 0, index=7)
    found = surroundings(launch, "n1", "/d", {"web-ui": 8080}, "")
    return found.arguments, dict(text.split("=", 1) for text in found.variables)


@pytest.mark.parametrize(
    "text, becomes",
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)z", "x1y1z"),
        ("$(PORT_WEB_UI)", "8080"),
        ("$(HOLDFAST_TOKEN)", "41"),
        ("$(HOLDFAST_INDEX)", "7"),
        ("$(HOLDFAST_ATTEMPT)", "u/2"),
        ("$(NOPE) $A ${A} $( A)", "$(NOPE) $A ${A} $( A)"),
        ("$$(A)", "$(A)"),
        ("kill $$; echo $$", "kill $$; echo $$"),
        ("$(LATER)", "$(A)"),
    ],
)
def test_references_are_replaced_where_they_name_something(text: str, becomes: str) -> None:
    """What a value brings in is not read again."""
    env = (EnvVar(name="A", value="1"), EnvVar(name="LATER", value="$$(A)"))
    arguments, _ = _found(Template(command=("run", text), env=env))
    assert arguments == ("run", becomes)


def test_a_variable_sees_only_earlier_ones() -> None:
    env = (EnvVar(name="A", value="$(B)"), EnvVar(name="B", value="$(PATH)!"))
    _, variables = _found(Template(command=("x",), env=env))
    assert variables["A"] == "$(B)"
    assert variables["B"].endswith("/bin!")
    assert variables["HOME"] == "/d"


def test_a_value_that_multiplies_is_refused_before_it_is_built() -> None:
    """Gigabytes were asked for in a few hundred thousand characters."""
    env = (EnvVar(name="A", value="x" * 100_000), EnvVar(name="B", value="$(A)" * 30_000))

    def refused() -> None:
        with pytest.raises(Invalid, match="must expand to at most"):
            _found(Template(command=("x",), env=env))

    # To build it would take seconds.
    assert_cheap(refused, 10_000_000)


def test_a_user_is_looked_up() -> None:
    assert user("") is None
    assert user(str(os.geteuid())) is None
    with pytest.raises(Invalid, match="must be a user of this machine"):
        user("no-such-user")
