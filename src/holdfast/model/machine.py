"""The words that machines and their shells have in common.

A machine (scheduler, controller, agent, server) is pure: `step(stimulus, now)` changes its own memory and returns
effects in the order in which they are to be performed. It never waits. `host/` performs effects with real
sockets, disks and clocks, `sim/` under virtual time with seeded faults; both run the very same machines.

Whatever a machine keeps in memory is lost in a crash. What must survive goes through the store or through
`Persist`, and a shell performs the effects of one step strictly in order, so that a crash leaves a prefix of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from holdfast.model.time import Instant
from holdfast.model.transaction import Transaction


class Rng(Protocol):
    """Randomness handed in by the shell: seeded in the simulator, the system's own in a host."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...


# Stimuli: what happened, in the past tense. ---------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """The first stimulus after every start. `durable` is what earlier lives of this machine persisted."""

    durable: dict[str, bytes]


class Woken(msgspec.Struct, frozen=True, gc=False):
    """The wake-up of this name is due."""

    name: str


class Asked(msgspec.Struct, frozen=True):
    """Somebody sent a request. `sender` is the identity that the shell authenticated, never a claim of the body."""

    call: int
    sender: str
    body: Any


class Answered(msgspec.Struct, frozen=True):
    """An own `Ask`, `Txn`, `Range` or `FateOf` ended. `body` is a value, or an error as a value.

    Unavailable means that it did not happen; OutcomeUnknown that it may have. A shell gives each call exactly one
    answer unless the machine crashes first.
    """

    call: int
    body: Any


class Changed(msgspec.Struct, frozen=True):
    """A watch delivered: the body is a `store.contract.Batch`, or Expired as a value, after which it is closed."""

    watch: int
    body: Any


# Effects: what to do, in the imperative. -------------------------------------------------------------------------


class Wake(msgspec.Struct, frozen=True, gc=False):
    """Send Woken(name) at this reading of the machine's own monotonic clock. Replaces a wake-up of that name."""

    name: str
    at_ms: int


class Ask(msgspec.Struct, frozen=True):
    """Send a request to another machine and expect an answer within the time-out."""

    call: int
    to: str
    body: Any
    timeout_ms: int


class Answer(msgspec.Struct, frozen=True):
    """Answer the `Asked` of this number."""

    call: int
    body: Any


class Txn(msgspec.Struct, frozen=True):
    """Run a transaction on the store. The token is what `FateOf` asks for when the answer is lost."""

    call: int
    transaction: Transaction
    token: str | None = None
    timeout_ms: int = 5_000


class Range(msgspec.Struct, frozen=True, gc=False):
    """Read records with start <= key < end, linearizably unless `at` names a past revision."""

    call: int
    start: str
    end: str
    limit: int = 10_000
    at: int | None = None
    timeout_ms: int = 5_000


class FateOf(msgspec.Struct, frozen=True, gc=False):
    """Ask whether the transaction with this token took effect; asking makes the answer final."""

    call: int
    token: str
    timeout_ms: int = 5_000


class Watch(msgspec.Struct, frozen=True, gc=False):
    """Open a watch on the store; Changed stimuli follow until Unwatch or Expired."""

    watch: int
    prefix: str
    after: int


class Unwatch(msgspec.Struct, frozen=True, gc=False):
    watch: int


class Persist(msgspec.Struct, frozen=True, gc=False):
    """Keep a value on this machine's own disk, synced before the next effect. None removes it."""

    key: str
    value: bytes | None


class Machine(Protocol):
    """Pure: only `step` changes it, and `step` never suspends."""

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        """Take in one stimulus and return the effects to perform, in order."""
        ...
