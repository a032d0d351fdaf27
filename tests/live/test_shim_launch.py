"""What work finds when it starts, and what is never started."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.runtime_protocol import Exited, Launched, NotLaunched
from holdfast.model.kinds.template import EnvVar, File, Port, Protocol, SecretRef, Template
from tests.workshop import command, eventually, marked, play, workshop


def test_work_finds_its_files_variables_ports_and_directory(tmp_path: Path) -> None:
    """[H1]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            template = Template(
                command=(
                    "sh",
                    "-c",
                    "pwd; cat conf/app.txt; stat -c %a conf/app.txt; echo '$(WHERE)'",
                ),
                working_dir="etc",
                env=(
                    EnvVar(name="BASE", value="http://$(HOLDFAST_NODE)"),
                    EnvVar(name="WHERE", value="$(BASE):$(PORT_WEB_UI)/$(UNKNOWN)/$$(BASE)"),
                ),
                files=(File(path="etc/conf/app.txt", content="hello\n", mode="0640"),),
                ports=(Port(name="web-ui"), Port(name="dns", port=5353, protocol=Protocol.UDP)),
            )
            attempt = await one.launched(template)
            await one.heard(Exited, attempt)
            launched = await one.heard(Launched, attempt)
            address = launched.process.addresses["web-ui"]
            host, _, port = address.rpartition(":")
            assert host == "127.0.0.1"
            assert launched.process.addresses["dns"] == "127.0.0.1:5353"
            directory = one.path(attempt) / "work" / "etc"
            assert one.output(attempt).splitlines() == [
                str(directory),
                "hello",
                "640",
                f"http://n1:{port}/$(UNKNOWN)/$(BASE)",
            ]
            assert (one.path(attempt).stat().st_mode & 0o777) == 0o700

    play(story())


def test_work_gets_who_it_is_and_nothing_of_the_agent_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fencing token lets what it writes to refuse it; the agent's secrets stay its own.

    [INV2]
    """
    monkeypatch.setenv("AGENT_PASSWORD", "hush")

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            told = "print(json.dumps([dict(os.environ), os.listdir('/proc/self/fd')]))"
            script = f"import json, os; {told}"
            attempt = await one.launched(Template(command=("python3", "-c", script)))
            process = (await one.heard(Exited, attempt)).process
            assert process.exit_code == 0
            variables, descriptors = json.loads(one.output(attempt))
            assert variables["HOLDFAST_TOKEN"] == "7"
            assert variables["HOLDFAST_REPLICA"] == f"web-{attempt.uid}"
            assert variables["HOLDFAST_NAMESPACE"] == "team"
            assert variables["HOLDFAST_UID"] == attempt.uid
            assert variables["HOLDFAST_NODE"] == "n1"
            assert "AGENT_PASSWORD" not in variables
            # Standard input, output and error, and the directory that is being listed.
            assert len(descriptors) == 4

    play(story())


def test_work_can_be_reached_at_its_address(tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            serve = (
                "import http.server as h, os; port = int(os.environ['PORT_HTTP']); "
                "h.test(h.SimpleHTTPRequestHandler, port=port, bind='127.0.0.1')"
            )
            template = Template(command=("python3", "-c", serve), ports=(Port(name="http"),))
            attempt = await one.launched(template)
            address = (await one.heard(Launched, attempt)).process.addresses["http"]
            host, _, port = address.rpartition(":")

            def answers() -> bool:
                with socket.socket() as line:
                    if line.connect_ex((host, int(port))) != 0:
                        return False
                    line.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    return line.recv(20).startswith(b"HTTP/1.0 200")

            await eventually(answers)

    play(story())


def test_two_agents_of_a_machine_never_pick_the_same_port(tmp_path: Path) -> None:
    """Also when nothing listens there yet."""

    async def story() -> None:
        template = Template(
            command=("sleep", "60"), ports=tuple(Port(name=f"p{i}") for i in range(20))
        )
        async with workshop(tmp_path / "a") as one, workshop(tmp_path / "b") as two:
            picked = []
            for agent in (one, two, one, two):
                attempt = await agent.launched(template)
                picked += (await agent.heard(Launched, attempt)).process.addresses.values()
            assert len(set(picked)) == len(picked) == 80

    play(story())


_SECRET = SecretRef(name="db", key="password")


def _true(**fields: Any) -> Template:
    return Template(command=("true",), **fields)


def _files(*paths: str) -> Template:
    return _true(files=tuple(File(path=path, content="!") for path in paths))


_LARGE = tuple(EnvVar(name=f"V{i}", value="x" * 120_000) for i in range(20))
_GROWING = (EnvVar(name="A", value="x" * 100_000), EnvVar(name="B", value="$(A)" * 30_000))


@pytest.mark.parametrize(
    "template, says",
    [
        (Template(command=("no-such-program",)), "the command cannot be run: no such file"),
        (Template(command=("/etc/passwd",)), "the command cannot be run: permission denied"),
        (Template(command=("/",)), "the command cannot be run: permission denied"),
        (Template(), "command: : must name a program"),
        (_true(env=(EnvVar(name="P", secret=_SECRET),)), "env[P].secret: db/password"),
        (_true(files=(File(path="p", secret=_SECRET),)), "files[p].secret: db/password"),
        (_true(user="nobody-of-this-name"), "must be a user of this machine"),
        (_files("../x"), 'files.path: "../x"'),
        (_files("a/../../x"), 'files.path: "a/../../x"'),
        (_files("/etc/x"), 'files.path: "/etc/x"'),
        (_files("a//x"), 'files.path: "a//x"'),
        (_files("x", "x"), "file exists"),
        (_files("x", "x/y"), "not a directory"),
        (_files("d" * 300), "file name too long"),
        (_true(working_dir="../../.."), 'workingDir: "../../.."'),
        (_true(working_dir="/root"), 'workingDir: "/root"'),
        (_true(working_dir="f", files=(File(path="f"),)), "not a directory"),
        (Template(command=("a\x00b",)), "U+0000"),
        (Template(command=("true", "x" * 140_000)), "argument list too long"),
        (_true(env=_LARGE), "must be at most 2097152"),
        (_true(env=_GROWING), "must expand to at most"),
        (_true(env=(EnvVar(name="HOLDFAST_TOKEN", value="9"),)), "env.name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_started_says_why(template: Template, says: str, tmp_path: Path) -> None:
    """In one sentence, and nothing is left running or written elsewhere. [H1]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = one.launch(template)
            told = await one.heard(NotLaunched, attempt)
            assert told.process.reason.startswith("NotStarted: ")
            assert says in told.process.reason
            assert str(tmp_path) not in told.process.reason
            assert not marked(attempt)
            assert one.runtime.running_attempt(attempt) is None

    play(story())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["replicas"]


