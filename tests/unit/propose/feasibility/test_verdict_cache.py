"""Filters and scorers that users add, and what is kept of each class of work."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import msgspec
import numpy as np
import pytest

from holdfast.model.kinds.node import Device
from holdfast.model.kinds.placement import Preference, Taint, TaintEffect
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy, SchedulerPolicySpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import Expression, SelectorOperator
from holdfast.observe.cache import ObjectChange
from holdfast.observe.node_columns import Codes, Floats, Ints, Level, Rows
from holdfast.propose.decide import propose
from holdfast.propose.feasibility import verdict_cache as verdict_caches
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.feasibility.outcome import (
    FILTER_UNKNOWN,
    BindReplica,
    PlacementReport,
    StayPending,
    Verdict,
)
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.filters import Filter
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork
from holdfast.propose.scores import Scorer
from tests.plane import template
from tests.unit.propose.test_proposals import NOW, node, replica, view


def policy(**spec: Any) -> SchedulerPolicy:
    return SchedulerPolicy(ObjectMeta(name="p"), spec=SchedulerPolicySpec(**spec))


def decided(
    seen: FleetSnapshot, verdict_cache: VerdictCache | None = None, work: Any = None
) -> BindReplica | PlacementReport:
    """Where it goes, or why it waits."""
    (decision,) = propose(seen, [work or replica()], NOW, 1, verdict_cache or VerdictCache())
    assert isinstance(decision, BindReplica | StayPending)
    return decision.report if isinstance(decision, StayPending) else decision


# A plugin as a user would write it: nodes of a rack without power are avoided. ----------------


def _rack_power(work: PendingWork, candidate: Candidate) -> Refusal | None:
    node = candidate.site.node
    if node is None or node.metadata.labels.get("power") != "off":
        return None
    return Refusal(Reason.NOT_ALLOWED, "the rack of this node has no power")


def _racks_power(work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level) -> Codes | None:
    power = view.columns.facts.label("power")
    off = power.numbers.get("off")
    return None if off is None else (power.column[rows] == off).astype(np.uint8)


RACK_POWER = Filter("rack-power", _rack_power, _racks_power, ("RackWithoutPower",), passes=True)


def _by_name(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    label = view.columns.facts.label("nice")
    return np.where(label.column[rows] >= 0, 100.0, 0.0)


NICE = Scorer("nice", _by_name, weight=50)


def test_a_filter_that_a_user_added_works_where_the_policy_names_it() -> None:
    """[F2]"""
    nodes = node("a", labels={"power": "off"}), node("b", labels={"power": "on"})
    verdict_cache = VerdictCache(filters=[RACK_POWER])
    named = view(*nodes, policy=policy(filters=("rack-power",)))
    found = decided(named, verdict_cache)
    assert isinstance(found, BindReplica)
    assert (found.node, found.reasons) == ("b", {"RackWithoutPower": 1})
    unnamed = decided(view(*nodes), verdict_cache)
    assert isinstance(unnamed, BindReplica)
    assert unnamed.candidates == 2
    report = decided(view(nodes[0], policy=policy(filters=("rack-power",))), verdict_cache)
    assert isinstance(report, PlacementReport)
    assert report.reasons == {"RackWithoutPower": 1}
    assert report.nearest_miss is not None
    assert report.nearest_miss.reason == "RackWithoutPower"
    assert report.nearest_miss.message == "the rack of this node has no power"


def test_a_policy_that_names_an_unknown_filter_holds_everything_back() -> None:
    """What cannot be checked is not done. [E4, F2]"""
    report = decided(view(node(), policy=policy(filters=("rack-power",))))
    assert isinstance(report, PlacementReport)
    assert report.reasons == {FILTER_UNKNOWN: 1}
    assert report.verdict is Verdict.BLOCKED_BY
    assert "rack-power" in report.message


def test_a_scorer_that_a_user_added_counts_by_its_weight() -> None:
    """[F3]"""
    nodes = node("a"), node("b", labels={"nice": "yes"}), node("c")
    found = decided(view(*nodes), VerdictCache(scorers=[NICE]))
    assert isinstance(found, BindReplica)
    assert found.node == "b"
    assert found.scores["nice"] == 100.0
    assert [ranked.scores["nice"] for ranked in found.best] == [100.0, 0.0, 0.0]
    only = decided(view(*nodes, policy=policy(weights={"nice": 1})), VerdictCache(scorers=[NICE]))
    assert isinstance(only, BindReplica)
    assert list(only.scores) == ["nice"]


# The scorers that are there ----------------------------------------------------------------------


def best_of(*nodes: Any, weights: dict[str, int] | None = None, work: Any = None) -> BindReplica:
    found = decided(view(*nodes, policy=policy(weights=weights or {})), None, work)
    assert isinstance(found, BindReplica)
    return found


def test_packing_prefers_the_fuller_node_and_headroom_the_emptier() -> None:
    """[F3]"""
    nodes = node("big", capacity={"cpu": "64", "memory": "64Gi"}), node("small")
    assert best_of(*nodes, weights={"packing": 1}).node == "small"
    assert best_of(*nodes, weights={"headroom": 1}).node == "big"


def test_nodes_with_devices_are_spared_for_those_who_need_them() -> None:
    """[F3]"""
    rich = node("rich", devices=(Device(id="g", device_class="gpu"),))
    found = best_of(rich, node("plain", capacity={"cpu": "2", "memory": "8Gi"}))
    assert found.node == "plain"
    assert found.scores["scarce"] == 100.0


def test_preferences_soft_taints_images_and_cost_rank() -> None:
    """[F3]"""
    likes = Preference(expressions=(Expression("disk", SelectorOperator.IN, ("ssd",)),))
    ssd = node("ssd", labels={"disk": "ssd"})
    assert best_of(ssd, node("hdd"), work=replica(prefer=(likes,))).node == "ssd"
    hates = Preference(expressions=likes.expressions, avoid=True)
    assert best_of(ssd, node("hdd"), work=replica(prefer=(hates,))).node == "hdd"
    mild = node("mild", taints=(Taint(key="old", effect=TaintEffect.PREFER_NO_SCHEDULE),))
    assert best_of(mild, node("calm")).node == "calm"
    dear = node("dear", cost_per_hour="4")
    assert best_of(dear, node("cheap", cost_per_hour="1"), weights={"cost": 1}).node == "cheap"


def test_an_image_that_comes_to_a_node_makes_it_better_at_once() -> None:
    """Only its status was written, and that makes no room. [F3]"""
    verdict_cache = VerdictCache()
    seen = view(node("cold"), node("warm"), policy=policy(weights={"image": 1}))
    work = replica(template(image="img:1"))
    before = decided(seen, verdict_cache, work)
    assert isinstance(before, BindReplica)
    assert before.score == 0.0
    old = node("warm")
    new = msgspec.structs.replace(
        old, status=msgspec.structs.replace(old.status, images=("img:1",))
    )
    assert seen.fleet.notice(ObjectChange("nodes", old, new)) == []
    after = decided(seen, verdict_cache, work)
    assert isinstance(after, BindReplica)
    assert (after.node, after.score) == ("warm", 100.0)


def test_many_nodes_that_come_at_once_make_devices_worth_sparing() -> None:
    """A class that was evaluated while there were none is evaluated again. [F3]"""
    verdict_cache, seen = VerdictCache(), view(node())
    assert isinstance(decided(seen, verdict_cache), BindReplica)
    devices = (Device(id="g", device_class="gpu"),)
    for index in range(200):
        seen.fleet.notice(ObjectChange("nodes", None, node(f"rich-{index}", devices=devices)))
    found = decided(seen, verdict_cache)
    assert isinstance(found, BindReplica)
    assert (found.node, found.scores["scarce"]) == ("n", 100.0)


def test_a_filter_that_depends_on_the_load_is_evaluated_before_each_placement() -> None:
    """Also when many of one class are placed at once: it allows one on each node. [F2]"""

    def alone(work: PendingWork, candidate: Candidate) -> Refusal | None:
        taken = candidate.site.ledger.used
        return Refusal(Reason.NOT_ALLOWED, "the node is occupied") if taken else None

    def all_alone(work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level) -> Codes | None:
        columns = view.columns
        taken = (columns.free[:, rows] != columns.total[:, rows]).any(axis=0)
        return taken.astype(np.uint8)

    lonely = Filter("alone", alone, all_alone, ("NotAlone",), passes=True, by_load=True)
    seen = view(node("a"), node("b"), policy=policy(filters=("alone",)))
    verdict_cache = VerdictCache(filters=[lonely])
    first = propose(seen, [replica(), replica()], NOW, 1, verdict_cache)
    assert len(first) == 1, "the next one depends on it"
    (only,) = first
    assert isinstance(only, BindReplica)
    seen.fleet.assume("x", ("acme", "x"), only.node, only.held, 0)
    found = decided(seen, verdict_cache)
    assert isinstance(found, BindReplica)
    assert found.node != only.node
    assert found.reasons == {"NotAlone": 1}


# What is kept ------------------------------------------------------------------------------------


def test_replicas_of_one_template_are_one_class_and_others_are_not() -> None:
    verdict_cache = VerdictCache()
    assert verdict_cache.key(replica()) == verdict_cache.key(replica())
    assert verdict_cache.key(replica()) != verdict_cache.key(replica(template("2")))
    assert verdict_cache.key(replica()) != verdict_cache.key(replica(zones=("a",)))
    alone = replica()
    spec = msgspec.structs.replace(alone.spec, gang="together")
    assert verdict_cache.key(alone) != verdict_cache.key(msgspec.structs.replace(alone, spec=spec))


def test_the_least_recently_used_class_is_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdict_cache, seen = VerdictCache(), view(node())
    monkeypatch.setattr(verdict_caches, "CELLS_MAX", 1)
    sorts = [
        replica(template(f"{number + 1}m")) for number in range(verdict_caches.CLASSES_MIN + 1)
    ]
    for each in sorts[:-1]:
        decided(seen, verdict_cache, each)
    decided(seen, verdict_cache, sorts[0])
    decided(seen, verdict_cache, sorts[-1])
    kept = [verdict_cache.known(verdict_cache.key(each)) is not None for each in sorts]
    assert kept == [True, False, *[True] * (verdict_caches.CLASSES_MIN - 1)]


def test_node_verdicts_are_shared_by_all_classes_that_ask_the_same_of_nodes() -> None:
    """Classes that differ by labels only share them, until the last of these is dropped."""
    verdict_cache, seen = VerdictCache(), view(node())
    one = replica()
    sorts = [
        msgspec.structs.replace(
            one,
            metadata=msgspec.structs.replace(one.metadata, labels={"app": app}),
            spec=msgspec.structs.replace(one.spec, workload_uid=app),
        )
        for app in ("web", "db")
    ]
    equivalences = [verdict_cache.class_of(each, seen) for each in sorts]
    assert not any(isinstance(each, PlacementReport) for each in equivalences)
    first, second = equivalences
    assert isinstance(first, EquivalenceClass)
    assert isinstance(second, EquivalenceClass)
    assert first is not second
    assert first.verdicts is second.verdicts
    changed = msgspec.structs.replace(seen, rules=1)
    third = verdict_cache.class_of(sorts[0], changed)
    assert isinstance(third, EquivalenceClass)
    assert third.verdicts is not first.verdicts
    fourth = verdict_cache.class_of(sorts[1], changed)
    assert isinstance(fourth, EquivalenceClass)
    assert fourth.verdicts is third.verdicts
    old = weakref.ref(first.verdicts)
    del first, second, equivalences
    gc.collect()
    assert old() is None
