"""What the agent asks of whatever runs its work, and what that tells the agent.

`host/runtime` performs these with real processes, each held by a shim; the simulator with a process
table. A piece of work is one *attempt* of one replica, named by the replica's uid and a number that
grows with every start in place, so that the end of one attempt is never taken for that of another.

The deadline is held by the shim, not by the agent. It is a reading of the machine's CLOCK_BOOTTIME;
it only moves later, never once it has struck, and is checked before the work is started at all: an
agent may have been paused between its decision and its deed.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.kinds import replica
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.replica import DeviceShare, Process
from holdfast.model.kinds.template import ExecAction, HttpAction, TcpAction, Template

# In `Exited` when the deadline struck while the work ran, in `NotLaunched` when it had passed
# before the start.
DEADLINE_PASSED = replica.DEADLINE_PASSED
# `Process.reason` of an end that somebody asked for.
STOPPED = "Stopped"
# And of one that the runtime itself asked for, since the work had more on the disk than it may.
DISK_EXCEEDED = "DiskLimitExceeded"
# Or since the node's disk ran low, and the work had more on it than was set aside for it.
DISK_PRESSURE = "DiskPressure"
# So long after its start work is expected to open its ports, and is not ready before it has.
OPENING_MS = 10_000

Action = ExecAction | HttpAction | TcpAction


class Check(StrEnum):
    """What a question to the work is for."""

    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"
    PRE_STOP = "preStop"


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """Which piece of work: the replica's uid, and how often it was started before."""

    uid: str
    number: int


class SecretValues(msgspec.Struct, frozen=True):
    """Values of Secrets on their way to the work that refers to them: base64 by NAME/KEY."""

    values: dict[str, str] = {}

    def __repr__(self) -> str:
        # A repr ends up in traces and error messages, so the values must not be in it.
        return f"Sealed({', '.join(sorted(self.values))})"


# Effects. -----------------------------------------------------------------------------------------


class Launch(msgspec.Struct, frozen=True):
    """Start a piece of work. `Launched` or `NotLaunched` follows, once.

    `deadline_ms` None means that nothing but a `Halt` ends it (`keep` work). `grace_ms` is what it
    gets to stop when the deadline strikes. `token` is the fencing token of its binding, `devices`
    are those that it owns by it. `index` is its place among the replicas of its workload.
    `isolation` is how far it must be kept apart, `tenant_uid` the uid of its tenant, if known.
    """

    attempt: Attempt
    namespace: str
    name: str
    template: Template
    token: int
    deadline_ms: int | None
    grace_ms: int
    devices: tuple[DeviceShare, ...] = ()
    secrets: SecretValues = SecretValues()
    index: int = 0
    isolation: Isolation = Isolation.NONE
    tenant_uid: str = ""

    @property
    def tenant(self) -> str:
        """Its tenant, told from a later one of the same name where the servers tell which it is."""
        return f"{self.namespace}/{self.tenant_uid}" if self.tenant_uid else self.namespace


class Extend(msgspec.Struct, frozen=True, gc=False):
    """Let all work that has a deadline run until this one."""

    deadline_ms: int


class Halt(msgspec.Struct, frozen=True, gc=False):
    """Stop a piece of work: ask it, and kill the whole tree after the grace. `Exited` follows."""

    attempt: Attempt
    grace_ms: int


class RunProbe(msgspec.Struct, frozen=True):
    """Ask a piece of work something, or tell it, for so long at most. `Probed` follows, once.

    Ports are numbers here. What a command starts is gone when the answer comes.
    """

    attempt: Attempt
    kind: Check
    action: Action
    timeout_ms: int


class Clear(msgspec.Struct, frozen=True, gc=False):
    """Nothing of this replica is needed any more: remove what it left. It does not run."""

    uid: str


class LookAround(msgspec.Struct, frozen=True, gc=False):
    """Find out what is there. `Inventory` follows."""


# Stimuli. -----------------------------------------------------------------------------------------


class Launched(msgspec.Struct, frozen=True):
    """It runs. `process` has its identity: pid, start time and boot.

    `unopened` are the names of ports of `process.addresses` at which it does not listen yet and
    other work of the node might. They are not to be published before `PortsOpened`.
    """

    attempt: Attempt
    process: Process
    unopened: tuple[str, ...] = ()


class PortsOpened(msgspec.Struct, frozen=True):
    """It listens at more of its ports: `unopened` are those that are left."""

    attempt: Attempt
    unopened: tuple[str, ...]


class NotLaunched(msgspec.Struct, frozen=True):
    """It does not run and will not: `process.reason` says why."""

    attempt: Attempt
    process: Process


class Exited(msgspec.Struct, frozen=True):
    """It ran and has ended, with everything that it started. This is a proof of stop."""

    attempt: Attempt
    process: Process


class Probed(msgspec.Struct, frozen=True, gc=False):
    """What came of a `RunProbe`: whether it succeeded, and a few words when it did not."""

    attempt: Attempt
    kind: Check
    ok: bool
    message: str = ""


class Item(msgspec.Struct, frozen=True):
    """A piece of work that was found: it runs, or it has ended and left its exit.

    It says of which replica it is, as its `Launch` did: an agent that has just started must be able
    to ask the servers what became of that one.
    """

    attempt: Attempt
    process: Process
    is_running: bool
    namespace: str
    name: str
    # What its shim grants it when the deadline strikes, where that is known.
    grace_ms: int | None = None
    # As in `Launched`.
    unopened: tuple[str, ...] = ()


class Inventory(msgspec.Struct, frozen=True):
    """Everything that is there, the latest attempt of each replica.

    Work that an earlier life of the agent was about to start belongs to it, too: the agent starts
    whatever is not in here.
    """

    items: tuple[Item, ...]
