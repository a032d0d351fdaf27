"""Work that is to be sandboxed is run by the runtime that the operator installed, and by no other.

gVisor is not part of the machines that test this. The runtime here stands in for it: a script named
runsc that takes only the words that gVisor's takes, writes down how it was called, and lets runc do
the work. So these tests show who is called and how, and not what a sandbox protects from.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Attempt, Check, Exited, NotLaunched, Probed, RunProbe
from holdfast.host.runtime.containers import containers
from holdfast.host.runtime.isolation_levels import offered_isolation
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.template import ExecAction, Port, TcpAction
from tests.live.test_isolation import ACME, options_of
from tests.live.test_isolation_containers import Plant, addresses, plant
from tests.workshop import NODE, Workshop, command, halt, play, workshop

__all__ = ["plant"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run containers")

RUNSC = """#!/bin/sh
echo "$@" >> {calls}
for word in "$@"; do
  case "$word" in --keep|--tty) echo "flag provided but not defined: $word" >&2; exit 128;; esac
done
test -e {broken} && exit 1
exec runc "$@"
"""


class Runsc:
    """The stand-in, and how it was called."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path, self.calls, self.broken = (folder / it for it in ("runsc", "calls", "broken"))
        self.path.write_text(RUNSC.format(calls=self.calls, broken=self.broken))
        self.path.chmod(0o755)
        self.calls.touch()

    def verbs(self) -> list[str]:
        lines = [line.split() for line in self.calls.read_text().splitlines()]
        return [next(it for it in words if it in VERBS) for words in lines]


VERBS = ("--version", "run", "state", "exec")


@pytest.fixture
def runsc(tmp_path: Path) -> Runsc:
    return Runsc(tmp_path / "operator")


def test_a_node_offers_sandboxes_only_if_its_runtime_has_run_one(
    plant: Plant, tmp_path: Path, runsc: Runsc
) -> None:
    """Otherwise it offers what it does without, and says why."""
    (tmp_path / "agent").mkdir()
    plain = options_of(tmp_path)
    level, notes = offered_isolation(tmp_path / "agent", NODE, plain)
    assert level is Isolation.CONTAINER
    assert not any("sandbox" in note for note in notes)
    with_it = options_of(tmp_path, "--sandbox-runtime", str(runsc.path))
    assert offered_isolation(tmp_path / "agent", NODE, with_it)[0] is Isolation.SANDBOXED
    assert runsc.verbs() == ["--version", "run"]
    for trouble in (runsc.broken.touch, runsc.path.unlink):
        trouble()
        level, notes = offered_isolation(tmp_path / "agent", NODE, with_it)
        assert level is Isolation.CONTAINER
        assert notes[0].startswith("sandboxes are not available: ")
    assert os.listdir(tmp_path / "agent") == []


def test_a_runtime_is_not_asked_for_a_container_before_it_has_a_bundle(runsc: Runsc) -> None:
    """It would make its directory where the launch is about to, and that would fail."""
    assert not containers.has_begun(os.getpid(), "early", str(runsc.path))
    assert runsc.verbs() == []


def test_work_that_is_to_be_sandboxed_is_run_by_that_runtime_alone(
    plant: Plant, tmp_path: Path, runsc: Runsc
) -> None:
    """With its commands, probes and ports, across lives of the agent; other containers are run by
    runc. A process is not started at all, nor is anything without the runtime.
    """
    more = ("--images", str(plant.image.parent), "--sandbox-runtime", str(runsc.path))
    sandboxed = {"namespace": ACME, "isolation": Isolation.SANDBOXED}
    script = "mkdir /www; httpd -p $PORT_WEB -h /www; echo here; exec sleep 600"

    async def asked(one: Workshop, attempt: Attempt) -> None:
        port = int(addresses(one, attempt)["web"].rpartition(":")[2])
        for action in (ExecAction(("/bin/ls", "/holdfast")), TcpAction(port)):
            one.told.clear()
            one.do(RunProbe(attempt, Check.READINESS, action, 20_000))
            answer = await one.heard(Probed, attempt)
            assert answer.ok, answer.message

    async def story() -> None:
        options = options_of(tmp_path, *more)
        async with workshop(tmp_path / "agent", options=options, leaves_work=True) as one:
            plain = await one.launched(plant.box("sleep 600"), namespace=ACME)
            assert runsc.verbs() == []
            box = plant.box(script, ports=(Port("web"),))
            attempt = await one.launched(box, **sandboxed)
            assert await one.prints(attempt) == ["here"]
            verbs = runsc.verbs()
            assert (verbs[0], verbs.count("run"), "state" in verbs) == ("--version", 1, True)
            held = one.runtime.running_attempt(attempt)
            assert held is not None
            assert held.process.limits["syscalls"] == "the kernel of runsc"
            process = one.launch(command("sleep 600"), **sandboxed)
            reason = (await one.heard(NotLaunched, process)).process.reason
            assert "isolation: sandboxed needs a container" in reason
            one.do(halt(plain))
            await one.heard(Exited, plain)
        async with workshop(tmp_path / "agent", options=options) as two:
            await two.inventory()
            await asked(two, attempt)
            assert runsc.verbs()[-1] == "exec"
            two.do(halt(attempt))
            await two.heard(Exited, attempt)
            runsc.path.unlink()
            lost = two.launch(plant.box("sleep 600"), **sandboxed)
            reason = (await two.heard(NotLaunched, lost)).process.reason
            assert "is not an executable program" in reason

    play(story())
