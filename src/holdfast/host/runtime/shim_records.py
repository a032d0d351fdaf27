"""The files that a shim writes: `state` when its work starts, `exit` when everything has ended.

Read by `attempts` and `supervisor`. Both are lines of a key and a value, and are whole or absent. A
process is named by boot, pid and start time, so that a reused pid is never taken for it.
"""

from __future__ import annotations

import os
import re

import msgspec

from holdfast.agent.runtime_protocol import DEADLINE_PASSED
from holdfast.model.kinds.replica import Process
from holdfast.model.time import timestamp

STATE, EXIT = "state", "exit"
# The protocol of our own shims. Work outlives its agent, so an agent meets shims of the version
# before and, after a rollback, of the next one. Shims without one are older than the number.
PROTOCOL, UNNAMED_PROTOCOL = 2, 1
RECORD_BYTES_MAX = 4_096
# Reasons for the end of an attempt, beside those of shim.c.
SHIM_DIED, REBOOTED, NOT_STARTED = "ShimDied", "Rebooted", "NotStarted"

_IDENTITY = re.compile(r"([0-9]{1,10})/([0-9]{1,20})", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,15}", re.ASCII)


class ProcessIdentity(msgspec.Struct, frozen=True, gc=False):
    """A process of one boot: its pid, and when it started in ticks since that boot."""

    pid: int
    start: int

    def name(self, boot: str) -> str:
        """Its name in objects."""
        return f"{boot}/{self.pid}/{self.start}"


class ShimState(msgspec.Struct, frozen=True, gc=False):
    """A shim that started its work."""

    boot: str
    shim: ProcessIdentity
    work: ProcessIdentity
    isolation: str
    started_ms: int
    protocol: int = UNNAMED_PROTOCOL

    @property
    def is_neighbour(self) -> bool:
        """Whether its version is one that this version works with."""
        return abs(self.protocol - PROTOCOL) <= 1


class Exit(msgspec.Struct, frozen=True, gc=False):
    """How an attempt ended. Without a value `code` is -1, `signal` and `error` are 0.

    The agent adds `oom`, since it can read the kernel's count.
    """

    reason: str
    is_started: int = 0
    code: int = -1
    signal: int = 0
    is_killed: int = 0
    boot: str = ""
    work: ProcessIdentity = ProcessIdentity(0, 0)
    started_ms: int = 0
    ended_ms: int = 0
    error: int = 0
    step: str = ""
    oom: int = 0


def _fields(text: str) -> dict[str, str]:
    """The lines of a record, which ends with `end`. Raises ValueError for anything else."""
    lines = text.splitlines()
    if not lines or lines[-1] != "end":
        raise ValueError("the record is not whole")
    return dict(line.partition(" ")[::2] for line in lines[:-1])


def _identity(text: str) -> ProcessIdentity:
    found = _IDENTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"not a process: {text!r}")
    return ProcessIdentity(int(found[1]), int(found[2]))


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"not a number: {text!r}")
    return int(text)


def parse_state(text: str) -> ShimState:
    """Raises ValueError or KeyError for what no shim wrote."""
    found = _fields(text)
    return ShimState(
        found["boot"],
        _identity(found["shim"]),
        _identity(found["work"]),
        found["isolation"],
        _number(found["started_ms"]),
        _number(found.get("protocol", str(UNNAMED_PROTOCOL))),
    )


def parse_exit(text: str) -> Exit:
    """Raises ValueError or KeyError for what no shim wrote."""
    found = _fields(text)
    numbers = {
        name: _number(found[name])
        for name in ("is_started", "code", "signal", "is_killed", "started_ms", "ended_ms", "error")
    }
    return Exit(
        reason=found["reason"],
        boot=found["boot"],
        work=_identity(found["work"]),
        step=found["step"],
        oom=_number(found.get("oom", "0")),
        **numbers,
    )


def exit_text(of: Exit) -> str:
    """The record as a shim would have written it, for a shim that died without one."""
    fields = {**msgspec.structs.asdict(of), "work": f"{of.work.pid}/{of.work.start}"}
    return "".join(f"{name} {value}\n" for name, value in fields.items()) + "end\n"


def running_process(of: ShimState, limits: dict[str, str], addresses: dict[str, str]) -> Process:
    """The process as its replica shows it while it runs."""
    return Process(
        id=of.work.name(of.boot),
        started_at=timestamp(of.started_ms),
        limits={**limits, "isolation": of.isolation},
        addresses=addresses,
    )


def ended_process(of: Exit) -> Process:
    """The process as its replica shows it when it has ended."""
    return Process(
        id=of.work.name(of.boot) if of.is_started else "",
        started_at=timestamp(of.started_ms) if of.is_started else None,
        exit_code=of.code if of.code >= 0 else None,
        signal=of.signal or None,
        oom_killed=bool(of.oom),
        reason=of.reason if of.reason == DEADLINE_PASSED else _reason(of),
    )


_STEPS = {
    "directory": "its working directory cannot be entered",
    "user": "it cannot run as its user",
    "log": "its logs cannot be opened",
    "arguments": "its arguments cannot be passed to it",
    "group": "its resource limits cannot be applied",
    "namespace": "it cannot be isolated from other work",
    "tmp": "it cannot have a /tmp of its own",
    "hide": "the node's own files cannot be hidden from it",
}


def _reason(of: Exit) -> str:
    """The shim's reason, with a sentence for people when the work was never started."""
    if of.is_started:
        return of.reason
    why = os.strerror(of.error).lower() if of.error else "the shim gave no reason"
    return f"{of.reason}: {_STEPS.get(of.step, 'the command cannot be run')}: {why}"
