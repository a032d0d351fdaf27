"""Stories of one agent, told in text: what happens to it, and everything that it does.

Each tests/golden/agent-*.txt is a script. A line that begins with `>` is something that happens;
below it stands what the agent did, with the reading of its clock in milliseconds. Requests are
judged by the real authority. To rewrite the agent's lines:

    HOLDFAST_REWRITE_GOLDEN=1 pytest tests/unit/agent/test_scripts.py

and then read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model import keys
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import (
    EnvVar,
    ExecAction,
    OnDisconnect,
    PreStop,
    Probe,
    Probes,
    RestartPolicy,
    SecretRef,
    TcpAction,
)
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Update
from tests.plane import ADMIN, NODES, REPAIR
from tests.unit.agent.rig import Rig, verdict_text

GOLDEN = Path(__file__).parents[2] / "golden"
SCRIPTS = sorted(path.stem for path in GOLDEN.glob("agent-*.txt"))


# What no line of any script may ever have in it.
CANARY = "canary-5f3a"
ASKS = Probe(tcp=TcpAction(port=8080), period_seconds=1, success_threshold=1, failure_threshold=2)


class Player:
    """Performs the commands of a script."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.replicas: dict[str, Any] = {}

    def bind(self, name: str, restart: str = "Always", disconnect: str = "stop") -> None:
        """A replica is bound to our node; `name` says which workload it is the first of."""
        made = self.rig.bound(
            name, restart=RestartPolicy(restart), on_disconnect=OnDisconnect(disconnect)
        )
        self.replicas[name] = made

    def probing(self, name: str, *kinds: str) -> None:
        """A replica with these probes, each asked every second and believed at the second answer;
        `preStop` and a grace of ten seconds as well."""
        asks = {kind: ASKS for kind in kinds if kind != "preStop"}
        stop = PreStop(exec=ExecAction(command=("bye",))) if "preStop" in kinds else None
        made = self.rig.bound(name, probes=Probes(**asks), pre_stop=stop)
        self.replicas[name] = made

    def sealed(self, name: str, restart: str = "Always") -> None:
        """A replica that needs the key `k` of the Secret `db`."""
        env = (EnvVar(name="P", secret=SecretRef(name="db", key="k")),)
        self.replicas[name] = self.rig.bound(name, env=env, restart=RestartPolicy(restart))

    def secret(self, key: str) -> None:
        """Create the Secret `db` with one key, or give it another one."""
        namespace = next(iter(self.replicas.values())).namespace
        secret = Secret(ObjectMeta(name="db", namespace=namespace), string_data={key: CANARY})
        if self.rig.plane.store.get(keys.key_of(secret)) is None:
            self.rig.plane.create(secret)
        else:
            self.rig.it.yes(ADMIN, Update(secret))

    def probed(self, name: str, kind: str, *message: str) -> None:
        """What came of a probe: ok, or what was wrong."""
        ok = message == ("ok",)
        self.rig.probed(self.of(name), kind, ok, "" if ok else " ".join(message))

    def of(self, name: str) -> str:
        return str(self.replicas[name].name)

    def now(self, name: str) -> Any:
        return self.rig.it.get(self.replicas[name])

    def show(self, name: str) -> None:
        """How the servers see a replica."""
        replica = self.rig.it.get(self.replicas[name])
        if replica is None:
            self.rig.lines.append(f"         = {self.of(name)}: gone")
            return
        status = replica.status
        process = status.process
        why = f", {process.reason}" if process.reason else ""
        self.rig.lines.append(
            f"         = {replica.name}: {status.state.value}, {status.stage.value}, "
            f"restarts {process.restarts}{why}"
        )

    def evict(self, name: str) -> None:
        self.rig.it.stopping(self.now(name), Cause.SCALE_DOWN)

    def mark(self) -> None:
        """controller:nodes marks the node and gives up its work for the moment."""
        mark = self.rig.it.marked()
        for name in self.replicas:
            replica = self.now(name)
            state = replica.status.state
            if state in (State.BOUND, State.RUNNING, State.STOPPING):
                self.rig.it.yes(NODES, self.rig.it.to_unknown(replica, mark))

    def repair(self, name: str, to: str) -> None:
        self.rig.it.yes(REPAIR, self.rig.it.repaired(self.now(name), State(to)))

    def answer(self, kind: str) -> None:
        self.rig.lines.append("         = " + verdict_text(self.rig.answer(kind)))

    def exit(self, name: str, how: str = "0", reason: str = "") -> None:
        """It ends with a code, or by a signal such as -9."""
        code = int(how)
        signal = -code if code < 0 else None
        self.rig.exited(self.of(name), code=code, signal=signal, reason=reason)

    def commands(self) -> dict[str, Callable[..., object]]:
        rig = self.rig
        return {
            "start": rig.start,
            "inventory": rig.look,
            "reboot": rig.reboot,
            "settle": rig.settle,
            "news": rig.push_changes,
            "deliver": rig.deliver,
            "clear": rig.it.cleared,
            "fence": rig.it.fenced,
            "hold": rig.hold,
            "lose": rig.lose,
            "drop": rig.drop,
            "wait": lambda ms: rig.wait(int(ms)),
            "freeze": self._freeze,
            "pass": self._pass,
            "stop": rig.stop,
            "launched": lambda name: rig.launched(self.of(name)),
            "refused": lambda name, reason: rig.refused(self.of(name), reason),
            "exit": self.exit,
            "bind": self.bind,
            "probing": self.probing,
            "probed": self.probed,
            "sealed": self.sealed,
            "secret": self.secret,
            "show": self.show,
            "evict": self.evict,
            "mark": self.mark,
            "repair": self.repair,
            "answer": self.answer,
        }

    def _freeze(self, ms: str) -> None:
        """The agent is paused: time passes and it receives nothing."""
        self.rig.plane.elapsed_ms += int(ms)

    def _pass(self, ms: str) -> None:
        """Time passes and all is well; what the agent does meanwhile is not written down."""
        for _ in range(0, int(ms), 5_000):
            self.rig.wait(5_000)
            self.rig.settle()
        self.rig.lines.clear()

    def play(self, line: str) -> list[str]:
        """Perform one command; what came of it."""
        verb, *arguments = line.removeprefix(">").partition("#")[0].split()
        self.rig.lines.clear()
        self.commands()[verb](*arguments)
        return list(self.rig.lines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_agent_does_what_the_script_says(name: str) -> None:
    """The whole life of a node, read line by line. [H5, H8, C6.4, C7.3, C7.5]"""
    path = GOLDEN / f"{name}.txt"
    text = path.read_text(encoding="utf-8")
    player = Player()
    told: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            told += [line, *player.play(line)]
        elif line.startswith("#") or not line.strip():
            told.append(line)
    made = "\n".join(told) + "\n"
    if os.environ.get("HOLDFAST_REWRITE_GOLDEN"):
        path.write_text(made, encoding="utf-8")
        text = made
    assert made == text
    assert CANARY not in repr(player.rig.trace)


def test_there_is_a_script_for_every_way_a_node_can_fare() -> None:
    """A script that is not found plays nothing."""
    assert len(SCRIPTS) >= 10
