"""Evidence of decisions: what one round of a scheduler rested on, decided, and what came of it.

A round is all that is decided in one step: on one picture, with one lot. `recorder.py` makes one of
each and hands it to the shell with `Record`; the servers keep it outside the authority's store and
show each decision in it as a Decision; `explain/replay.py` decides it once more. What is common to
many is said once, and members of a case are columns, since a case may be a thousand replicas of one
workload.
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
# The replica waits; why is said once for all members of its case.
WAITS = "Pending"
# The scheduler ended, or gave up, before it knew.
UNKNOWN = ""
# News showed that the replica went another way.
OVERTAKEN = "Overtaken"
# Answers were lost, and reading showed that it has not happened.
NOT_BOUND = "NotBound"


class WaitReason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no place, as `report.Report` has it."""

    message: str
    verdict: str
    nearest_miss: str = ""
    smallest_change: str = ""
    owner: str = ""


class Case(msgspec.Struct, omit_defaults=True):
    """One question of a round: where should these go, which are alike and were asked for at once.

    Entry i of each list is about member i. `nodes` and `devices` are empty where there is no
    place, `generations` in rounds of earlier versions. `results` and `messages` are filled in as
    answers come.
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
    devices: list[tuple[DeviceShare, ...]] = []
    results: list[str] = []
    messages: dict[int, str] = {}
    candidates: int = 0
    looked_at: int = 0
    filtered: dict[str, int] = {}
    best: tuple[Ranked, ...] = ()
    quota: str = ""
    waits: WaitReason | None = None


class AssumedMembers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Placements of an earlier round that were still assumed: a bit for each member, in hex."""

    sequence: int
    members: str

    def indexes(self) -> Iterator[int]:
        """Which members, counted over all cases of that round."""
        bits = int(self.members, 16)
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low


class DecisionRound(msgspec.Struct, omit_defaults=True):
    """See the module's docstring.

    `scope`, `epoch` and `sequence` name it: an epoch is held by one life of one scheduler only.
    `seen` is the revision that each kind was shown of. `assumed` are placements of earlier rounds
    of the same epoch; `left_out` says how many more there were than are written down. `shunned` are
    the nodes that were left alone, with the reason and the words of their last refusal. `mixes` is
    what was learnt of each class of devices: which work asks for them typically.
    """

    scheduler: str
    scope: str
    epoch: int
    sequence: int
    decided_ms: int
    snapshot_revision: int
    snapshot_age_ms: int
    salt: int
    policy: str = ""
    seen: dict[str, int] = {}
    assumed: tuple[AssumedMembers, ...] = ()
    left_out: int = 0
    shunned: dict[str, tuple[str, str]] = {}
    # Each a `propose.gpu.Mix`, not named here: servers keep rounds and load no numbers.
    mixes: dict[str, Any] = {}
    cases: list[Case] = []

    @property
    def name(self) -> str:
        """What its decisions are called, before the number of the member."""
        return f"d-{zlib.crc32(self.scope.encode()):08x}-{self.epoch}-{self.sequence}"

    @property
    def size(self) -> int:
        """How many decisions it is."""
        return sum(len(case.replicas) for case in self.cases)


def round_of_name(name: str) -> tuple[str, int] | None:
    """The round and the member that a decision's name means; None if it is no such name."""
    of, _, member = name.rpartition("-")
    if not of.startswith("d-") or not (member.isascii() and member.isdigit() and len(member) <= 9):
        return None
    return of, int(member)
