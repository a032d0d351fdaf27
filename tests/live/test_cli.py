"""The `holdfast` command against a real server: what it prints and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from holdfast import __version__
from holdfast.cli.main import main
from tests.live.part import ROOT
from tests.live.plane_process import PlaneProcess
from tests.patience import PATIENCE_S

# The tests that use one plane run in one process, so that it is started once.
pytestmark = pytest.mark.xdist_group("cli")

MIXED = """\
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {name: good}
spec: {replicas: 1, template: {command: [sleep, "60"]}}
---
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {name: typo}
spec: {replicaz: 1, template: {command: [sleep, "60"]}}
---
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {name: wrong}
spec: {replicas: -1, template: {command: [sleep, "60"]}}
"""
GOOD = MIXED.partition("---")[0]


class Shell:
    """Runs the command with the kubeconfig of one plane."""

    def __init__(self, plane: PlaneProcess, folder: Path) -> None:
        self.plane = plane
        self._folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "KUBECONFIG": str(plane.data / "kubeconfig"),
        }

    def spawn(self, line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *line.split()],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, line: str, given: str = "") -> tuple[int, str, str]:
        """Exit code, output and complaints."""
        process = self.spawn(line)
        out, err = process.communicate(given, timeout=60)
        assert "Traceback" not in err
        return process.returncode, out, err

    def good(self, line: str, given: str = "") -> str:
        code, out, err = self(line, given)
        assert code == 0, f"holdfast {line}: {err}"
        return out


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneProcess]:
    process = PlaneProcess(tmp_path_factory.mktemp("cli") / "data")
    asyncio.run(process.start())
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def shell(plane: PlaneProcess, tmp_path: Path) -> Shell:
    return Shell(plane, tmp_path)


def test_a_bad_document_is_named_by_file_place_field_value_and_rule(
    shell: Shell, tmp_path: Path
) -> None:
    """[B4]"""
    (tmp_path / "mixed.yaml").write_text(MIXED)
    code, out, err = shell("apply -f mixed.yaml")
    assert code == 1
    assert out == "workload.holdfast.dev/good created\n"
    typo, wrong = err.splitlines()
    assert typo.startswith("holdfast: mixed.yaml, document 2 at line 5 (Workload typo): ")
    assert "replicaz" in typo
    assert wrong.startswith("holdfast: mixed.yaml, document 3 at line 10 (Workload wrong): ")
    assert "spec.replicas: -1: must be from 0" in wrong


def test_an_apply_says_what_it_changed(shell: Shell) -> None:
    document = GOOD.replace("good", "stated")
    assert shell.good("apply -f - --dry-run", document).endswith("stated created (dry run)\n")
    assert shell.good("apply -f -", document).endswith("stated created\n")
    assert shell.good("apply -f -", document).endswith("stated unchanged\n")
    more = document.replace("replicas: 1", "replicas: 2")
    assert shell.good("apply -f -", more).endswith("stated configured\n")
    code, _, err = shell("apply -f - --manager other", document)
    assert code == 1
    assert "holdfast" in err
    assert shell.good("apply -f - --manager other --force", document).endswith("configured\n")


def test_what_the_server_warns_of_is_shown(shell: Shell) -> None:
    document = GOOD.replace("good", "slow").replace("template: {", "template: {graceSeconds: 60, ")
    code, out, err = shell("apply -f -", document)
    assert (code, out) == (0, "workload.holdfast.dev/slow created\n")
    assert err.startswith(
        "Warning: standard input, document 1 at line 1 (Workload slow): spec.template"
    )
    assert "graceSeconds: a node that is cut off gives the work 10 s to stop, not 60" in err
    document = GOOD.replace("good", "tuned").replace("replicas: 1", "latencyTargetMs: 50")
    assert document != GOOD.replace("good", "tuned")
    code, _, err = shell("apply -f -", document)
    assert "spec.latencyTargetMs has no effect yet" in err
    said = json.loads(shell.good("get wl tuned -o json"))["status"]["conditions"]
    assert [it["reason"] for it in said if it["type"] == "NoEffect"] == ["NotImplemented"]


def test_all_forms_show_the_same_object(shell: Shell) -> None:
    shell.good("apply -f -", GOOD.replace("good", "shown").replace("replicas: 1", "replicas: 2"))
    whole = json.loads(shell.good("get wl shown -o json"))
    assert yaml.safe_load(shell.good("get wl shown -o yaml")) == whole
    assert whole["spec"]["replicas"] == 2
    assert shell.good("get wl/shown -o name") == "workload.holdfast.dev/shown\n"
    assert shell.good("get wl shown -o value=spec.replicas") == "2\n"
    assert shell.good("get wl -A").startswith("NAMESPACE   NAME")
    heading, *rows = shell.good("get wl --field-selector metadata.name=shown -o wide").splitlines()
    assert "LAST ERROR" in heading
    assert [row.split()[:2] for row in rows] == [["shown", "Service"]]
    code, out, err = shell("get wl missing")
    assert (code, out) == (1, "")
    assert 'workloads.holdfast.dev "missing" not found' in err
    code, out, err = shell("get quotas -n default")
    assert (code, out, err) == (0, "", "No quotas in namespace default.\n")


def test_a_watch_shows_changes_waits_for_a_server_and_ends_with_ctrl_c(
    shell: Shell, tmp_path: Path
) -> None:
    """[C8]"""
    plane = PlaneProcess(tmp_path / "data")
    asyncio.run(plane.start())
    own = Shell(plane, tmp_path)
    watch = own.spawn("get wl -w")
    assert watch.stdout is not None
    assert watch.stderr is not None
    try:
        assert watch.stderr.readline() == "No workloads in namespace default.\n"
        own.good("apply -f -", GOOD)
        assert watch.stdout.readline().split()[:2] == ["NAME", "TYPE"]
        assert watch.stdout.readline().split()[0] == "good"
        plane.kill()
        assert "waiting for it to come back" in watch.stderr.readline()
        asyncio.run(plane.start())
        own.good("scale wl good --replicas 4")
        # A server that has just started knows no history, so what is there may be printed again.
        assert any("0/4" in line for line in iter(watch.stdout.readline, ""))
        watch.send_signal(signal.SIGINT)
        assert watch.wait(PATIENCE_S) == 130
        assert "Traceback" not in watch.stderr.read()
    finally:
        watch.kill()
        watch.communicate()
        plane.kill()


def test_tokens_are_made_listed_and_taken_back(shell: Shell) -> None:
    code, out, err = shell("token create --node web-1 --ttl 90s")
    assert code == 0
    # One line, so that options written behind it are those of the agent.
    (line,) = out.splitlines()
    told, command = line.split(" | ")
    *said, text = shlex.split(told)
    assert said == ["printf", "%s\\n"]
    agent = ["holdfast", "agent", "--server", shell.plane.url, "--name", "web-1"]
    assert shlex.split(command) == [*agent, "--token-file", "-"]
    assert "within 90s" in err
    name, secret, _ = text.split(".")
    assert shell.good("token create --any -q").startswith("join-")
    listed = shell.good("token list")
    assert secret not in listed
    assert [it.split()[-1] for it in listed.splitlines()[1:]] == ["unused", "unused"]
    shell.good(f"token revoke {name}")
    assert f"{name}   web-1" in shell.good("token list")
    assert "revoked" in shell.good("token list")
    assert shell("token revoke join-nix")[0] == 1
    assert shell("token create --node a --ttl 99d")[0] == 1
    assert shell("token create --node a --ttl soon")[0] == 2


class Hand:
    """Runs the command in this process, which loads it once."""

    def __init__(self, plane: PlaneProcess, capture: pytest.CaptureFixture[str]) -> None:
        self._capture, self._admin = capture, plane.data / "kubeconfig"

    def __call__(self, line: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
        code = main([*line.split(), "--kubeconfig", str(kubeconfig or self._admin)])
        return code, *self._capture.readouterr()

    def good(self, line: str, kubeconfig: Path | None = None) -> str:
        code, out, err = self(line, kubeconfig)
        assert code == 0, f"holdfast {line}: {err}"
        return out


def test_people_are_let_in_by_token_and_out_again(
    plane: PlaneProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file for each; what it holds is shown nowhere else."""
    run, mine = Hand(plane, capsys), tmp_path / "ann.kubeconfig"
    code, out, err = run(f"token create --user ann --tenant default --write {mine}")
    assert (code, out) == (0, f"{mine} authenticates its bearer as ann\n")
    assert "The token authenticates its bearer as ann until 2" in err
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    text = yaml.safe_load(mine.read_text())["users"][0]["user"]["token"]
    _, name, secret = text.split(".")
    run.good("get wl", mine)
    assert run("get nodes", mine)[0] == 1
    assert run("token create --user root --group system:masters", mine)[0] == 1
    listed = run.good("token list")
    assert [name, "ann", "Bearer", "tenant:default"] in [
        it.split()[:4] for it in listed.split("\n")
    ]
    whole = listed + run.good(f"get tokens -n holdfast-system {name} -o yaml")
    assert secret not in whole
    run.good(f"token revoke {name}")
    code, _, err = run("get wl", mine)
    assert (code, "the bearer token is not valid here" in err) == (1, True)
    bare = run.good("token create --user ann --tenant default --ttl 1h -q").strip()
    mine.write_text(mine.read_text().replace(text, bare))
    run.good("get wl", mine)
    assert run.good("user revoke ann --reason left").startswith("user ann: all certificates")
    assert run("get wl", mine)[0] == 1
    assert "left" in run.good("get revocations")
    # What is issued later counts again.
    again = run.good("token create --user ann --tenant default -q").strip()
    mine.write_text(mine.read_text().replace(bare, again))
    run.good("get wl", mine)
    code, _, err = run("user revoke admin")
    assert (code, "you are admin: this locks you out" in err) == (2, True)
    code, out, err = run("node revoke web-9")
    assert (code, out) == (0, "node web-9: all certificates issued until now are revoked\n")
    assert err.startswith("There is no node web-9")


def test_a_server_that_is_not_there_ends_a_command_with_3(tmp_path: Path, shell: Shell) -> None:
    config = (shell.plane.data / "kubeconfig").read_text().replace(str(shell.plane.port), "1")
    (tmp_path / "config").write_text(config)
    for line in ("get nodes", "apply -f -", "scale wl a --replicas 1", "delete wl a"):
        code, out, err = shell(f"{line} --kubeconfig config", GOOD)
        assert (code, out) == (3, ""), line
        assert "https://127.0.0.1:1: Connection refused" in err
    code, out, err = shell("version --kubeconfig config")
    assert (code, out) == (3, f"client {__version__}\n")
    assert shell.good("version").startswith(f"client {__version__}\nserver {__version__} (")


def test_a_reader_who_has_seen_enough_is_no_error(shell: Shell) -> None:
    process = shell.spawn("get wl -A -o yaml")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()
