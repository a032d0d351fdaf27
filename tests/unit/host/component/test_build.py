"""How a component starts and ends around its machine, without any server."""

from __future__ import annotations

import argparse
import asyncio
import stat
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent.node_facts import NodeFacts
from holdfast.host.client import Access
from holdfast.host.client.api_client import ApiClient
from holdfast.host.component import build, machine_facts
from holdfast.host.component.component_process import Component
from holdfast.host.component.options import add_components, agent_settings, duration
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.component_credentials import access_of, identities, issue, provide
from holdfast.host.pki.join_tokens import JoinToken, fingerprint, new_token, parse
from holdfast.model.access import identity as who
from holdfast.model.errors import Invalid, InvariantBroken
from holdfast.model.kinds.access import TokenPurpose
from holdfast.model.machine import Started
from holdfast.model.requests import Term
from holdfast.model.time import Instant
from tests.puppet import Puppet, play

NO_SERVER = "https://127.0.0.1:1"


def api_client(identity: str = "system:scheduler:main") -> ApiClient:
    return ApiClient({identity: Access(servers=(NO_SERVER,))})


def test_a_bug_of_the_machine_is_said_in_a_sentence() -> None:
    """The process must neither go on nor end without a message."""

    def react(stimulus: Any, now: Instant) -> Sequence[Any]:
        raise InvariantBroken("a replica in two places")

    async def story() -> None:
        one = Component("scheduler main", Puppet(react), who.scheduler("main"), api_client())
        await one.start()
        said = await one.wait()
        assert said == (
            "scheduler main has stopped because of a bug: InvariantBroken: a replica in two places"
        )
        await one.stop()

    play(story())


def test_a_bug_that_shows_only_at_the_stop_is_not_hidden() -> None:
    def react(stimulus: Any, now: Instant) -> Sequence[Any]:
        raise InvariantBroken("a replica in two places")

    async def story() -> None:
        puppet = Puppet(react)
        one = Component("scheduler main", puppet, who.scheduler("main"), api_client())
        await one.start()
        await puppet.told(Started)
        with pytest.raises(InvariantBroken):
            await one.stop()

    play(story())


def test_a_stop_ends_although_no_server_takes_the_lease_back() -> None:
    """[C7.6]"""

    async def story() -> None:
        puppet, identity = Puppet(), who.scheduler("main")
        held = {identity.name: Term("scheduler:main", 3)}
        one = Component("scheduler main", puppet, identity, api_client(), terms=lambda: held)
        await one.start()
        await puppet.told(Started)
        await one.stop()

    play(story())


