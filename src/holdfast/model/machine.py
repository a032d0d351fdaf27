"""The stimuli and effects that machines and their shells exchange.

A machine (scheduler, controller, agent, server) is pure: `step(stimulus, now)` changes its own
memory and returns effects in the order in which to perform them. It never waits. `host/` performs
effects with real sockets, disks and clocks, `sim/` under virtual time with seeded faults; both run
the same machines.

A machine's memory is lost in a crash. State that must survive goes into the store or through
`Persist`. A shell performs the effects of one step strictly in order, so that a crash leaves a
prefix of them. Bodies are immutable values: the simulator passes them on without copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from holdfast.model.access.identity import Identity
from holdfast.model.audit.journal_protocol import Appended, Ready
from holdfast.model.errors import HoldfastError
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport, Renew, Renewed
from holdfast.model.read_requests import Get, GetResult, Reach
from holdfast.model.requests import Forward, Request, TermRequest, Verdict
from holdfast.model.time import Instant
from holdfast.model.transaction import Batch, Fate, Outcome, Page, Transaction

# What one machine may ask another, and what may come back: from a machine, from the store, from the
# journal of the audit, or an error as a value. A `Reach` is answered with a revision.
Question = Request | Forward | TermRequest | Renew | HeartbeatQuery | Get | Reach
Reply = (
    Verdict
    | Renewed
    | HeartbeatReport
    | GetResult
    | int
    | Outcome
    | Page
    | Fate
    | Ready
    | Appended
    | HoldfastError
)


class Rng(Protocol):
    """Randomness from the shell: seeded in the simulator, the system's own in a host."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...


class Tokens(Protocol):
    """Operation tokens from the shell, made by the store that runs its transactions."""

    def new_token(self) -> str:
        """A fresh token for one `Txn` and, if its answer is lost, for `FateOf`."""
        ...


# Stimuli: what happened, in the past tense. -------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """The first stimulus after every start, with the state that earlier processes persisted.

    `boot` names the current boot of the computer: monotonic readings taken under another boot mean
    nothing now.
    """

    durable: dict[str, bytes]
    boot: str = ""


class Woken(msgspec.Struct, frozen=True, gc=False):
    """The wake-up of this name is due."""

    name: str


class Asked(msgspec.Struct, frozen=True):
    """A request arrived.

    `sender` is the sender that the shell authenticated, never a claim of the body: the name of a
    component, or an identity with its groups.
    """

    call: int
    sender: str | Identity
    body: Question


class Withdrawn(msgspec.Struct, frozen=True, gc=False):
    """The senders of these `Asked` wait no longer: requests not yet started can be dropped."""

    calls: tuple[int, ...]


class Answered(msgspec.Struct, frozen=True):
    """One of its own `Ask`, `Txn`, `Range` or `FateOf` ended, with a value or an error as a value.

    Unavailable means that it did not happen; OutcomeUnknown that it may have. A shell gives each
    call exactly one answer unless the machine crashes first.
    """

    call: int
    body: Reply


class Changed(msgspec.Struct, frozen=True):
    """A watch on the store delivered changes.

    After an error, such as Expired, the watch is closed.
    """

    watch: int
    body: Batch | HoldfastError


class Opened(msgspec.Struct, frozen=True):
    """A client opened a stream to this machine. `Push` feeds it until `Left` or `End`.

    The items of a stream are the matter of its two ends, so no union lists them here.
    """

    stream: int
    sender: str | Identity
    body: object


class Left(msgspec.Struct, frozen=True, gc=False):
    """The client of an `Opened` stream is gone, or the connection to it broke."""

    stream: int


class Taken(msgspec.Struct, frozen=True, gc=False):
    """All items pushed so far to an `Opened` stream have been sent.

    A machine that waits for this before the next `Push` buffers for a slow reader itself, and so
    decides itself when the buffer is too large.
    """

    stream: int


class Pushed(msgspec.Struct, frozen=True):
    """One of its own `Open` streams delivered an item.

    A stream passes proxies and buffers: the reader must tolerate missing, old and repeated items.
    """

    stream: int
    body: object


class Ended(msgspec.Struct, frozen=True):
    """One of its own `Open` streams ended. `body` is the server's last item, or an error."""

    stream: int
    body: object


# Effects: what to do, in the imperative. ----------------------------------------------------------


class Wake(msgspec.Struct, frozen=True, gc=False):
    """Send Woken(name) at this reading of the machine's own monotonic clock.

    Replaces a wake-up of that name.
    """

    name: str
    at_ms: int


class Ask(msgspec.Struct, frozen=True):
    """Send a request to another machine and expect an answer within the time-out.

    `sender` selects the identity to use, for a machine with several, such as the controller runner:
    one of the identities that its shell has. Empty means its own.
    """

    call: int
    to: str
    body: Question
    timeout_ms: int
    sender: str = ""


class Answer(msgspec.Struct, frozen=True):
    """Answer the `Asked` of this number."""

    call: int
    body: Reply


class Txn(msgspec.Struct, frozen=True):
    """Run a transaction on the store. If the answer is lost, `FateOf` asks by the token."""

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
    body: object


class Leave(msgspec.Struct, frozen=True, gc=False):
    """Close one of its own `Open` streams. No more items of it arrive."""

    stream: int


class Push(msgspec.Struct, frozen=True):
    """Send an item to the `Opened` stream of this number; dropped silently if that is gone."""

    stream: int
    body: object


class End(msgspec.Struct, frozen=True):
    """Close the `Opened` stream of this number after all pushed items are sent."""

    stream: int
    body: object = None


class Persist(msgspec.Struct, frozen=True, gc=False):
    """Keep a value on this machine's own disk, synced before the next effect. None removes it."""

    key: str
    value: bytes | None


class ArchiveRecord(msgspec.Struct, frozen=True, gc=False):
    """Send a record to the archive, which is kept outside the authority's store.

    There is no answer: a record that cannot be kept is lost. The shell counts the losses, and no
    machine waits for them.
    """

    body: msgspec.Struct


Stimulus = (
    Started
    | Woken
    | Asked
    | Withdrawn
    | Answered
    | Changed
    | Opened
    | Left
    | Taken
    | Pushed
    | Ended
)
Effect = (
    Wake
    | Ask
    | Answer
    | Txn
    | Range
    | FateOf
    | Watch
    | Unwatch
    | Open
    | Leave
    | Push
    | End
    | Persist
    | ArchiveRecord
)
Effects = list[Effect]

S_contra = TypeVar("S_contra", contravariant=True)
E_co = TypeVar("E_co", covariant=True)


class Machine(Protocol[S_contra, E_co]):
    """Pure: only `step` changes it, and `step` never suspends.

    `S_contra` are the stimuli that it takes: `Stimulus`, and those of its own protocol with its
    shell, such as an agent's with its runtime. `E_co` are its effects likewise.
    """

    def step(self, stimulus: S_contra, now: Instant) -> Sequence[E_co]:
        """Process one stimulus and return the effects to perform, in order."""
        ...


# A machine that needs no more than each shell performs: a scheduler, a server. One with a protocol
# of its own names it: an agent with its runtime, the audit writer with its journal.
PlaneMachine = Machine[Stimulus, Effect]
