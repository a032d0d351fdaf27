"""A shell in which a test types what a page prints, in a folder that is like a fresh checkout."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from tests.free_ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
# What a checkout has that a page needs. The rest, and above all data/, is the test's own.
CHECKOUT = ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", "tools", "src", "examples")
READY = "Ctrl-C stops everything"
START_S, STEP_S, STOP_S = 60.0, 60.0, 60.0


def commands_of(page: str, section: str) -> list[str]:
    """Every command that a section of a page prints, in order."""
    text = (ROOT / page).read_text()
    found = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [line.strip() for line in found.splitlines() if line.startswith("    ")]


class Step(msgspec.Struct, frozen=True):
    """One command: how it begins, and what must be in its output in the end."""

    begins: str
    shows: str = ""
    # What must not be in the output any more.
    hides: str = ""


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


@contextlib.contextmanager
def terminal_in(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal in this folder, which becomes a checkout."""
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


def type_all(terminal: Terminal, typed: Sequence[str], steps: Sequence[Step]) -> None:
    """Type these commands; each has its step, and each step its command."""
    assert len(typed) == len(steps), f"every command has a step here, and back: {typed}"
    for command, step in zip(typed, steps, strict=True):
        assert command.startswith(step.begins), f"{command} stands where {step.begins} should"
        follow(terminal, command, step)
