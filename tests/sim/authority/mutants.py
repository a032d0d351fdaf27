"""Bugs planted in the authority, and benign controls.

    python -m holdfast.sim mutants tests.sim.authority.mutants:MUTANTS \
        --record tests/sim/authority/found.json

searches for each over many seeds and records which found it; the tests run each at its seed.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.commit.authority import GroupLimits
from holdfast.commit.context import PlaneSettings
from holdfast.sim.mutants import rewrite, swap
from tests.sim.authority.flow import COMPARES, IDENTITIES, OUTCOMES
from tests.sim.authority.lateness import LATE
from tests.sim.authority.overcommit import FIRMNESS
from tests.sim.authority.planting import COMMIT, benign
from tests.sim.authority.rules import CHARGES, PLACES

RECORDED = Path(__file__).with_name("found.json")
_CENSUS = "holdfast.sim.worlds.authority.census:"

CONTROLS = (
    benign(
        "groups-of-one",
        "every request has its own transaction",
        swap(_CENSUS + "LIMITS", GroupLimits(requests_max=1)),
    ),
    benign(
        "no-forwarding",
        "every server decides by itself",
        swap(COMMIT + "server:AuthorityServer._holder", lambda *_: None),
    ),
    benign(
        "short-memory",
        "written records are read again before the next decision",
        rewrite(
            COMMIT + "draft:CommitGroup.record_commit",
            "self.view.record_write(key, value, data, revision, is_known=key not in foreign)",
            "self.view.forget(key)",
        ),
    ),
    benign(
        "halved-at-once",
        "a refused group is halved at the first try",
        swap(COMMIT + "authority:GROUP_TRIES_MAX", 1),
    ),
    benign(
        "decided-again",
        "after a lost answer the fate is not queried; all is read and decided again",
        rewrite(
            COMMIT + "authority:Authority._answered",
            "return self._ask_fate()",
            "return self._fate(flight, None, now)",
        ),
    ),
    benign(
        "patient-about-fates",
        "the fate of a transaction is queried half as often",
        swap(COMMIT + "authority:FATE_RETRY_MS", 400),
    ),
    benign(
        "long-memory",
        "objects keep twice as many operations",
        swap(_CENSUS + "SETTINGS", PlaneSettings(operations_kept_ms=60_000, operations_kept=16)),
    ),
)

MUTANTS = (*COMPARES, *OUTCOMES, *IDENTITIES, *CHARGES, *PLACES, *LATE, *FIRMNESS, *CONTROLS)
