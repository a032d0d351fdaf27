"""The tour of the README, typed as it is printed: once with kubectl, once with holdfast.

Nothing is played here: `make up` runs a plane of six processes, the service answers http, its
process is killed with -9, a node joins with a token, and the plane is stopped and started again in
between.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.free_ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
# What a checkout has that the tour needs. The rest, and above all data/, is the test's own.
CHECKOUT = ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", "tools", "src", "examples")
READY = "Ctrl-C stops everything"
START_S, STEP_S, STOP_S = 60.0, 60.0, 60.0
KUBECTL, HOLDFAST = "kubectl", "holdfast"


def commands(variant: str) -> list[str]:
    """Every command of the tour, in order; of two forms the one that is wanted."""
    text = (ROOT / "README.md").read_text()
    section = text.partition("## The tour\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    forms = [re.split(r"\s+# or: ", line) for line in lines]
    return [form[-1] if variant == HOLDFAST else form[0] for form in forms]


class Step(msgspec.Struct, frozen=True):
    """One command: how it begins, and what must be in its output in the end."""

    begins: str
    shows: str = ""
    # What must not be in the output any more.
    hides: str = ""


TOUR = (
    Step("make up", READY),
    Step("export PATH="),
    Step("export KUBECONFIG="),
    Step("{} get nodes", r"node-1 +Ready[^$]*node-2 +Ready[^$]*node-3 +Ready"),
    Step("{} apply -f examples/hello.yaml", r"workload.holdfast.dev/hello (created|serverside)"),
    Step("{} get workloads,replicas", r"hello +Service +2/2[^$]*hello-0-0 +Running +Serving"),
    Step("{} get replicas -o wide", r"hello-1-0 +Running +Serving.*http=127.0.0.1:\d+"),
    Step("HELLO="),
    Step("curl", "Directory listing"),
    Step("ID="),
    Step("kill -9 "),
    Step("{} get replica hello-0-0", r"hello-0-0 +Running +Serving +node-\d +1 "),
    Step("HELLO="),
    Step("curl", "Directory listing"),
    Step("{} scale workload hello", r"scaled"),
    Step("{} get workload hello", r"hello +Service +3/3"),
    Step("holdfast explain replica hello-2-0", r"default/hello-2-0 is Running"),
    Step("holdfast capacity", r"local-1 +general +cpu"),
    Step("{} apply -f examples/first-job.yaml", r"holdfast.dev/count (created|serverside)"),
    Step("{} get workload count", r"count +Job +6/6"),
    Step("{} logs count-3-0", r"piece 3 of 6"),
    Step("eval ", "The agent of annex works", hides="warning"),
    Step("{} get node annex", r"annex +Ready"),
    Step("make up", READY),
    Step("{} get replicas", r"hello-0-0 +Running +Serving +node-\d +1 [^$]*hello-2-0 +Running"),
    Step("curl", "Directory listing"),
    Step("holdfast status", r"controller +workload +acts[^$]*Everything works"),
    Step("holdfast drain node-1", r"node-1: no work and no reservation is left"),
    Step("holdfast uncordon node-1", r"node-1 uncordoned"),
    Step("{} delete workload hello", r"delet"),
    Step("{} get workloads,replicas", hides="hello"),
)


class Terminal:
    """A shell that stays open, and the processes of others that run in the foreground."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {
            **os.environ,
            "LISTEN": f"127.0.0.1:{free_ports(1)[0]}",
            "PYTHONPATH": str(ROOT / "src"),
        }
        for name in ("KUBECONFIG", "MAKEFLAGS", "DATA", "STORE", "AGENTS"):
            environment.pop(name, None)
        self._environment = environment
        self._exports: list[str] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def type(self, command: str) -> str:
        """Run a command to its end; all that it printed."""
        script = "\n".join([*self._exports, command])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_S,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}: {done.stdout}"
        return done.stdout

    def keep(self, command: str) -> None:
        """A variable for all commands that follow, with the value that it has now."""
        name, _, value = command.removeprefix("export ").partition("=")
        found = self.type(f'printf %s "{value}"')
        assert found, f"{command} sets nothing"
        self._exports = [it for it in self._exports if not it.startswith(f"export {name}=")]
        self._exports.append(f"export {name}={shlex.quote(found)}")

    def run(self, command: str) -> Path:
        """Run a command that goes on, in a terminal of its own; where its output is."""
        name = command.split(maxsplit=1)[0]
        log = self.folder / f"{Path(name).name}.out"
        with log.open("wb") as out:
            script = "\n".join([*self._exports, command])
            self._running[name] = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # As a terminal has it: Ctrl-C goes to all that run in its foreground.
                process_group=0,
            )
        return log

    def press_ctrl_c(self, name: str) -> None:
        """It must end."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(STOP_S)

    def is_running(self, command: str) -> bool:
        return command.split(maxsplit=1)[0] in self._running

    def close(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        for process in self._running.values():
            process.wait(STOP_S)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    for name in CHECKOUT:
        (tmp_path / name).symlink_to(ROOT / name)
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    # What `make install` would have made of this very Python.
    script = bin_folder / "holdfast"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast.cli "$@"\n')
    script.chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    made = Terminal(tmp_path)
    try:
        yield made
    finally:
        made.close()


def follow(terminal: Terminal, command: str, step: Step) -> None:
    """Type a command, and read it again as a person would until it shows what it should."""
    if command.startswith(("make up", "eval ")):
        if terminal.is_running(command):
            terminal.press_ctrl_c(command.split(maxsplit=1)[0])
        log = terminal.run(command)
        eventually(log.read_text, step, START_S)
    elif "=" in command.split(maxsplit=1)[0] or command.startswith("export "):
        terminal.keep(command)
    elif any(it in command for it in (" get ", " status")) or command.startswith("curl"):
        eventually(lambda: terminal.type(f"{command} 2>&1 || true"), step, STEP_S)
    else:
        assert re.search(step.shows, terminal.type(command))


def eventually(look: Callable[[], str], step: Step, timeout_s: float) -> None:
    """Look again until it is as it should be."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        is_hidden = not step.hides or step.hides not in seen
        if re.search(step.shows, seen) and is_hidden:
            return
        assert time.monotonic() < deadline, f"{step} never came true: {seen}"
        time.sleep(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [KUBECTL, pytest.param(HOLDFAST, marks=pytest.mark.long)])
def test_the_tour_of_the_readme_goes_as_printed(variant: str, terminal: Terminal) -> None:
    """[A6, C7.4, H1, H8]"""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: `make system` installs one")
    typed = commands(variant)
    expected = [step.begins.format(variant) for step in TOUR]
    assert len(typed) == len(expected), f"every command has a step here, and back: {typed}"
    for command, begins, step in zip(typed, expected, TOUR, strict=True):
        assert command.startswith(begins), f"{command} stands where {begins} should"
        follow(terminal, command, step)
