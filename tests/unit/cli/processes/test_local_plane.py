"""Which parts a plane on one machine has, and what each is started with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.main import root
from holdfast.cli.processes.local_plane import (
    LocalPlane,
    LocalPlanePlan,
    data_directory_lock,
    share,
)
from holdfast.host.__main__ import parser
from holdfast.host.component.options import agent_settings
from holdfast.model import quantity
from holdfast.model.errors import Conflict


def plan(folder: Path, agents: int = 2, region: str = "local") -> LocalPlanePlan:
    return LocalPlanePlan(
        data=folder / "data",
        listen="127.0.0.1:0",
        pki=folder / "data" / "pki",
        server=("--data", str(folder / "data")),
        agents=agents,
        region=region,
    )


def test_nodes_are_in_the_region_of_their_plane(tmp_path: Path) -> None:
    plane = LocalPlane(plan(tmp_path, region="eu-central"), lambda text: None)
    plane.url = "https://127.0.0.1:6443"
    parsed = [parser().parse_args(plane.arguments_of(it)) for it in plane.plan.nodes]
    facts = [agent_settings(arguments).facts for arguments in parsed]
    assert {it.region for it in facts} == {"eu-central"}
    assert {it.zone for it in facts} == {"eu-central-1", "eu-central-2"}


def test_a_global_plane_has_no_nodes(tmp_path: Path) -> None:
    options = ("--data", str(tmp_path / "data"), "--plane-role=global", "--agents=1")
    ended = CliRunner().invoke(root, ["up", *options], standalone_mode=False)
    assert "--agents: 1: a global plane has no nodes" in ended.output
    assert ended.return_value == ExitCode.USAGE


def test_shares_of_the_machine_never_add_up_to_more_than_it_has(tmp_path: Path) -> None:
    """[INV4, D4]"""

    def of(agents: int) -> dict[str, int]:
        pairs = (it.partition("=") for it in share(agents, tmp_path)[1::2])
        return {name: quantity.capacity(name, amount) for name, _, amount in pairs}

    whole = of(1)
    for agents in (2, 3, 7):
        assert all(0 < of(agents)[it] * agents <= whole[it] for it in ("cpu", "memory"))


def test_every_part_understands_what_it_is_started_with(tmp_path: Path) -> None:
    plane = LocalPlane(plan(tmp_path), lambda text: None)
    plane.url = "https://127.0.0.1:6443"
    assert [it.name for it in plane.all] == [
        "server",
        "scheduler",
        "controllers",
        "node-1",
        "node-2",
    ]
    agents = []
    for part in plane.others:
        arguments = parser().parse_args(plane.arguments_of(part.name))
        assert arguments.server == ["https://127.0.0.1:6443"]
        if arguments.command == "agent":
            agents.append(agent_settings(arguments))
    assert [it.node for it in agents] == ["node-1", "node-2"]
    assert len({it.data for it in agents}) == 2
    assert len({it.facts.zone for it in agents}) == 2
    # One network, and each of its fixed ports belongs to one of them.
    shares = [it.facts.port_share for it in agents]
    assert [[it.has(port) for it in shares if it is not None] for port in (80, 8081)] == [
        [True, False],
        [False, True],
    ]


def test_a_directory_that_is_held_is_refused_with_whom_to_look_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    holder = rf"another `holdfast up` \(process {os.getpid()}\)"
    with (
        data_directory_lock(data),
        pytest.raises(Conflict, match=holder),
        data_directory_lock(data),
    ):
        pytest.fail("two hold it")
    with data_directory_lock(data):
        assert data.stat().st_mode & 0o077 == 0
