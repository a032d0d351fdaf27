"""The protocol between the agent and the runtime that runs its work.

`host/runtime` implements it with real processes, each held by a shim; the simulator with a process
table. A piece of work is one *attempt* of one replica, named by the replica's uid and a number that
grows with every start in place, so that the end of one attempt is never taken for that of another.

The shim holds the deadline, not the agent. It is a reading of the machine's CLOCK_BOOTTIME; it only
moves later, never after it has passed, and the shim checks it before it starts the work at all: an
agent may have been paused between its decision and the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from holdfast.model.kinds import replica
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.replica import DeviceShare, Process
from holdfast.model.kinds.template import ExecAction, HttpAction, TcpAction, Template
from holdfast.model.machine import Effect, Stimulus
from holdfast.model.nodes.heartbeat import NodeUse

# In `Exited` when the deadline passed while the work ran, in `NotLaunched` when it had passed
# before the start.
DEADLINE_PASSED = replica.DEADLINE_PASSED
# `Process.reason` of an end that the agent requested.
STOPPED = "Stopped"
# Of one that the runtime itself caused, since the work exceeded its disk limit.
DISK_EXCEEDED = "DiskLimitExceeded"
# Of one since the node's disk ran low, and the work used more of it than it had requested.
DISK_PRESSURE = "DiskPressure"
# The time after its start in which work is expected to open its ports; it is not ready before.
OPENING_MS = 10_000

Action = ExecAction | HttpAction | TcpAction


class Check(StrEnum):
    """The purpose of a probe."""

    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"
    PRE_STOP = "preStop"


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt: the replica's uid, and the number of earlier starts."""

    uid: str
    number: int


class SecretValues(msgspec.Struct, frozen=True):
    """Values of Secrets for the work that refers to them: base64 by NAME/KEY."""

    values: dict[str, str] = {}

    def __repr__(self) -> str:
        # A repr ends up in traces and error messages, so the values must not be in it.
        return f"Sealed({', '.join(sorted(self.values))})"


# Effects. -----------------------------------------------------------------------------------------


class Launch(msgspec.Struct, frozen=True):
    """Start a piece of work. `Launched` or `NotLaunched` follows, once.

    `deadline_ms` None means that only a `Halt` ends it (`keep` work). `grace_ms` is its time to
    stop when the deadline passes. `token` is the fencing token of its binding, `devices` are those
    of its binding. `index` is its ordinal among the replicas of its workload. `isolation` is the
    level that it requires, `tenant_uid` the uid of its tenant, if known. `variables` is what a
    member of a gang learns about the others.
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
    variables: Mapping[str, str] = {}

    @property
    def tenant(self) -> str:
        """Its tenant; with the uid, where known, it differs from a later one with the same name."""
        return f"{self.namespace}/{self.tenant_uid}" if self.tenant_uid else self.namespace


class Extend(msgspec.Struct, frozen=True, gc=False):
    """Extend all deadlines to this one."""

    deadline_ms: int


class Halt(msgspec.Struct, frozen=True, gc=False):
    """Stop a piece of work: SIGTERM, and kill the whole tree after the grace. `Exited` follows."""

    attempt: Attempt
    grace_ms: int


class RunProbe(msgspec.Struct, frozen=True):
    """Run a probe or a pre-stop hook, for `timeout_ms` at most. `Probed` follows, once.

    Ports are numbers here. Processes that a command started are gone when the result comes.
    """

    attempt: Attempt
    kind: Check
    action: Action
    timeout_ms: int


class Clear(msgspec.Struct, frozen=True, gc=False):
    """Remove the files of this replica. It does not run, and is no longer needed."""

    uid: str


class LookAround(msgspec.Struct, frozen=True, gc=False):
    """List the work on the machine. `Inventory` follows."""


# Stimuli. -----------------------------------------------------------------------------------------


class Launched(msgspec.Struct, frozen=True):
    """It runs. `process` has its identity: pid, start time and boot.

    `unopened` are the names of ports in `process.addresses` on which it does not listen yet and
    other work of the node might. They must not be published before `PortsOpened`.
    """

    attempt: Attempt
    process: Process
    unopened: tuple[str, ...] = ()


class PortsOpened(msgspec.Struct, frozen=True):
    """It listens on more of its ports: `unopened` are those that are left."""

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
    """The result of a `RunProbe`: whether it succeeded, and a message when it did not."""

    attempt: Attempt
    kind: Check
    ok: bool
    message: str = ""


class Sampled(msgspec.Struct, frozen=True):
    """What the work of the node uses now. It comes every few seconds, and nothing depends on it."""

    use: NodeUse


class Item(msgspec.Struct, frozen=True):
    """A piece of work on the machine: it runs, or it has ended and left its exit status.

    It names its replica, as its `Launch` did: an agent that has just started must be able to read
    that replica from the servers.
    """

    attempt: Attempt
    process: Process
    is_running: bool
    namespace: str
    name: str
    # The grace that its shim grants when the deadline passes, where known.
    grace_ms: int | None = None
    # As in `Launched`.
    unopened: tuple[str, ...] = ()


class Inventory(msgspec.Struct, frozen=True):
    """All work on the machine, the latest attempt of each replica.

    It includes work that an earlier process of the agent was about to start: the agent starts all
    work that is missing here.
    """

    items: tuple[Item, ...]


# What an agent takes and does: what every machine does, and what it exchanges with its runtime.
AgentStimulus = (
    Stimulus | Launched | PortsOpened | NotLaunched | Exited | Probed | Sampled | Inventory
)
RuntimeEffect = Launch | Extend | Halt | RunProbe | Clear | LookAround
AgentEffect = Effect | RuntimeEffect
AgentEffects = list[AgentEffect]
