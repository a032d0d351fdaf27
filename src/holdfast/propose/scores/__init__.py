"""Scores: which of the feasible nodes is the better choice.

A score is from 0 to `SCORE_MAX` and is never a hard rule. A policy's weights say how much each
counts; a scorer that the policy does not name counts nothing, and a policy that names none uses the
default weights. A scorer that does not apply to some work (no image, no preference) is left out of
its mean.

`spread` and `affinity` rank by where other replicas are; they are in
`propose/topology/affinity.py`. A policy may weigh scorers differently for work of an intent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy, WorkIntent
from holdfast.model.kinds.template import RestartPolicy
from holdfast.observe.node_columns import Floats, Ints, Rows
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork
from holdfast.propose.scores.fragmentation import FRAGMENTATION, Packs, has_devices
from holdfast.propose.scores.nearness import locality, network, states_data
from holdfast.propose.scores.scorers import (
    cost,
    has_image,
    has_preference,
    has_taints,
    headroom,
    image,
    packing,
    preference,
    scarce,
    spares_devices,
    welcome,
)

SCORE_MAX = 100.0

# How good these rows are after `more` replicas of the same work were placed there before this one.
Score = Callable[[PendingWork, FleetSnapshot, Rows, Ints | int], Floats]


def always(work: PendingWork, view: FleetSnapshot) -> bool:
    return True


class Scorer(msgspec.Struct, frozen=True):
    """A score with its name, and its weight where no policy says otherwise.

    `by_load` says that it depends on the load of a node. One that does, and looks at more than
    `more` times the work's own units, must set `is_exact=False`: then replicas of one class are
    placed one by one instead of many at once. One that ranks all nodes together has `packs`: its
    score is evaluated for all nodes whenever its stamp changes.
    """

    name: str
    score: Score
    weight: int = 0
    applies: Callable[[PendingWork, FleetSnapshot], bool] = always
    by_load: bool = False
    is_exact: bool = True
    packs: Packs | None = None


SPREAD, AFFINITY = "spread", "affinity"
COMPANY_WEIGHTS = {SPREAD: 10, AFFINITY: 10}

SCORERS: tuple[Scorer, ...] = (
    Scorer("headroom", headroom, 10, by_load=True),
    Scorer("packing", packing, by_load=True),
    Scorer("fragmentation", FRAGMENTATION.score, 100, has_devices, packs=FRAGMENTATION),
    Scorer("preference", preference, 10, has_preference),
    Scorer("taints", welcome, 10, has_taints),
    Scorer("scarce", scarce, 5, spares_devices),
    Scorer("image", image, 2, has_image),
    Scorer("locality", locality, 10, states_data),
    Scorer("network", network, 10, states_data),
    Scorer("cost", cost),
)


def intent_of(replica: Replica) -> WorkIntent:
    """What matters most to this replica. Jobs are the work that is not always restarted."""
    spec = replica.spec
    if spec.template.restart is not RestartPolicy.ALWAYS:
        return WorkIntent.BATCH
    return WorkIntent.RECOVERY if spec.incarnation else WorkIntent.LATENCY


def weights_of(
    policy: SchedulerPolicy | None, scorers: tuple[Scorer, ...], intent: WorkIntent
) -> Mapping[str, int]:
    """How much each scorer counts for this intent. Unknown names belong to another version."""
    usual = {scorer.name: scorer.weight for scorer in scorers} | COMPANY_WEIGHTS
    named = policy.spec.weights if policy is not None else {}
    known = {name: weight for name, weight in named.items() if name in usual and weight > 0}
    weights = known or usual
    if policy is not None:
        own = policy.spec.intents.get(intent.value, {})
        weights = weights | {name: weight for name, weight in own.items() if name in usual}
    return {name: weight for name, weight in weights.items() if weight > 0}
