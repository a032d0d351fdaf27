"""Real work is asked how it is: by http, tcp and commands, which never outlive their time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Attempt, Check, Launched, Probed, RunProbe
from holdfast.host.runtime.shim_binary import ISOLATIONS
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.template import EnvVar, ExecAction, HttpAction, Port, TcpAction, Template
from tests.free_ports import free_ports
from tests.patience import PATIENCE_S
from tests.workshop import Workshop, command, eventually, is_running, play, workshop

HTTP = """
import http.server, os
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        code = int(self.path.rpartition("/")[2] or 200)
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "http://192.0.2.1/")
        self.end_headers()
        self.wfile.write(b"x" * 100_000)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT_WEB"])), Answers).serve_forever()
"""


async def ask(one: Workshop, probe: RunProbe) -> Probed:
    """The answer to one question."""
    one.told = [told for told in one.told if not isinstance(told, Probed)]
    one.do(probe)
    answer: Probed = await one.heard(Probed, probe.attempt)
    return answer


async def until_ok(one: Workshop, probe: RunProbe) -> None:
    """Ask again and again, as an agent does."""
    async with asyncio.timeout(PATIENCE_S):
        while not (await ask(one, probe)).ok:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def sh(script: str) -> ExecAction:
    return ExecAction(command=("sh", "-c", script))


def exec_probe(attempt: Attempt, script: str, timeout_ms: int = 5_000) -> RunProbe:
    return RunProbe(attempt, Check.LIVENESS, sh(script), timeout_ms)


@pytest.mark.parametrize(
    "code, ok", [(200, True), (204, True), (302, True), (404, False), (503, False)]
)
def test_http_is_good_from_200_to_399_and_follows_nothing(
    code: int, ok: bool, tmp_path: Path
) -> None:
    """A redirect leads to an address without a server: it is not followed. [H3]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            template = Template(command=("python3", "-c", HTTP), ports=(Port(name="web"),))
            attempt = await one.launched(template)
            process = (await one.heard(Launched, attempt)).process
            port = int(process.addresses["web"].rpartition(":")[2])
            tcp = RunProbe(attempt, Check.STARTUP, TcpAction(port=port), 1_000)
            await until_ok(one, tcp)
            action = HttpAction(port=port, path=f"/{code}")
            answer = await ask(one, RunProbe(attempt, Check.READINESS, action, 2_000))
            assert answer == Probed(
                attempt, Check.READINESS, ok, "" if ok else f"http: status {code}"
            )

    play(story())


@pytest.mark.parametrize(
    "answer, says",
    [
        (b"", "the answer is not HTTP"),
        (b"SSH-2.0-x\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 2000 no\r\n", "the answer is not HTTP"),
        (b"H" * 100_000, "the status line is too long"),
        (None, "no answer within 300 ms"),
    ],
)
def test_a_hostile_server_is_a_failed_probe(
    answer: bytes | None, says: str, tmp_path: Path
) -> None:
    """[H3]"""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if answer is None:
                await reader.read()
            writer.write(answer or b"")
        finally:
            writer.close()

    async def story() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("sleep 60"))
            probe = RunProbe(attempt, Check.READINESS, HttpAction(port=port), 300)
            told = await ask(one, probe)
            assert not told.ok
            assert says in told.message

    play(story())


def test_no_listener_and_no_work_are_failed_probes(tmp_path: Path) -> None:
    """[H3]"""

    async def story() -> None:
        (port,) = free_ports(1)
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("sleep 60"))
            for action in (HttpAction(port=port), TcpAction(port=port)):
                told = await ask(one, RunProbe(attempt, Check.READINESS, action, 1_000))
                assert "connection refused" in told.message
            nobody = Attempt("nobody", 0)
            told = await ask(one, RunProbe(nobody, Check.READINESS, TcpAction(port=port), 1_000))
            assert told.message == "the work has ended"

    play(story())


def isolations() -> list[str]:
    return list(ISOLATIONS)


async def beside(one: Workshop) -> Attempt:
    """Work with variables of its own."""
    template = Template(
        command=("sh", "-c", "echo ready; exec sleep 60"),
        env=(EnvVar(name="MINE", value="yes"),),
        working_dir="inner",
    )
    attempt = await one.launched(template)
    await one.prints(attempt)
    return attempt


