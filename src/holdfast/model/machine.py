"""The words that machines and their shells have in common.

A machine (scheduler, controller, agent, server) is pure: `step(stimulus, now)` changes its own
memory and returns effects in the order in which they are to be performed. It never waits. `host/`
performs effects with real sockets, disks and clocks, `sim/` under virtual time with seeded faults;
both run the very same machines.

Whatever a machine keeps in memory is lost in a crash. What must survive goes through the store or
through `Persist`, and a shell performs the effects of one step strictly in order, so that a crash
leaves a prefix of them. Bodies are immutable values: the simulator hands them over as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from holdfast.model.access.identity import Identity
from holdfast.model.time import Instant
from holdfast.model.transaction import Transaction


class Rng(Protocol):
    """Randomness handed in by the shell: seeded in the simulator, the system's own in a host."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...


class Tokens(Protocol):
    """Operation tokens handed in by the shell, from the store that it runs transactions on."""

    def new_token(self) -> str:
        """A fresh token for one `Txn` and, if its answer is lost, for `FateOf`."""
        ...


# Stimuli: what happened, in the past tense. -------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """The first stimulus after every start, with what earlier lives of this machine persisted.

    `boot` names the current boot of the computer: monotonic readings taken under another boot mean
    nothing now.
    """

    durable: dict[str, bytes]
    boot: str = ""


class Woken(msgspec.Struct, frozen=True, gc=False):
    """The wake-up of this name is due."""

    name: str


class Asked(msgspec.Struct, frozen=True):
    """Somebody sent a request.

    `sender` is who the shell authenticated, never a claim of the body: the name of a component, or
    an identity with its groups.
    """

    call: int
    sender: str | Identity
    body: Any


class Withdrawn(msgspec.Struct, frozen=True, gc=False):
    """Whoever sent these `Asked` waits for no answer any more: what was not begun need not be."""

    calls: tuple[int, ...]


class Answered(msgspec.Struct, frozen=True):
    """An own `Ask`, `Txn`, `Range` or `FateOf` ended. `body` is a value, or an error as a value.

    Unavailable means that it did not happen; OutcomeUnknown that it may have. A shell gives each
    call exactly one answer unless the machine crashes first.
    """

    call: int
    body: Any


class Changed(msgspec.Struct, frozen=True):
    """A watch on the store delivered.

    The body is a `store.contract.Batch`, or Expired as a value, after which the watch is closed.
    """

    watch: int
    body: Any


class Opened(msgspec.Struct, frozen=True):
    """Somebody opened a stream to this machine; `Push` feeds it until `Left` or the own `End`."""

    stream: int
    sender: str | Identity
    body: Any


class Left(msgspec.Struct, frozen=True, gc=False):
    """The other side of an `Opened` stream is gone, or the way to it is."""

    stream: int


class Taken(msgspec.Struct, frozen=True, gc=False):
    """Everything that was pushed down an `Opened` stream so far has gone out.

    Whoever waits for this before the next `Push` holds what a slow reader has not taken yet, and so
    decides itself when that is too much.
    """

    stream: int


class Pushed(msgspec.Struct, frozen=True):
    """An own `Open` stream brought something.

    A stream passes proxies and buffers: whoever reads one must stand items that are missing, old
    or repeated.
    """

    stream: int
    body: Any


class Ended(msgspec.Struct, frozen=True):
    """An own `Open` stream is over. `body` is the server's last word, or an error as a value."""

    stream: int
    body: Any


# Effects: what to do, in the imperative. ----------------------------------------------------------


class Wake(msgspec.Struct, frozen=True, gc=False):
    """Send Woken(name) at this reading of the machine's own monotonic clock.

    Replaces a wake-up of that name.
    """

    name: str
    at_ms: int


class Ask(msgspec.Struct, frozen=True):
    """Send a request to another machine and expect an answer within the time-out.

    `sender` is as whom, for a machine that speaks for several, such as a team of controllers: one
    of the identities that its shell was given. Empty means its own.
    """

    call: int
    to: str
    body: Any
    timeout_ms: int
    sender: str = ""


class Answer(msgspec.Struct, frozen=True):
    """Answer the `Asked` of this number."""

    call: int
    body: Any


class Txn(msgspec.Struct, frozen=True):
    """Run a transaction on the store. `FateOf` asks by the token when the answer is lost."""

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


class Open(msgspec.Struct, frozen=True):
    """Open a stream to another machine; Pushed stimuli follow until Leave or Ended.

    The number is free again after Ended, and at once after Leave.
    """

    stream: int
    to: str
    body: Any


class Leave(msgspec.Struct, frozen=True, gc=False):
    """Close an own `Open` stream. Nothing of it arrives any more."""

    stream: int


class Push(msgspec.Struct, frozen=True):
    """Send an item down the `Opened` stream of this number. One that is gone takes it silently."""

    stream: int
    body: Any


class End(msgspec.Struct, frozen=True):
    """Close the `Opened` stream of this number after what was pushed before."""

    stream: int
    body: Any = None


class Persist(msgspec.Struct, frozen=True, gc=False):
    """Keep a value on this machine's own disk, synced before the next effect. None removes it."""

    key: str
    value: bytes | None


class ArchiveRecord(msgspec.Struct, frozen=True, gc=False):
    """Hand evidence to whoever keeps it outside the authority's store.

    Nobody answers: what cannot be kept is lost, which a shell counts and no machine waits for.
    """

    body: Any


class Machine(Protocol):
    """Pure: only `step` changes it, and `step` never suspends."""

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        """Take in one stimulus and return the effects to perform, in order."""
        ...
