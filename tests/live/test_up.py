"""`holdfast up` as a process: when it or a part of it is killed, stopped or cannot start."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.free_ports import free_ports
from tests.ignoring import below, kept_from_process

ROOT = Path(__file__).resolve().parents[2]
READY = "Ctrl-C stops everything"
START_S, STOP_S = 120.0, 60.0


class Up:
    """One `holdfast up` and what it printed."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.port = free_ports(1)[0]
        self.log = folder / "up.out"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def spawn(self, *options: str) -> subprocess.Popen[bytes]:
        """Below a parent that ignores and blocks signals, as job runners do."""
        options = options or ("--agents=1",)
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                below(*self.command("up", "--data", str(self.data), *self.listen, *options)),
                cwd=self.data.parent,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return self.process

    @property
    def listen(self) -> tuple[str, ...]:
        return ("--listen", f"127.0.0.1:{self.port}")

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        process = self.spawn(*options)
        eventually(lambda: READY in self.said or process.poll() is not None, START_S)
        assert process.poll() is None, self.said
        return process

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "holdfast.cli", *arguments]

    def run(self, *arguments: str) -> tuple[int, str]:
        """Another command on the same plane: its exit code and all that it printed."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.data.parent,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "KUBECONFIG": str(self.data / "kubeconfig"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=START_S,
        )
        return done.returncode, done.stdout

    def parts(self) -> dict[str, int]:
        """The processes of this plane, by what they are."""
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except (OSError, NotADirectoryError):
                continue
            line = b" ".join(words).decode(errors="replace")
            if "holdfast.cli.processes.supervised_child" in line and str(self.data) in line:
                found[
                    words[words.index(b"holdfast.cli.processes.supervised_child") + 2].decode()
                ] = int(folder.name)
        return found

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(STOP_S)


def eventually(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"it did not come true in {timeout_s} s"
        time.sleep(0.1)


def replaced(before: dict[str, int], now: dict[str, int]) -> bool:
    """Whether every part runs as another process. A killed one is listed until it has ended."""
    return set(now) == set(before) and not set(now.values()) & set(before.values())


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_every_part_that_is_killed_comes_back_and_is_reported(up: Up) -> None:
    """[C7.4, C7.5]"""
    up.start()
    before = up.parts()
    assert set(before) == {"serve", "scheduler", "controllers", "agent"}
    for number in before.values():
        os.kill(number, signal.SIGKILL)
    eventually(lambda: replaced(before, up.parts()), START_S)
    for name in ("server", "scheduler", "controllers", "node-1"):
        assert re.search(rf"{name} was killed by SIGKILL after \d+ s; restart in", up.said)
    eventually(lambda: up.run("get", "nodes")[0] == 0, START_S)


@pytest.mark.slow
def test_no_part_outlives_an_up_that_is_killed_and_the_next_one_goes_on(up: Up) -> None:
    """[C7.4, INV11]"""
    process = up.start()
    code, said = up.run("apply", "-f", str(ROOT / "examples" / "hello.yaml"))
    assert code == 0, said
    process.kill()
    process.wait()
    eventually(lambda: not up.parts(), STOP_S)
    up.start()
    code, said = up.run("get", "workload", "hello", "-o", "name")
    assert (code, said) == (0, "workload.holdfast.dev/hello\n")
    assert up.run("delete", "workload", "hello")[0] == 0
    eventually(lambda: "No replicas" in up.run("get", "replicas")[1], START_S)


@pytest.mark.slow
def test_a_second_up_on_the_same_data_is_refused_and_a_stop_is_clean(up: Up) -> None:
    """Also below `nohup`, whose terminal may close, and where SIGINT was ignored."""
    process = up.start()
    assert kept_from_process(process.pid) == {"SIGHUP"}
    assert [kept_from_process(pid) for pid in up.parts().values()] == [set()] * 4
    process.send_signal(signal.SIGHUP)
    code, said = up.run("up", "--data", str(up.data), "--listen", "127.0.0.1:0")
    assert code == 1
    assert f"another `holdfast up` (process {process.pid}) runs on" in said
    process.send_signal(signal.SIGINT)
    assert process.wait(STOP_S) == 0
    assert "Running work continues without the plane for 30 s and has stopped after 42 s" in up.said
    assert "Traceback" not in up.said
    assert up.parts() == {}
    code, said = up.run("get", "nodes")
    assert code == 3
    assert said == (
        f"holdfast: https://127.0.0.1:{up.port}: Connection refused. Start the server, or correct "
        "the address\n"
    )


FIXED = """
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {{name: fixed}}
spec:
  replicas: 2
  template:
    command: [python3, -m, http.server, --bind, 127.0.0.1, "{port}"]
    ports: [{{name: http, port: {port}}}]
    resources: {{cpu: 100m, memory: 32Mi}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_fixed_port_is_given_once_on_all_nodes_of_one_machine(up: Up) -> None:
    """The other replica starts nowhere, and says why. [F2]"""
    up.start("--agents=2")
    port = free_ports(1)[0]
    manifest = up.data.parent / "fixed.yaml"
    manifest.write_text(FIXED.format(port=port))
    assert up.run("apply", "-f", str(manifest))[0] == 0

    def waiting() -> str:
        rows = up.run("get", "replicas")[1].splitlines()
        states = {row.split()[0]: row for row in rows[1:]}
        pending = [name for name, row in states.items() if "Pending" in row]
        running = [name for name, row in states.items() if "Running" in row]
        return pending[0] if len(pending) == len(running) == 1 else ""

    eventually(lambda: waiting() != "", START_S)
    eventually(lambda: "PortNotOffered" in up.run("explain", "replica", waiting())[1], START_S)
    said = up.run("explain", "replica", waiting())[1]
    print(said)
    assert "PortTaken" in said
    assert up.run("delete", "workload", "fixed")[0] == 0
    eventually(lambda: "No replicas" in up.run("get", "replicas")[1], START_S)


def test_a_server_that_cannot_start_ends_up_with_its_own_sentence(up: Up) -> None:
    with socket.create_server(("127.0.0.1", up.port)):
        process = up.spawn()
        assert process.wait(START_S) == 1
    assert f"cannot listen on 127.0.0.1:{up.port}" in up.said
    assert str(up.data / "logs" / "server.log") in up.said
    assert "Traceback" not in up.said
    assert up.parts() == {}
