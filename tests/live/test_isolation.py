"""Tenants whose processes share a machine: none of them reaches another one, or the node itself.

The agent is set up by its own command line as `holdfast up` starts it, with nothing said about
tenants. tests/live/intruder.py is what the hostile one runs.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.runtime_protocol import Attempt, Exited, SecretValues
from holdfast.host.component.options import add_components, agent_settings
from holdfast.host.runtime.starting import RuntimeOptions
from holdfast.model.kinds.template import EnvVar, File, Port, SecretRef, Template
from tests.workshop import Workshop, is_running, play, workshop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

INTRUDER = Path(__file__).with_name("intruder.py")
SECRET = "the-password-of-acme"
SEALED = SecretValues({"db/password": base64.b64encode(SECRET.encode()).decode()})
ACME, RIVAL = "acme", "rival"


def options_of(tmp_path: Path, *more: str) -> RuntimeOptions:
    """What an agent of a plane in `plane` does by default."""
    pki = tmp_path / "plane" / "pki"
    pki.mkdir(parents=True, exist_ok=True)
    for path in (pki / "ca.key", pki.parent / "kubeconfig"):
        path.write_text("a key")
    parser = argparse.ArgumentParser()
    add_components(parser.add_subparsers())
    words = ("agent", "--server=https://a:1", "--region=r", "--zone=z", "--gpus=none")
    where = ("--data", str(tmp_path / "agent"), "--pki", str(pki))
    return agent_settings(parser.parse_args([*words, *where, *more])).options


# As careless as work can be about its own files.
CARELESS = """
umask 0; chmod 777 .
for file in open.txt /tmp/scratch.txt /dev/shm/scratch.txt; do echo acme > $file; done
test -s $(PASSWORD_FILE) && echo ready
sleep 600
"""
VICTIM = Template(
    command=("/bin/sh", "-c", CARELESS),
    env=(
        EnvVar("PASSWORD", secret=SecretRef("db", "password")),
        EnvVar("PASSWORD_FILE", "$(HOLDFAST_DIRECTORY)/password"),
    ),
    files=(File(path="password", secret=SecretRef("db", "password"), mode="0644"),),
    ports=(Port(name="http"),),
)


async def victim(one: Workshop) -> tuple[Attempt, int]:
    """Work of acme that runs, and its pid."""
    attempt = await one.launched(VICTIM, namespace=ACME, secrets=SEALED)
    assert await one.prints(attempt) == ["ready"]
    held = one.runtime.running_attempt(attempt)
    assert held is not None
    assert held.state is not None
    return attempt, held.state.work.pid


def targets(one: Workshop, of: Attempt, pid: int, tmp_path: Path) -> dict[str, Any]:
    """Everything that an intruder would like to have."""
    held = one.runtime.running_attempt(of)
    assert held is not None
    assert held.state is not None
    its = one.path(of)
    files = [its / "work" / name for name in ("open.txt", "password")]
    files += [its / name for name in ("launch", "state", "stdout", "lock", "tmp/scratch.txt")]
    files += [tmp_path / "plane" / name for name in ("pki/ca.key", "kubeconfig")]
    files += [Path("/etc/shadow"), Path("/tmp/scratch.txt"), Path("/dev/shm/scratch.txt")]
    folders = [tmp_path / "plane", tmp_path / "plane" / "pki", its, its / "work"]
    return {
        "files": list(map(str, files)),
        "folders": list(map(str, folders)),
        "sockets": [str(its / "control")],
        # Its own init is a shim; the others are processes of the machine.
        "pids": [1, pid, held.state.shim.pid, os.getpid()],
    }


async def intrude(one: Workshop, known: dict[str, Any], namespace: str = RIVAL) -> dict[str, Any]:
    """What an intruder of this tenant got."""
    script = INTRUDER.read_text()
    template = Template(
        command=("/usr/bin/python3", "intruder.py", json.dumps(known)),
        files=(File(path="intruder.py", content=script),),
    )
    attempt = await one.launched(template, namespace=namespace)
    ended = await one.heard(Exited, attempt)
    assert ended.process.exit_code == 0, one.output(attempt, "stderr")
    told: dict[str, Any] = json.loads(one.output(attempt))
    return {**told, "uid": attempt.uid}


@pytest.fixture(params=["below /tmp", "open to all"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where the plane and the agent are: a private /tmp hides one, rights alone hide the other."""
    if request.param == "below /tmp":
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/opt"))
    try:
        for name in ("", "agent", "plane", "plane/pki"):
            (made / name).mkdir(exist_ok=True)
            (made / name).chmod(0o755)
        yield made
    finally:
        shutil.rmtree(made)


def test_a_tenant_s_process_reaches_nothing_that_is_not_its_own(place: Path) -> None:
    """Neither the node's files and keys nor another tenant's files, secrets, variables, processes
    and sockets, and no other user could.
    """

    async def story() -> None:
        options = options_of(place, "--hide", str(place / "plane"))
        async with workshop(place / "agent", options=options) as one:
            attempt, pid = await victim(one)
            told = await intrude(one, targets(one, attempt, pid, place))
            got = {what: it for what, it in told["found"].items() if it and it[:4] != "no: "}
            assert got == {}
            # What lies above its own directory has nothing but the way to it.
            assert told["above"] == f"../:work ../../:0 ../../../:{told['uid']}"
            assert is_running(pid)
            assert (one.path(attempt) / "work" / "open.txt").read_text() == "acme\n"

    play(story())


def test_work_has_a_user_of_its_tenant_and_no_rights(tmp_path: Path) -> None:
    """One user for each tenant, without groups and capabilities, and no way to gain any."""

    async def story() -> None:
        known: dict[str, Any] = {"files": [], "folders": [], "sockets": [], "pids": []}
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            rights = [(await intrude(one, known, it))["rights"] for it in (ACME, RIVAL, ACME)]
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            rights.append((await intrude(one, known, RIVAL))["rights"])
        acme, rival, again, after = rights
        assert acme == again
        assert rival == after
        for it in (acme, rival):
            assert len(set(it["Uid"])) == len(set(it["Gid"])) == 1
            assert it["Groups"] == it["Gid"][:1] == it["Uid"][:1]
            assert int(it["Uid"][0]) >= 1_000
            caps = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
            assert {name: int(it[name][0], 16) for name in caps} == dict.fromkeys(caps, 0)
            assert it["NoNewPrivs"] == ["1"]
        assert acme["Uid"] != rival["Uid"]

    play(story())


def test_a_tenant_that_is_deleted_and_made_again_has_another_user(tmp_path: Path) -> None:
    """What the first one left on the node is not the second one's."""

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            users = []
            for uid in ("uid-1", "uid-2", "uid-1"):
                template = Template(command=("sleep", "600"))
                attempt = await one.launched(template, namespace=ACME, tenant_uid=uid)
                users.append((one.path(attempt) / "work").stat().st_uid)
            assert users[0] == users[2] != users[1]

    play(story())
