"""What an agent measures of its machine, and what its operator states."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from holdfast.agent.node_facts import NodeFacts
from holdfast.host.component import machine_facts
from holdfast.host.component.build import AgentSettings
from holdfast.host.component.options import add_components, agent_settings
from holdfast.host.runtime import devices
from holdfast.host.runtime.cgroups.groups import Ceilings
from holdfast.model import quantity
from holdfast.model.errors import Invalid


def parsed(data: Path, *arguments: str) -> AgentSettings:
    parser = argparse.ArgumentParser()
    add_components(parser.add_subparsers())
    place = ("--server", "https://a:1", "--region", "eu", "--zone", "eu-a")
    return agent_settings(parser.parse_args(["agent", "--data", str(data), *place, *arguments]))


@pytest.mark.parametrize(
    "ceilings, cpu, memory",
    [
        (Ceilings(500, 64 << 20), "500m", "65536Ki"),
        # A group above may allow more than there is, which makes it no more.
        (Ceilings(10**9, 1 << 59), None, None),
    ],
)
def test_no_more_is_promised_than_the_agents_own_groups_leave_it(
    ceilings: Ceilings, cpu: str | None, memory: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[D4]"""
    monkeypatch.setattr(machine_facts, "ceilings", Ceilings)
    whole = machine_facts.complete_facts(NodeFacts()).capacity
    monkeypatch.setattr(machine_facts, "ceilings", lambda: ceilings)
    found = machine_facts.complete_facts(NodeFacts()).capacity
    assert found == {"cpu": cpu or whole["cpu"], "memory": memory or whole["memory"]}


def test_the_disk_is_what_is_free_and_what_the_agents_own_work_has_of_it(tmp_path: Path) -> None:
    """Also where the agent has not stored anything yet. [D4]"""
    used = tmp_path / "data" / "replicas" / "file"
    used.parent.mkdir(parents=True)
    used.write_bytes(b"x" * (3 << 20))
    assert machine_facts.used_bytes(tmp_path / "data") >= 3 << 20
    assert machine_facts.used_bytes(tmp_path / "nothing") == 0
    for data in (tmp_path / "data", tmp_path / "nothing" / "yet"):
        found = machine_facts.complete_facts(NodeFacts(), data).capacity["disk"]
        assert quantity.capacity("disk", found) > 0


def test_devices_and_images_are_presented_and_kept_for_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "images" / "web").mkdir(parents=True)
    (tmp_path / "images" / "a-file").write_text("")
    said = parsed(tmp_path, "--device", "class=fpga,id=f0,path=/dev/null", "--pids-max", "9")
    assert [it.id for it in said.facts.devices] == ["f0"]
    assert said.options.devices == (devices.parse("class=fpga,id=f0,path=/dev/null"),)
    assert said.options.pids_max == 9
    assert said.facts.images == (str(tmp_path / "images" / "web"),)
    assert said.options.images == (tmp_path / "images",)
    given = parsed(tmp_path, "--images", "/srv/x", "--images", "/srv/y")
    assert given.options.images == (Path("/srv/x"), Path("/srv/y"))
    assert parsed(tmp_path, "--tenant-images-mib", "7").options.tenant_images_bytes == 7 << 20


@pytest.mark.parametrize(
    "arguments, rule",
    [
        (("--pids-max", "0"), "--pids-max: 0: must be from 1"),
        (("--tenant-images-mib", "0"), "--tenant-images-mib: 0: must be at least 1"),
        (("--device", "class=gpu"), "--device: class=gpu: must give id"),
        (("--port-share", "0/3"), "--port-share: 0/3: must be NUMBER/COUNT"),
        (("--port-share", "4/3"), "--port-share: 4/3: must be NUMBER/COUNT"),
        (("--port-share", "2"), "--port-share: 2: must be NUMBER/COUNT"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(
    arguments: tuple[str, ...], rule: str, tmp_path: Path
) -> None:
    with pytest.raises(Invalid, match=rule):
        parsed(tmp_path, *arguments)


def test_a_device_is_not_stated_twice() -> None:
    local = devices.parse("class=fpga,id=f0")
    with pytest.raises(Invalid, match="must be unique"):
        machine_facts.with_devices(machine_facts.with_devices(NodeFacts(), [local]), [local])