def test_certificates_are_for_this_user_alone_and_kept(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    first = issue(pki, "system:controller:nodes")
    assert [it.name for it in first] == [
        "system_controller_nodes.crt",
        "system_controller_nodes.key",
    ]
    assert all(stat.S_IMODE(it.stat().st_mode) == 0o600 for it in first)
    before = [it.read_bytes() for it in first]
    assert [it.read_bytes() for it in issue(pki, "system:controller:nodes")] == before
    access = access_of((NO_SERVER,), pki, "system:controller:nodes")
    assert access.certificate == before[0]
    with pytest.raises(Invalid, match="system:node:n1 has no certificate in"):
        access_of((NO_SERVER,), tmp_path, "system:node:n1")


def test_a_join_token_names_its_plane_and_is_stored_as_a_hash(tmp_path: Path) -> None:
    pem = CertificateAuthority.open(tmp_path).pem
    token, text = new_token(pem, "n1", timedelta(hours=1))
    assert parse(text.text) == text
    assert text.authority == fingerprint(pem)
    assert (token.spec.purpose, token.spec.node, token.spec.single_use) == (
        TokenPurpose.JOIN,
        "n1",
        True,
    )
    assert text.secret.encode() not in msgspec.json.encode(token)
    assert text.secret not in repr(text)
    for wrong in ("", "a.b.c", text.text + "x", text.text.upper(), f"x.{text.text}"):
        with pytest.raises(Invalid) as refused:
            parse(wrong)
        assert text.secret not in str(refused.value)
    for ttl in (timedelta(0), timedelta(days=31)):
        with pytest.raises(Invalid, match="must be above 0"):
            new_token(pem, "", ttl)
    with pytest.raises(Invalid, match="no certificate"):
        fingerprint(b"hello")
    assert isinstance(parse(f" {text.text}\n"), JoinToken)


@pytest.mark.parametrize(
    "text, seconds", [("90s", 90), ("30m", 1_800), ("1h", 3_600), ("2d", 172_800)]
)
def test_a_time_is_read(text: str, seconds: int) -> None:
    assert duration("--ttl", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1", "h", "1w", "-1h", "1.5h", "1h30m", "9999999s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"--ttl: .*must be a duration such as"):
        duration("--ttl", text)


def parsed(*arguments: str) -> Any:
    parser = argparse.ArgumentParser()
    add_components(parser.add_subparsers())
    return agent_settings(parser.parse_args(["agent", "--data", "d", *arguments]))


def test_an_agent_is_what_is_said_and_else_what_the_computer_is(tmp_path: Path) -> None:
    written = tmp_path / "facts.json"
    device = {"id": "g0", "deviceClass": "gpu", "model": "A100", "memory": "40Gi"}
    written.write_bytes(msgspec.json.encode({"region": "eu", "pool": "x", "devices": [device]}))
    said = parsed(
        "--server", "https://a:1/", "--server", "https://a:1", "--facts", str(written),
        "--zone", "eu-a", "--pool", "gpu", "--label", "k=v=w", "--capacity", "cpu=2500m",
    )  # fmt: skip
    assert said.servers == ("https://a:1",)
    assert (said.facts.region, said.facts.zone, said.facts.pool) == ("eu", "eu-a", "gpu")
    assert said.facts.labels == {"k": "v=w"}
    assert said.facts.capacity["cpu"] == "2500m"
    assert said.facts.capacity["memory"].endswith("Ki")
    assert said.facts.devices[0].model == "A100"
    assert said.node == machine_facts.host_name()
    assert (
        machine_facts.complete_facts(NodeFacts(capacity={"memory": "1Gi"})).capacity["memory"]
        == "1Gi"
    )


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"capacity":3}', b'{"zones":1}', b"\xff", b" " * 2_000_000]
)
def test_facts_that_cannot_be_used_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    with pytest.raises(Invalid, match="the facts in"):
        machine_facts.from_file(path)
    with pytest.raises(Invalid, match="cannot be read"):
        machine_facts.from_file(tmp_path / "none")


def test_an_agent_loads_neither_a_server_nor_a_scheduler() -> None:
    """Every machine has an agent, and its memory is missing for work."""
    script = (
        "import sys, holdfast.host.__main__\n"
        "heavy = ('numpy', 'apsw', 'holdfast.host.server.server_process', 'holdfast.commit',"
        " 'holdfast.propose',"
        " 'holdfast.correct')\n"
        "print([it for it in heavy if it in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_server_loads_no_scheduler() -> None:
    """It archives decisions, and needs no numeric library for that."""
    script = "import sys, holdfast.host.server.server_process; print('numpy' in sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("where", ["agent/ca.key", "agent/pki/ca.key", "given/ca-0a1b.key"])
def test_an_agent_has_no_key_of_the_authority(tmp_path: Path, where: str) -> None:
    """An attacker with its directory could pose as any identity."""
    path = tmp_path / where
    path.parent.mkdir(parents=True, mode=0o700)
    path.touch()
    settings = build.AgentSettings(
        servers=(NO_SERVER,),
        node="n1",
        data=tmp_path / "agent",
        facts=NodeFacts(),
        pki=tmp_path / "given" if "given" in where else None,
    )
    with pytest.raises(Invalid, match=r"is the key of the plane's authority.*--token-file"):
        asyncio.run(build.agent(settings))


@pytest.mark.parametrize("part", ["scheduler", "controllers"])
def test_neither_scheduler_nor_controllers_start_with_the_authoritys_key(
    tmp_path: Path, part: str
) -> None:
    """The error names the command that issues the certificates, and they start with them."""
    pki, own = tmp_path / "pki", tmp_path / "own"
    provide(pki, own, identities(part, "main"))
    start = getattr(build, part)
    origin = build.ComponentSettings(servers=(NO_SERVER,), pki=pki, name="main")
    with pytest.raises(Invalid, match=rf"which no {part} has.*component certificate {part} --out"):
        asyncio.run(start(origin))
    assert not list(own.glob("ca*.key"))
    assert all(stat.S_IMODE(it.stat().st_mode) == 0o600 for it in own.iterdir())
    asyncio.run(start(msgspec.structs.replace(origin, pki=own)))
