"""Logs and commands of real work, by kubectl and by `holdfast`, through either of two servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.host.client import from_kubeconfig
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.plane import Plane
from tests.etcd_cluster import EtcdCluster
from tests.live import kubectls
from tests.live.client_examples import PAGE, examples
from tests.live.kubectls import Binary, Kubectl
from tests.live.part import ROOT
from tests.live.plane_process import workload
from tests.live.process_plane import plane_on_etcd
from tests.live.whole_plane import LONG_FENCE, WholePlane

# The tests that use one plane run in one process, so that it is started once.
pytestmark = pytest.mark.xdist_group("looking-inside")

PATIENCE_S = 60.0
# A line on each stream, then one a moment, for ever.
CHATTY = "echo begin; echo trouble >&2; i=0; while sleep 0.1; do echo line $i; i=$((i+1)); done"
BREAKING = 'echo run; echo "$HOLDFAST_REPLICA" >&2; exec sleep 600'


def _last(minor: int, binaries: tuple[Binary, ...]) -> tuple[Binary, ...]:
    """The oldest that is at least so new, and the newest."""
    fit = tuple(it for it in binaries if it.is_at_least(minor))
    return fit if len(fit) < 2 else (fit[0], fit[-1])


class House:
    """A plane on a loop of its own, with one piece of work of each kind that the tests need."""

    def __init__(self, folder: Path, about: Plane) -> None:
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.plane = self.do(self._make(folder, about))

    def do(self, story: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(story, self._loop).result(PATIENCE_S * 2)

    async def _make(self, folder: Path, about: Plane) -> WholePlane:
        return WholePlane(folder, ("n1",), plane=about, fence=LONG_FENCE)

    def __enter__(self) -> House:
        self.do(self.plane.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.plane.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def run(self, name: str, script: str, **more: Any) -> str:
        """The name of a replica that runs this script."""
        spec = {"command": ["/bin/sh", "-c", script], "resources": {"cpu": "10m"}, **more}
        self.do(self.plane.client.create(workload(name, replicas=1, template=spec)))
        return self.until(name, State.RUNNING).name

    def replica(self, workload: str) -> Replica | None:
        listed = self.do(self.plane.client.list(Replica, "default")).objects
        return next((it for it in listed if it.spec.workload == workload), None)

    def until(self, workload: str, *states: State, restarts: int = 0) -> Replica:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.replica(workload)
            is_so = found is not None and found.status.state in states
            if found is not None and is_so and found.status.process.restarts >= restarts:
                return found
            assert time.monotonic() < deadline, self.do(self.plane.snapshot())
            time.sleep(0.05)

    def end(self, name: str) -> None:
        self.do(self.plane.client.scale(Workload, name, "default", 0))

    def kubeconfig(self, server: int = 1) -> Path:
        return self.folder / f"server-{server}" / "kubeconfig"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with (
        EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster,
        House(tmp_path_factory.mktemp("house"), plane_on_etcd(cluster)) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def chatty(house: House) -> str:
    name = house.run("chatty", CHATTY)
    deadline = time.monotonic() + PATIENCE_S
    while "line 20" not in holdfast(house, "logs", name)[1]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return name


@pytest.fixture(params=kubectls.params(kubectls.ends()))
def kubectl(request: pytest.FixtureRequest, house: House, tmp_path: Path) -> Kubectl:
    return Kubectl(request.param, house.kubeconfig(2), "default", tmp_path)


@pytest.fixture(params=kubectls.params(_last(30, kubectls.binaries())))
def recent(request: pytest.FixtureRequest, house: House, tmp_path: Path) -> Kubectl:
    """A kubectl that runs commands over a WebSocket."""
    return Kubectl(request.param, house.kubeconfig(2), "default", tmp_path)


@pytest.fixture(params=kubectls.params(_last(30, kubectls.binaries())[-1:]))
def newest(request: pytest.FixtureRequest, house: House, tmp_path: Path) -> Kubectl:
    return Kubectl(request.param, house.kubeconfig(1), "default", tmp_path)


def holdfast(house: House, *words: str, given: bytes = b"", server: int = 1) -> tuple[int, str]:
    """Exit code and what was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "KUBECONFIG": str(house.kubeconfig(server)),
        },
        input=given,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, (done.stdout + done.stderr).decode()


@contextlib.contextmanager
def following(kubectl: Kubectl, replica: str) -> Iterator[subprocess.Popen[bytes]]:
    """`kubectl logs -f`, which is killed when it does not end by itself."""
    with subprocess.Popen(
        kubectl.command("logs", "-f", replica), stdout=subprocess.PIPE
    ) as process:
        rescue = threading.Timer(PATIENCE_S, process.kill)
        rescue.start()
        try:
            yield process
        finally:
            rescue.cancel()
            process.kill()


