"""Work that is kept apart from others finds all that is its own, in each life of its agent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Check, Exited, NotLaunched, Probed, RunProbe
from holdfast.model.kinds.template import EnvVar, ExecAction, File, Template
from tests.live.test_entering import ran
from tests.live.test_isolation import ACME, SECRET, options_of, targets, victim
from tests.workshop import command, halt, play, workshop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

# Work that goes where /dev/null and its own directory are links of its own making.
ESCAPE = """exec unshare -Urm /bin/sh -c '
cd / && mount -t tmpfs x /dev && ln -s {folder}/key /dev/null &&
mount -t tmpfs x $(dirname $HOLDFAST_DIRECTORY) && ln -s {folder} $HOLDFAST_DIRECTORY &&
echo ready && exec sleep 600'
"""


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory that only root can pass, and not below /tmp, which work does not see."""
    with tempfile.TemporaryDirectory(dir="/var/lib") as name:
        yield Path(name)


def test_work_finds_its_directory_its_files_and_a_tmp_of_its_own(tmp_path: Path) -> None:
    script = (
        'pwd; cat "$HOLDFAST_DIRECTORY/etc/app.txt"; ls -a /tmp /var/tmp /dev/shm | grep -c x;'
        " echo mine > /tmp/x && cat /var/tmp/x; echo home > ~/kept && cat ../kept; touch /x || true"
    )

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            template = Template(
                command=("/bin/sh", "-c", script),
                working_dir="etc",
                env=(EnvVar("COLOUR", "blue"),),
                files=(File(path="etc/app.txt", content="hello\n"),),
            )
            attempt = await one.launched(template, namespace=ACME)
            assert (await one.heard(Exited, attempt)).process.exit_code == 0
            work = one.path(attempt) / "work"
            said = [str(work / "etc"), "hello", "0", "mine", "home"]
            assert one.output(attempt).splitlines() == said
            assert (work / "kept").read_text() == "home\n"
            assert (one.path(attempt).stat().st_mode & 0o777) == 0o700

    play(story())


def test_a_command_beside_work_is_confined_as_the_work_is(tmp_path: Path) -> None:
    """Also in the next life of the agent, which knows it by what lies on disk."""
    script = (
        "id -u; id -G; grep CapBnd /proc/self/status; pwd; cat password; echo;"
        " cat /tmp/scratch.txt; ls $(dirname $PWD); ls {plane}; cat /etc/shadow; true"
    )

    async def story() -> None:
        options = options_of(tmp_path)
        async with workshop(tmp_path / "agent", options=options, leaves_work=True) as one:
            attempt, pid = await victim(one)
            known = targets(one, attempt, pid, tmp_path)
            asked = script.format(plane=known["folders"][0])
            first, _, _ = await ran(one, attempt, asked)
        async with workshop(tmp_path / "agent", options=options) as two:
            await two.inventory()
            again, _, end = await ran(two, attempt, asked)
            work = two.path(attempt) / "work"
            user = str(work.stat().st_uid)
            rights = f"CapBnd:\t{0:016x}"
            assert again.decode().splitlines() == [
                *(user, user, rights, str(work), SECRET, "acme", "work"),
            ]
            assert (first, end.code) == (again, 0)
            two.do(halt(attempt))
            await two.heard(Exited, attempt)

    play(story())


@pytest.mark.parametrize("user", ["root", "0"])
def test_no_template_makes_work_root(tmp_path: Path, user: str) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            template = Template(command=("id",), user=user)
            attempt = one.launch(template, namespace=ACME)
            reason = (await one.heard(NotLaunched, attempt)).process.reason
            assert "must not be root" in reason

    play(story())


def test_one_tenant_s_work_runs_as_the_agent_where_the_operator_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        options = options_of(tmp_path, "--single-tenant")
        async with workshop(tmp_path / "agent", options=options) as one:
            attempt = await one.launched(command("id -u"), namespace=ACME)
            await one.heard(Exited, attempt)
            assert one.output(attempt) == "0\n"

    play(story())


def test_a_node_without_users_runs_the_work_of_one_tenant_at_a_time(tmp_path: Path) -> None:
    """Also if it was bound there when the agent still kept tenants apart. [INV5]"""

    async def story() -> None:
        options = options_of(tmp_path)
        async with workshop(tmp_path / "agent", options=options, leaves_work=True) as one:
            attempt = await one.launched(command("sleep 600"), namespace=ACME)
        options = options_of(tmp_path, "--single-tenant")
        async with workshop(tmp_path / "agent", options=options) as two:
            await two.inventory()
            other = two.launch(command("id"), namespace="rival")
            reason = (await two.heard(NotLaunched, other)).process.reason
            assert reason.endswith("and work of another tenant runs on it")
            own = await two.launched(command("id"), namespace=ACME)
            two.do(halt(attempt))
            for each in (own, attempt):
                await two.heard(Exited, each)
            await two.launched(command("id"), namespace="rival")

    play(story())


def test_a_command_beside_work_follows_no_links_that_the_work_has_put_in_its_way(
    tmp_path: Path, closed: Path
) -> None:
    """Work may make a mount namespace of its own, and the shim, which joins it, is root at first: a
    probe would read a file of root, or stand behind a door that is closed to all others."""
    folder = closed / "open"
    folder.mkdir(mode=0o755)
    for name, mode in (("key", 0o600), ("public", 0o644)):
        (folder / name).write_text(f"the {name} of root\n")
        (folder / name).chmod(mode)

    async def story() -> None:
        async with workshop(tmp_path / "agent", options=options_of(tmp_path)) as one:
            script = ESCAPE.format(folder=folder)
            attempt = await one.launched(command(script), namespace=ACME)
            assert await one.prints(attempt) == ["ready"]
            for words in ("cd /; cat; exit 3", "cat ./public; exit 3"):
                action = ExecAction(command=("/bin/sh", "-c", words))
                one.told.clear()
                one.do(RunProbe(attempt, Check.LIVENESS, action, 60_000))
                message = (await one.heard(Probed, attempt)).message
                assert "of root" not in message
            output, _, end = await ran(one, attempt, "cat ./public")
            assert b"of root" not in output
            assert end.code != 0
            one.do(halt(attempt))
            await one.heard(Exited, attempt)

    play(story())


def test_an_agent_whose_directory_is_reached_by_a_link_runs_work_and_commands(
    tmp_path: Path,
) -> None:
    """The shim follows no links, so it gets the real path of the directory."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")

    async def story() -> None:
        async with workshop(tmp_path / "link" / "agent", options=options_of(tmp_path)) as one:
            attempt = await one.launched(command("pwd; exec sleep 600"), namespace=ACME)
            work = (one.path(attempt) / "work").resolve()
            assert await one.prints(attempt) == [str(work)]
            output, _, end = await ran(one, attempt, "pwd")
            assert (output.decode().strip(), end.code) == (str(work), 0)
            one.do(halt(attempt))
            await one.heard(Exited, attempt)

    play(story())
