"""Counts what really happened, so that a test can demand that everything did."""

from __future__ import annotations

from typing import Any

from holdfast.agent.secrets import SECRET_MISSING
from holdfast.agent.words import OPENING_MS
from holdfast.model.kinds.replica import CRASH_LOOP
from holdfast.model.lifecycle import State
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.table import Opened, Ordered, Refused
from holdfast.sim.worlds.authority.books import Books
from holdfast.sim.worlds.slice.processes import Adopted, ProcessEnded, ProcessStarted

DEMANDED = (
    "started",
    "started again",
    "start refused",
    "adopted",
    "farewell",
    "halted",
    "ended: DeadlinePassed",
    "ended: Exited",
    "ended: Killed",
    "ended: Rebooted",
    "ended: ShimDied",
    "ended: Stopped",
    "told: Succeeded",
    "told: Failed",
    "told: LivenessProbeFailed",
    "told: StartupProbeFailed",
    "told: NotReady",
    "told: CrashLoop",
    "told: SecretMissing",
    "told: out of memory",
    "port opened",
    "port opened late",
    "new life",
)


class Census(Checker):
    """Finds nothing; counts."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.counts: dict[str, int] = {}

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def on_fact(self, world: World, fact: Any) -> None:
        match fact:
            case ProcessStarted(number=number):
                self._count("started again" if number else "started")
            case ProcessEnded(why=why):
                self._count(f"ended: {why}")
            case Ordered(is_farewell=is_farewell):
                self._count("farewell" if is_farewell else "halted")
            case Refused():
                self._count("start refused")
            case Opened(after_ms=after_ms):
                self._count("port opened late" if after_ms > OPENING_MS else "port opened")
            case Adopted():
                self._count("adopted")

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._books.changed("objects/nodes/"):
            is_known = old is not None and new is not None
            if is_known and new.status.incarnation > old.status.incarnation:
                self._count("new life")
        for _, old, new in self._books.changed("objects/replicas/"):
            if new is None:
                continue
            if old is None or old.status.state is not new.status.state:
                self._count(f"told: {new.status.state.value}")
            if old is None or old.status.process != new.status.process:
                self._told(new)

    def _told(self, replica: Any) -> None:
        process = replica.status.process
        for word in ("LivenessProbeFailed", "StartupProbeFailed", "NotReady"):
            if process.reason.startswith(word):
                self._count(f"told: {word}")
        if process.reason.startswith(CRASH_LOOP):
            self._count("told: CrashLoop")
        if process.reason.startswith(SECRET_MISSING):
            self._count("told: SecretMissing")
        if process.oom_killed and replica.status.state is not State.RELEASED:
            self._count("told: out of memory")