# Logs --------------------------------------------------------------------------------------------


def test_kubectl_logs_reads_by_tail_and_time(kubectl: Kubectl, chatty: str) -> None:
    """With every kubectl, through a server that has nothing to do with the node."""
    whole = kubectl("logs", chatty).splitlines()
    assert whole[:2] == ["begin", "trouble"]
    numbers = [int(line.removeprefix("line ")) for line in whole[2:]]
    assert numbers == list(range(len(numbers)))
    assert len(kubectl("logs", chatty, "--tail=3").splitlines()) == 3
    assert kubectl("logs", chatty, "--tail=0") == ""
    assert kubectl("logs", chatty, "--limit-bytes=3") == "beg"
    recent_lines = kubectl("logs", chatty, "--since=1s").splitlines()
    assert 0 < len(recent_lines) < 15
    stamped = kubectl("logs", chatty, "--timestamps", "-c", "work").splitlines()
    form = re.compile(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z \S.*")
    assert all(form.fullmatch(line) for line in stamped)
    since = stamped[10].partition(" ")[0]
    assert kubectl("logs", chatty, f"--since-time={since[:19]}Z").splitlines()[0] in whole
    assert "is not valid for pod" in kubectl.refused("logs", chatty, "-c", "other")
    assert "not found" in kubectl.refused("logs", "nobody-0-0")
    assert "Running" in kubectl("get", "pods", chatty)


def test_looking_inside_is_in_the_audit(house: House, chatty: str) -> None:
    """Before anything is shown: who, from where, with which certificate; never the words."""
    assert holdfast(house, "exec", chatty, "--", "echo", "hidden-word")[0] == 0
    assert holdfast(house, "logs", chatty, "--tail", "1")[0] == 0
    wanted = {"Exec": "", "ReadLog": ""}
    deadline = time.monotonic() + PATIENCE_S
    while not all(wanted.values()):
        assert time.monotonic() < deadline, wanted
        for verb in wanted:
            code, said = holdfast(house, "audit", "list", "--verb", verb, "-o", "json")
            assert code == 0, said
            found = [line for line in said.splitlines() if chatty in line]
            wanted[verb] = found[0] if found else ""
    for line in wanted.values():
        record = json.loads(line)["said"]
        assert (record["who"], record["source"]) == ("admin", "127.0.0.1")
        assert re.fullmatch(r"certificate [0-9a-f]{20,}", record["credential"])
        assert "hidden-word" not in line
    assert json.loads(wanted["Exec"])["said"]["reason"] == "echo"


def test_a_follower_gets_all_output_until_the_replica_ends(house: House, newest: Kubectl) -> None:
    name = house.run(
        "ending", "trap 'echo goodbye; exit 0' TERM; echo here; while :; do sleep 0.1; done"
    )
    with following(newest, name) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        house.end("ending")
        assert b"goodbye\n" in process.stdout.read()
        assert process.wait(PATIENCE_S) == 0


def test_the_log_of_the_run_before_is_kept(house: House, newest: Kubectl) -> None:
    """`--previous` is the last run, and there is none before the first restart."""
    name = house.run("breaking", BREAKING)
    assert "no previous log" in newest.refused("logs", name, "-p")
    process = house.until("breaking", State.RUNNING).status.process
    os.kill(int(process.id.split("/")[1]), signal.SIGKILL)
    house.until("breaking", State.RUNNING, restarts=1)
    assert newest("logs", name, "--previous").splitlines() == ["run", name]
    house.end("breaking")


def test_what_a_job_said_can_be_read_when_it_is_over(house: House, newest: Kubectl) -> None:
    """Its directory is gone by then; its logs are kept for a while."""
    spec = {"command": ["/bin/sh", "-c", "echo result"], "restart": "Never"}
    house.do(house.plane.client.create(workload("once", type="Job", template=spec)))
    name = house.until("once", State.RELEASED).name
    _until(
        lambda: (
            not (house.folder / "n1" / house.until("once", State.RELEASED).metadata.uid).exists()
        )
    )
    assert newest("logs", name) == "result\n"
    assert newest("logs", "-f", name, "--tail=1") == "result\n"
    assert newest("get", "pod", name, "-o", "jsonpath={.status.phase}") == "Succeeded"
    assert "completed pod" in newest.refused("exec", name, "--", "true")


def test_an_agent_that_is_killed_ends_what_follows_it_with_a_sentence(
    house: House, newest: Kubectl, chatty: str
) -> None:
    """And when it is back, so are its logs."""
    replica = house.replica("chatty")
    assert replica is not None
    part = house.plane.parts["n1"]
    with following(newest, chatty) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begin\n"
        part.signal(signal.SIGKILL)
        said = process.stdout.read()
        assert b"[holdfast: the log ends here: the connection to node n1 broke" in said
        assert process.wait(PATIENCE_S) == 0
    deadline = time.monotonic() + PATIENCE_S
    while newest.run("logs", chatty, "--tail=1").code != 0:
        assert time.monotonic() < deadline
    assert newest("logs", chatty).startswith("begin\n")


# Commands ----------------------------------------------------------------------------------------


def test_kubectl_exec_runs_a_command_and_passes_its_code_on(recent: Kubectl, chatty: str) -> None:
    """Output, errors and exit code arrive as they were."""
    done = recent.run("exec", chatty, "--", "sh", "-c", "echo out; echo err >&2; exit 5")
    assert (done.code, done.out) == (5, "out\n")
    assert "err" in done.err
    done = recent.run("exec", chatty, "--", "sh", "-c", "echo $HOLDFAST_REPLICA; pwd")
    assert done.out.splitlines()[0] == chatty
    assert done.out.splitlines()[1].endswith("/work")
    assert "no such file" in recent.refused("exec", chatty, "--", "/no/such/program")
    given = subprocess.run(
        recent.command("exec", "-i", chatty, "--", "sh", "-c", "tr a-z A-Z; exit 4"),
        input=b"loud\n" * 1_000,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert given.stdout == b"LOUD\n" * 1_000
    assert given.returncode == 4


def test_an_old_kubectl_gets_an_error_that_names_what_it_lacks(
    house: House, tmp_path: Path, chatty: str
) -> None:
    oldest = kubectls.binaries()[:1]
    if not oldest or oldest[0].is_at_least(29):
        pytest.skip("no kubectl that speaks SPDY only")
    kubectl = Kubectl(oldest[0], house.kubeconfig(1), "default", tmp_path)
    assert "exec requires a WebSocket" in kubectl.refused("exec", chatty, "--", "true")


def test_twenty_megabytes_come_through_intact(newest: Kubectl, chatty: str) -> None:
    script = "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end >&2"
    done = newest.run("exec", chatty, "--", "sh", "-c", script)
    assert done.code == 0
    assert done.out == "x" * 20_000_000 + "\n"
    assert done.err.endswith("end\n")


class Terminal:
    """A person at a terminal in which a command runs."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**os.environ, **environment})
        self._seen = b""

    def types(self, text: bytes) -> None:
        os.write(self._fd, text)

    def sees(self, text: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self._seen:
            left_s = max(0.0, deadline - time.monotonic())
            assert select.select([self._fd], [], [], left_s)[0], self._seen
            try:
                self._seen += os.read(self._fd, 65_536)
            except OSError:
                pytest.fail(f"it ended without {text!r}: {self._seen!r}")
        self._seen = self._seen.partition(text)[2]

    def code(self) -> int:
        with contextlib.suppress(OSError):
            while os.read(self._fd, 65_536):
                continue
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _use(terminal: Terminal) -> None:
    terminal.types(b"stty rows 31 cols 99; stty size; tty\r")
    terminal.sees(b"31 99")
    terminal.sees(b"/dev/pts/")
    terminal.types(b"PS1='re''ady>'; sh -c 'echo now; exec cat'\r")
    terminal.sees(b"now\r\n")
    terminal.types(b"\x03")
    terminal.sees(b"ready>")
    terminal.types(b"exit 6\r")
    assert terminal.code() == 6


def test_kubectl_exec_with_a_terminal_is_one(recent: Kubectl, chatty: str) -> None:
    """Keys interrupt what runs there, not kubectl."""
    _use(Terminal(recent.command("exec", "-it", chatty, "--", "/bin/sh")))


def test_holdfast_exec_does_the_same(house: House, chatty: str) -> None:
    words = (sys.executable, "-m", "holdfast.cli", "exec", "-it", chatty, "--", "/bin/sh")
    environment = {"PYTHONPATH": str(ROOT / "src"), "KUBECONFIG": str(house.kubeconfig(2))}
    _use(Terminal(list(words), **environment))
    code, said = holdfast(house, "exec", "-i", chatty, "--", "sh", "-c", "cat; exit 9", given=b"hi")
    assert (code, said) == (9, "hi")
    code, said = holdfast(house, "exec", "nobody-0-0", "--", "true")
    assert code == 1
    assert "not found" in said
    code, said = holdfast(house, "exec", "-t", chatty, "--", "true")
    assert code == 2


def test_holdfast_logs_reads_the_same(house: House, chatty: str) -> None:
    code, said = holdfast(house, "logs", chatty, "--tail", "2", "--timestamps", server=2)
    assert code == 0
    assert len(said.splitlines()) == 2
    assert said.startswith("2")
    code, said = holdfast(house, "logs", chatty, "--since", "yesterday")
    assert code == 2
    code, said = holdfast(house, "logs", chatty, "--previous")
    assert code == 1
    assert "no previous log" in said


def test_a_command_ends_with_its_replica_and_with_its_client(
    house: House, newest: Kubectl, tmp_path: Path
) -> None:
    """Whichever side leaves, nothing stays behind."""
    name = house.run("brief", "exec sleep 1000")
    marks = [f"sleep {1_000_000 + os.getpid() + number}" for number in range(2)]

    def entered(mark: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            newest.command("exec", name, "--", "sh", "-c", f"echo in; {mark}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        _until(lambda: _runs(mark))
        return process

    with entered(marks[0]) as first:
        first.kill()
    _until(lambda: not _runs(marks[0]))
    with entered(marks[1]) as second:
        house.end("brief")
        assert second.wait(PATIENCE_S) != 0
    _until(lambda: not _runs(marks[1]))


def _runs(mark: str) -> bool:
    wanted = mark.encode().replace(b" ", b"\x00")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(wanted):
                return True
    return False


def _until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Who may -----------------------------------------------------------------------------------------


def test_only_people_of_the_tenant_look_inside(house: House, chatty: str) -> None:
    """Neither another tenant nor a component nor another node's agent."""
    access = from_kubeconfig(house.kubeconfig(1))
    authority = CertificateAuthority.open(house.folder / "pki")
    base = "/api/v1/namespaces/default/pods"
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
    }

    async def codes(name: str, *groups: str) -> list[int]:
        issued = authority.issue(name, groups=groups)
        context = _context(access.ca, issued.certificate + issued.key, house.folder)
        connector = aiohttp.TCPConnector(ssl=context)
        found = []
        async with aiohttp.ClientSession(access.servers[0], connector=connector) as session:
            for path, headers in (
                (f"{base}/{chatty}/log", {}),
                (f"{base}/{chatty}/exec?command=true&stdout=1", upgrade),
                ("/apis/holdfast.dev/v1/nodes/n1/summons", {}),
                ("/apis/holdfast.dev/v1/nodes/n1/visits/0", upgrade),
            ):
                async with session.get(path, headers=headers) as response:
                    found.append(response.status)
        return found

    assert house.do(codes("ada", "tenant:default")) == [200, 101, 403, 403]
    assert house.do(codes("eve", "tenant:other")) == [403, 403, 403, 403]
    assert house.do(codes("system:controller:workload")) == [403, 403, 403, 403]
    assert house.do(codes("system:node:n2")) == [403, 403, 403, 403]


def _context(ca: bytes, pem: bytes, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.decode())
    path = folder / "client.pem"
    path.write_bytes(pem)
    context.load_cert_chain(path)
    return context


def test_can_i_knows_of_logs_and_commands(newest: Kubectl) -> None:
    for verb, kind, part, answer in (
        ("get", "pods", "log", "yes"),
        ("create", "pods", "exec", "yes"),
        ("get", "replicas", "log", "yes"),
        ("create", "pods", "log", "no - pods/log does not support the verb 'create'"),
    ):
        asked = newest.run("auth", "can-i", verb, kind, f"--subresource={part}")
        assert asked.out.strip() == answer


def test_a_pod_shows_its_replica(newest: Kubectl, chatty: str) -> None:
    pod = newest.get("pod", chatty)
    assert (pod["kind"], pod["apiVersion"]) == ("Pod", "v1")
    assert pod["status"]["phase"] == "Running"
    assert pod["spec"]["nodeName"] == "n1"
    assert [it["name"] for it in pod["spec"]["containers"]] == ["work"]
    assert "env" not in json.dumps(pod["spec"])
    said = newest.refused("delete", "pod", chatty)
    assert "not allow" in said or "MethodNotAllowed" in said


# Programs ----------------------------------------------------------------------------------------


def test_every_example_of_the_client_page_runs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply, wait, watch, logs, exec, errors; each example rests on those before it."""
    monkeypatch.setenv("KUBECONFIG", str(house.kubeconfig(1)))
    monkeypatch.delenv("HOLDFAST_KUBECONFIG", raising=False)
    found = examples()
    assert len(found) >= 9
    names: dict[str, Any] = {"__name__": "examples"}
    for line, text in found:
        # The line numbers of a failure are those of the page.
        exec(compile("\n" * line + text, str(PAGE), "exec"), names)
    assert house.replica("hello") is None
