"""Every kubectl on this machine, and commands run with one of them against a real server."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
# Where tools/system-packages unpacks Debian's client when another package owns its path.
UNPACKED = ROOT / ".venv" / "kubernetes-client" / "usr" / "bin" / "kubectl"
TIMEOUT_S = 60.0


class Binary(msgspec.Struct, frozen=True, order=True):
    """One kubectl, ordered by its version."""

    version: tuple[int, int, str]
    path: str

    @property
    def label(self) -> str:
        return self.version[2]

    def is_at_least(self, minor: int) -> bool:
        return self.version[:2] >= (1, minor)


def _candidates() -> Iterator[str]:
    yield from filter(None, os.environ.get("HOLDFAST_KUBECTL", "").split(":"))
    if UNPACKED.exists():
        yield str(UNPACKED)
    if shutil.which("dpkg"):
        listed = subprocess.run(["dpkg", "-L", "kubectl"], capture_output=True, text=True).stdout
        yield from (line for line in listed.splitlines() if re.search(r"/kubectl\.1\.\d+$", line))
    found = shutil.which("kubectl")
    if found:
        yield found


@functools.cache
def binaries() -> tuple[Binary, ...]:
    """Every version once, the oldest first."""
    found: dict[str, Binary] = {}
    for path in _candidates():
        command = [path, "version", "--client", "-o", "json"]
        said = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if said.returncode == 0:
            version = json.loads(said.stdout)["clientVersion"]["gitVersion"]
            major, minor = re.findall(r"\d+", version)[:2]
            found.setdefault(version, Binary((int(major), int(minor), version), path))
    return tuple(sorted(found.values()))


def params(chosen: tuple[Binary, ...]) -> list[Any]:
    """Parameters for a fixture; without any kubectl its tests are skipped with a reason."""
    if chosen:
        return [pytest.param(binary, id=binary.label) for binary in chosen]
    reason = "no kubectl: `make system` installs one, or set HOLDFAST_KUBECTL"
    return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")]


def ends() -> tuple[Binary, ...]:
    """The oldest and the newest."""
    every = binaries()
    return every if len(every) < 2 else (every[0], every[-1])


class Result(msgspec.Struct, frozen=True):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class Kubectl:
    """One kubectl with a namespace of its own."""

    def __init__(self, binary: Binary, kubeconfig: Path, namespace: str, folder: Path) -> None:
        self.binary = binary
        self.namespace = namespace
        self._folder = folder
        cache = folder / "cache"
        self._command = [binary.path, "--kubeconfig", str(kubeconfig), f"--cache-dir={cache}"]
        folder.mkdir(parents=True, exist_ok=True)

    def is_at_least(self, minor: int) -> bool:
        return self.binary.is_at_least(minor)

    def command(self, *arguments: str) -> list[str]:
        return [*self._command, "--namespace", self.namespace, *arguments]

    def run(self, *arguments: str, given: Any = None) -> Result:
        """Whatever becomes of it. `given` are documents for `-f -`."""
        done = subprocess.run(
            self.command(*arguments),
            input=json.dumps(given) if given is not None else "",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=self._folder,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def __call__(self, *arguments: str, given: Any = None) -> str:
        """What it printed; it must have gone well."""
        done = self.run(*arguments, given=given)
        assert done.code == 0, f"kubectl {' '.join(arguments)}: {done.err or done.out}"
        return done.out

    def refused(self, *arguments: str, given: Any = None) -> str:
        """What it complained about; it must have failed."""
        done = self.run(*arguments, given=given)
        assert done.code != 0, f"kubectl {' '.join(arguments)} went well: {done.out}"
        return done.err

    def get(self, kind: str, name: str) -> Any:
        return json.loads(self("get", kind, name, "-o", "json"))

    @contextlib.contextmanager
    def following(self, *arguments: str) -> Iterator[Lines]:
        """A command that goes on until it is ended."""
        with subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._folder,
        ) as process:
            try:
                yield Lines(process)
            finally:
                process.kill()


class Lines:
    """What a running command prints, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._stdout = process.stdout
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._stdout:
                self._lines.put(line.rstrip("\n"))

    def until(self, text: str, timeout_s: float = TIMEOUT_S) -> str:
        """The next line that has this text in it."""
        deadline = time.monotonic() + timeout_s
        seen = []
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"no line with {text!r} within {timeout_s} s, only {seen}")
            if text in line:
                return line
            seen.append(line)


def workload(name: str, replicas: int = 1, **metadata: Any) -> dict[str, Any]:
    """A small service."""
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, **metadata},
        "spec": {"replicas": replicas, "template": {"command": ["sleep", "60"]}},
    }


def role(name: str, **metadata: Any) -> dict[str, Any]:
    """An object that no controller holds when it is deleted."""
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Role",
        "metadata": {"name": name, **metadata},
        "rules": [{"resources": ["workloads"], "verbs": ["get"]}],
    }


def listed(*objects: dict[str, Any]) -> dict[str, Any]:
    """Many documents as one."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