@pytest.mark.parametrize("isolation", isolations())
def test_a_command_finds_itself_beside_the_work(isolation: str, tmp_path: Path) -> None:
    """Same variables, directory and processes; nothing of the agent's."""

    async def story() -> None:
        try:
            async with workshop(tmp_path / "replicas", isolation) as one:
                attempt = await beside(one)
                script = (
                    '[ "$MINE" = yes ] || exit 2; [ "${PWD##*/}" = inner ] || exit 3; '
                    "[ $(ls /proc/self/fd | wc -l) = 4 ] || exit 4; "
                    "pgrep -x sleep >/dev/null || exit 5; kill -0 $(pgrep -nx sleep) || exit 6"
                )
                told = await ask(one, exec_probe(attempt, script))
                assert told.ok, told.message
                told = await ask(
                    one, exec_probe(attempt, "echo so  it; echo is; echo err >&2; exit 7")
                )
                assert told.message == "exec: exit code 7: so it is err"
                told = await ask(one, exec_probe(attempt, "kill -9 $$"))
                assert told.message == "exec: signal 9"
                action = ExecAction(command=("no-such-program",))
                told = await ask(one, RunProbe(attempt, Check.LIVENESS, action, 1_000))
                assert told.message == "exec: the command cannot be run: no such file or directory"
        except Unavailable:
            pytest.skip(f"{isolation} cannot be had here")

    play(story())


@pytest.mark.parametrize("isolation", isolations())
def test_a_command_is_killed_at_its_timeout_with_everything_it_started(
    isolation: str, tmp_path: Path
) -> None:
    """Children, daemons in sessions of their own, and whatever ignores signals; the work itself is
    not touched. [H3]"""

    async def story() -> None:
        try:
            async with workshop(tmp_path / "replicas", isolation) as one:
                attempt = await beside(one)
                script = (
                    "trap '' TERM HUP; sleep 4711 & setsid sleep 4711 & "
                    "(setsid sh -c 'sleep 4711 & sleep 4711' &) ; sleep 4711"
                )
                told = await ask(one, exec_probe(attempt, script, timeout_ms=500))
                assert told.message == "exec: timed out after 500 ms"
                assert sleepers(attempt) == []
                # A command that ends takes along what it left in the background.
                told = await ask(one, exec_probe(attempt, "setsid sleep 4711 & exit 0"))
                assert told.ok
                assert sleepers(attempt) == []
                seen = one.attempts.look(attempt)
                assert seen.state is not None
                assert is_running(seen.state.work.pid)
        except Unavailable:
            pytest.skip(f"{isolation} cannot be had here")

    play(story())


def sleepers(attempt: Attempt) -> list[str]:
    """What still runs of the commands of this attempt's probes."""
    mark = f"HOLDFAST_ATTEMPT={attempt.uid}/{attempt.number}".encode()
    found = []
    for name in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            variables = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"4711" in words and mark in variables:
            found.append(name)
    return found


@pytest.mark.parametrize("isolation", isolations())
def test_a_command_does_not_outlive_the_work(isolation: str, tmp_path: Path) -> None:
    """What runs beside the work is stopped with it: it, too, must be gone by the fence. [INV2]"""

    async def story() -> None:
        try:
            async with workshop(tmp_path / "replicas", isolation) as one:
                attempt = await one.launched(command("sleep 60"), within_ms=1_500, grace_ms=100)
                one.do(exec_probe(attempt, "sleep 4711", timeout_ms=60_000))
                await eventually(lambda: bool(sleepers(attempt)))
                told = await one.heard(Probed, attempt)
                assert not told.ok
                await eventually(lambda: not sleepers(attempt))
        except Unavailable:
            pytest.skip(f"{isolation} cannot be had here")

    play(story())


def test_a_command_that_never_stops_talking_is_bounded(tmp_path: Path) -> None:
    """[H3]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await beside(one)
            told = await ask(one, exec_probe(attempt, "yes 4711", timeout_ms=700))
            assert told.message == "exec: timed out after 700 ms"
            told = await ask(one, exec_probe(attempt, "yes | head -c 3000000; exit 1"))
            assert told.message.startswith("exec: exit code 1: y y")
            assert len(told.message) < 2_000

    play(story())


@pytest.mark.root
def test_a_command_runs_as_the_user_of_the_work(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start work as another user")

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            template = Template(command=("sleep", "60"), user="nobody")
            attempt = await one.launched(template)
            script = '[ "$(id -un)" = nobody ] || exit 2; touch made || exit 3; ! cat ../state'
            told = await ask(one, exec_probe(attempt, script))
            assert told.ok, told.message

    play(story())


def test_an_adopted_replica_is_asked_as_well(tmp_path: Path) -> None:
    """The agent that has the question is not the one that started the work. [H3]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", leaves_work=True) as one:
            attempt = await beside(one)
        async with workshop(tmp_path / "replicas") as two:
            await two.inventory()
            script = '[ "$MINE" = yes ] && [ "${PWD##*/}" = inner ]'
            told = await ask(two, exec_probe(attempt, script))
            assert told.ok, told.message

    play(story())
