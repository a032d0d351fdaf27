"""The archived record of decisions: what one round of a scheduler was based on, and its outcomes.

A round is all that is decided in one step: on one snapshot, with one salt. `decision_records.py`
makes the rounds and passes them to the shell with `ArchiveRecord`; the servers keep them outside
the authority's store and show each decision in them as a Decision; `explain/replay.py` decides them
again. What is common to many is stored once, and members of a case are columns, since a case may be
a thousand replicas of one workload.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.kinds.replica import DeviceShare
from holdfast.propose.feasibility.outcome import Ranked

ACCEPTED = "Accepted"
# The replica waits; the reason is stored once for all members of its case.
WAITS = "Pending"
# The scheduler ended, or gave up, before it knew.
UNKNOWN = ""
# A change showed that the replica took another transition.
OVERTAKEN = "Overtaken"
# Answers were lost, and reading showed that the bind did not happen.
NOT_BOUND = "NotBound"


class WaitReason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why no node is feasible, from `outcome.PlacementReport`."""

    message: str
    verdict: str
    nearest_miss: str = ""
    smallest_change: str = ""
    owner: str = ""


class Case(msgspec.Struct, omit_defaults=True):
    """One question of a round: where these replicas of one equivalence class should go.

    Item i of each list is about member i. `nodes`, `node_revisions` and `devices` are empty where
    no node is feasible, `generations` and `node_revisions` in rounds of earlier versions.
    `results` and `messages` are filled in as answers come. `victims` are stopped first, to make
    room on the node of the only member.
    """

    namespace: str
    replicas: list[str]
    uids: list[str]
    numbers: list[int]
    attempts: list[int]
    revisions: list[str]
    queued: list[datetime | None]
    generations: list[int] = []
    nodes: list[str] = []
    node_revisions: list[int] = []
    devices: list[tuple[DeviceShare, ...]] = []
    results: list[str] = []
    messages: dict[int, str] = {}
    candidates: int = 0
    looked_at: int = 0
    filtered: dict[str, int] = {}
    best: tuple[Ranked, ...] = ()
    quota: str = ""
    waits: WaitReason | None = None
    victims: list[str] = []
    # The nodes that were left to a job with a reserved start.
    closed: tuple[str, ...] = ()


class AssumedMembers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Placements of an earlier round that were still assumed: a bit for each member, in hex."""

    sequence: int
    members: str

    def indexes(self) -> Iterator[int]:
        """The indexes of the members, counted over all cases of that round."""
        bits = int(self.members, 16)
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low


class DecisionRound(msgspec.Struct, omit_defaults=True):
    """See the module's docstring.

    `scope`, `epoch` and `sequence` name it: an epoch is held by one run of one scheduler only.
    `seen` is the revision at which each kind was shown. `assumed` are placements of earlier rounds
    of the same epoch; `left_out` says how many more there were. `shunned` are the nodes that were
    avoided, with the reason and the message of their last refusal. `mixes` is the learned demand
    mix of each device class.
    """

    scheduler: str
    scope: str
    epoch: int
    sequence: int
    decided_ms: int
    snapshot_revision: int
    snapshot_age_ms: int
    salt: int
    # Rounds of earlier versions do not say it.
    snapshot_age_max_ms: int = 0
    policy: str = ""
    seen: dict[str, int] = {}
    assumed: tuple[AssumedMembers, ...] = ()
    left_out: int = 0
    shunned: dict[str, tuple[str, str]] = {}
    # Each is a `propose.gpu.Mix`, not named here: servers keep rounds and do not load numpy.
    mixes: dict[str, Any] = {}
    cases: list[Case] = []

    @property
    def name(self) -> str:
        """The name of its decisions, before the number of the member."""
        return f"d-{zlib.crc32(self.scope.encode()):08x}-{self.epoch}-{self.sequence}"

    @property
    def size(self) -> int:
        """The number of decisions in it."""
        return sum(len(case.replicas) for case in self.cases)


def round_of_name(name: str) -> tuple[str, int] | None:
    """The round and the member that a decision's name refers to; None for any other name."""
    of, _, member = name.rpartition("-")
    if not of.startswith("d-") or not (member.isascii() and member.isdigit() and len(member) <= 9):
        return None
    return of, int(member)