def test_a_large_environment_is_handed_over_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            env = tuple(EnvVar(name=f"V{i}", value="x" * 3_000) for i in range(500))
            template = Template(command=("sh", "-c", 'echo "${#V0} ${#V499}"'), env=env)
            attempt = await one.launched(template)
            assert (await one.heard(Exited, attempt)).process.exit_code == 0
            assert one.output(attempt) == "3000 3000\n"

    play(story())


def test_a_link_that_earlier_work_planted_leads_nowhere(tmp_path: Path) -> None:
    """Work may write into its replica's directory; the next attempt's must not be made for it."""

    async def story() -> None:
        folder, outside = tmp_path / "replicas", tmp_path / "outside"
        outside.mkdir()
        async with workshop(folder) as one:
            (folder / "u").mkdir()
            (folder / "u" / "0").symlink_to(outside)
            attempt = one.launch(Template(command=("true",), files=(File(path="x"),)), uid="u")
            told = await one.heard(NotLaunched, attempt)
            assert "not a directory" in told.process.reason or "symbolic" in told.process.reason
            (folder / "v").symlink_to(outside)
            attempt = one.launch(command("true"), uid="v")
            await one.heard(NotLaunched, attempt)
            assert list(outside.iterdir()) == []
            # Nor is anything found there.
            assert (await one.inventory()).items == ()

    play(story())


@pytest.mark.root
def test_work_runs_as_its_user(tmp_path: Path) -> None:
    """In a directory of its own, without the agent's groups, out of reach of the shim's files."""
    if os.geteuid() != 0:
        pytest.skip("only root can start work as another user")
    nobody = pwd.getpwnam("nobody")

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            script = "id -u; id -G; cat f; touch made && echo made; cat ../state; ls ..; kill -9 1"
            template = Template(
                command=("sh", "-c", script),
                user="nobody",
                files=(File(path="f", content="mine\n"),),
            )
            attempt = await one.launched(template)
            await one.heard(Exited, attempt)
            assert one.output(attempt).splitlines() == [
                str(nobody.pw_uid),
                str(nobody.pw_gid),
                "mine",
                "made",
            ]
            owner = (one.path(attempt) / "work" / "made").stat().st_uid
            assert owner == nobody.pw_uid

    play(story())


def test_an_exit_is_reported_only_when_it_is_written(tmp_path: Path) -> None:
    """No end is reported that a power cut could take back; the shim tries again. [INV11]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            script = "while [ ! -e go ]; do sleep 0.01; done; exit 3"
            attempt = await one.launched(command(script))
            obstacle = one.path(attempt) / ".exit.new"
            obstacle.mkdir()
            (one.path(attempt) / "work" / "go").touch()
            await eventually(lambda: not marked(attempt))
            # Once everything is over, a tenth of a second would be plenty to tell of it.
            await asyncio.sleep(0.2)
            assert one.attempts.look(attempt).is_alive
            assert not [told for told in one.told if isinstance(told, Exited)]
            obstacle.rmdir()
            assert (await one.heard(Exited, attempt)).process.exit_code == 3

    play(story())
