"""Place, fence, disruption, spread, identity, keys and conditions, against brute force."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from holdfast.model.access.identity import (
    CONTROLLER_PREFIX,
    NODE_PREFIX,
    SCHEDULER_PREFIX,
    SERVER_PREFIX,
    Identity,
    acts_as,
)
from holdfast.model.errors import Invalid, InvariantBroken
from holdfast.model.keys import END, after_prefix, kind_prefix, object_key
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.placement import Placement, Spread, Topology
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.tenant import CapacityClass, Tenant
from holdfast.model.kinds.workload import Disruption
from holdfast.model.lifecycle import Actor, Cause
from holdfast.model.meta import Condition, ConditionStatus, with_condition
from holdfast.model.nodes.fence import PPM, FenceTiming, fence_after_min_ms, short_of_fence_ms
from holdfast.model.placement.disruption import BUDGETED, allowed_missing, disruption_refusal
from holdfast.model.placement.fit import (
    Allocation,
    claim,
    demand_of,
    promise_allocation,
    return_allocation,
)
from holdfast.model.placement.placement_rules import residency_refusal, site_refusal
from holdfast.model.placement.spread import skew_after, spread_refusal
from holdfast.model.quota.ledger import DisruptionLedger, NodeLedger, mirror_node
from holdfast.model.refusal import Refusal
from holdfast.model.registry import KINDS
from tests.scale import examples
from tests.strategies import (
    device_ledgers,
    names,
    nodes,
    placements,
    regions,
    templates,
    tenants,
)

HARD, RECLAIMABLE, SOFT = CapacityClass.HARD, CapacityClass.RECLAIMABLE, CapacityClass.SOFT
BACKED = (HARD, RECLAIMABLE)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


# Where work is allowed.


@settings(max_examples=examples(200))
@given(placement=placements, tenant=tenants, region=regions, known=st.booleans())
def test_residency_is_the_sum_of_all_rules_and_none_loosens_another(
    placement: Placement, tenant: Tenant, region: Region, known: bool
) -> None:
    """The tenant's regions, its residency and the work's must all hold. [B2, C6.2, INV5, J1]"""
    found = region if known else None
    refusal = residency_refusal(placement, tenant, region.name, found)
    needed = {r for r in (tenant.spec.residency, placement.residency) if r}
    permitted = not tenant.spec.regions or region.name in tenant.spec.regions
    lawful = not needed or (known and needed <= set(region.spec.jurisdictions))
    assert (refusal is None) is (permitted and lawful)
    assert residency_refusal(placement, None, region.name, found) is not None
    if residency_refusal(Placement(), tenant, region.name, found) is not None:
        assert refusal is not None


# Knowing that work is gone.

timings = st.builds(
    FenceTiming,
    ack_window_ms=st.integers(0, 5_000),
    self_stop_after_ms=st.integers(0, 30_000),
    grace_ms=st.integers(0, 30_000),
    kill_bound_ms=st.integers(0, 5_000),
    drift_ppm=st.sampled_from((0, 1, 200, 10_000, 500_000)),
    margin_ms=st.integers(0, 2_000),
    fence_after_ms=st.integers(0, 100_000),
)


def dies_at(
    timing: FenceTiming,
    server: Fraction,
    agent: Fraction,
    reads: Iterable[Fraction],
    renewals: Iterable[tuple[Fraction, Fraction]],
) -> Fraction | None:
    """When the work is dead at the latest, in real time; its mark is committed at 0.

    `server` and `agent` are how fast their clocks run. A read that was sent before 0 may show no
    mark; one that was sent later shows it.
    """
    unmarked = [sent for sent in reads if sent < 0]
    acknowledged = [
        sent
        for sent, arrived in renewals
        if any(
            read <= arrived and (arrived - read) * server <= timing.ack_window_ms
            for read in unmarked
        )
    ]
    if not acknowledged:
        return None
    counted = timing.self_stop_after_ms + timing.grace_ms
    return max(acknowledged) + counted / agent + timing.kill_bound_ms


def fenced_at(timing: FenceTiming, controller: Fraction, seen: Fraction) -> Fraction:
    """When the controller replaces the work; it saw its mark committed at `seen`."""
    return seen + timing.fence_after_ms / controller


def rates(timing: FenceTiming) -> tuple[Fraction, Fraction]:
    return Fraction(PPM - timing.drift_ppm, PPM), Fraction(PPM + timing.drift_ppm, PPM)


moments = st.integers(-8_000, 20_000).map(Fraction)


@settings(max_examples=examples(200))
@given(
    timing=timings,
    late=st.integers(0, 2_000),
    reads=st.lists(moments, max_size=6),
    renewals=st.lists(st.tuples(moments, st.integers(0, 3_000)), max_size=6),
    skews=st.tuples(*[st.fractions(-1, 1)] * 3),
)
def test_no_work_is_alive_after_a_safe_fence(
    timing: FenceTiming,
    late: int,
    reads: list[Fraction],
    renewals: list[tuple[Fraction, int]],
    skews: tuple[Fraction, Fraction, Fraction],
) -> None:
    """Whatever clocks, reads and renewals do, a safe wait outlives the work. [C6.4, H5, INV2]"""
    wait = fence_after_min_ms(timing) if short_of_fence_ms(timing) else timing.fence_after_ms
    timing = msgspec.structs.replace(timing, fence_after_ms=wait)
    assert short_of_fence_ms(timing) == 0
    server, agent, controller = (1 + skew * timing.drift_ppm / PPM for skew in skews)
    sent = [(at, at + delay) for at, delay in renewals]
    death = dies_at(timing, server, agent, reads, sent)
    assert death is None or death <= fenced_at(timing, controller, Fraction(late)) - (
        timing.margin_ms / controller
    )


@given(timing=timings)
def test_a_short_fence_meets_its_predecessor(timing: FenceTiming) -> None:
    """The bound is not just safe but needed: short by more than margin and rounding, and the
    slowest agent, the slowest server and the fastest controller find work alive. [INV2]"""
    short = msgspec.structs.replace(
        timing, fence_after_ms=fence_after_min_ms(timing) - timing.margin_ms - 3
    )
    assume(short.fence_after_ms >= 0)
    assert short_of_fence_ms(short) > 0
    slow, fast = rates(short)
    read = Fraction(-1, 1_000)
    at = read + short.ack_window_ms / slow
    death = dies_at(short, slow, slow, [read], [(at, at)])
    assert death is not None
    assert death > fenced_at(short, fast, Fraction(0))


@given(timing=timings)
def test_the_fence_rounds_by_less_than_two_milliseconds(timing: FenceTiming) -> None:
    """The integer bound is the formula, rounded up once per term."""
    slow, fast = rates(timing)
    running = timing.ack_window_ms + timing.self_stop_after_ms + timing.grace_ms
    formula = running * fast / slow + timing.kill_bound_ms * fast + timing.margin_ms
    assert 0 <= fence_after_min_ms(timing) - formula < 2


@given(
    timing=timings,
    field=st.sampled_from(FenceTiming.__struct_fields__),
    value=st.one_of(st.integers(max_value=-1), st.integers(min_value=PPM)),
)
def test_impossible_times_are_never_called_safe(
    timing: FenceTiming, field: str, value: int
) -> None:
    """A clock that may stand still, or a negative time, would turn the inequality around. [H7]"""
    assume(value < 0 or field == "drift_ppm")
    with pytest.raises(Invalid, match=field):
        short_of_fence_ms(msgspec.structs.replace(timing, **{field: value}))


# What may be taken away, and how work spreads.

uids = st.integers(0, 5)
disruptions = st.lists(
    st.one_of(
        st.tuples(st.just("evict"), uids, st.sampled_from(Cause)),
        st.tuples(st.sampled_from(("lost", "back")), uids, st.just(Cause.DRAIN)),
    ),
    max_size=15,
)


@settings(max_examples=examples(200))
@given(
    allowed=st.one_of(st.none(), st.integers(0, 3)),
    desired=st.one_of(st.none(), st.just(6)),
    steps=disruptions,
)
def test_a_budget_is_never_overdrawn_by_those_who_must_ask(
    allowed: int | None, desired: int | None, steps: list[tuple[str, int, Cause]]
) -> None:
    """An accepted drain, rollout or preemption leaves no more missing than allowed, or takes what
    was missing already; losses for other reasons count. [G4]"""
    gone: set[int] = set()
    for what, uid, cause in steps:
        ledger = DisruptionLedger(
            allowed=allowed, desired=desired, replicas=6, healthy=6 - len(gone)
        )
        if what == "lost":
            gone.add(uid)
        elif what == "back":
            gone.discard(uid)
        else:
            refusal = disruption_refusal(ledger, cause, available=uid not in gone)
            must_ask = cause in BUDGETED and allowed is not None
            assert (refusal is not None) is (
                must_ask and uid not in gone and len(gone | {uid}) > (allowed or 0)
            )
            gone |= {uid} if refusal is None else set()


@given(
    least=st.one_of(st.integers(0, 12), st.integers(0, 100).map(lambda share: f"{share}%")),
    desired=st.integers(0, 12),
    causes=st.lists(st.sampled_from(sorted(BUDGETED)), min_size=12, max_size=12),
)
def test_what_must_stay_stays(least: int | str, desired: int, causes: list[Cause]) -> None:
    """Evicting until it is refused leaves at least minAvailable, exactly as stated."""
    allowed = allowed_missing(Disruption(min_available=least), desired)
    assert allowed is not None
    left = desired
    for cause in causes[:desired]:
        ledger = DisruptionLedger(allowed=allowed, desired=desired, replicas=desired, healthy=left)
        left -= disruption_refusal(ledger, cause) is None
    stay = Fraction(least.rstrip("%")) * desired / 100 if isinstance(least, str) else least
    assert left >= min(stay, desired)
    assert left - 1 < stay or left in (0, desired)


places = st.sampled_from(("a", "b", "c", "d"))


@given(
    counts=st.dictionaries(places, st.integers(0, 6)),
    eligible=st.sets(places, min_size=1),
    place=places,
    most=st.integers(1, 3),
)
def test_skew_is_what_counting_after_the_fact_finds(
    counts: dict[str, int], eligible: set[str], place: str, most: int
) -> None:
    """The rule refuses exactly what would leave one place too full, and never all of them. [F2]"""
    rule = Spread(over=Topology.ZONE, max_skew=most, required=True)
    after = {**counts, place: counts.get(place, 0) + 1}
    skew = after[place] - min(after.get(other, 0) for other in {*eligible, place})
    assert skew_after(counts, sorted(eligible), place) == skew
    assert (spread_refusal(rule, counts, sorted(eligible), place) is None) is (skew <= most)
    open_ = [p for p in eligible if spread_refusal(rule, counts, sorted(eligible), p) is None]
    assert open_


# Who is asking, and where things lie.

_TRICKS = (
    "system:",
    "SYSTEM:",
    "system",
    "ѕystem:",
    "system：",
    " system:",
    "controller:",
    "node:",
)
_PARTS = (*(actor.value for actor in Actor), "authority", "masters", "node:", "scheduler:", "a", "")


@settings(max_examples=examples(200))
@given(
    name=st.one_of(
        st.text(max_size=12),
        st.tuples(st.sampled_from(_TRICKS), st.sampled_from(_PARTS), st.text(max_size=4)).map(
            "".join
        ),
        st.tuples(st.sampled_from(("system:", "system:controller:")), st.sampled_from(Actor)).map(
            "".join
        ),
    ),
    groups=st.lists(st.sampled_from(("system:masters", "system:nodes", "")), max_size=2),
)
def test_no_caller_becomes_another_actor_by_the_name_it_gives(name: str, groups: list[str]) -> None:
    """Each actor of the plane has one spelling, and people never are one. [A9, C6.3, C6.7, INV6]"""
    actors = acts_as(Identity(name=name, groups=tuple(groups)))
    for actor in Actor:
        if actor.value.startswith("controller:"):
            assert (actor in actors) is (name == f"system:{actor.value}")
    for actor, prefix in (
        (Actor.SCHEDULER, SCHEDULER_PREFIX),
        (Actor.AGENT, NODE_PREFIX),
        (Actor.AUTHORITY, SERVER_PREFIX),
    ):
        if actor in actors:
            assert name.startswith(prefix)
            assert set(name.removeprefix(prefix)) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
            assert name != prefix
    if Actor.USER in actors:
        assert name.strip()
        assert not name.startswith("system:")
        assert set(actors) <= {Actor.USER, Actor.OPERATOR}
    else:
        assert len(actors) <= 1
    assert (Actor.OPERATOR in actors) is (Actor.USER in actors)


def test_every_controller_can_be_itself() -> None:
    """The table of names covers all actors, or a controller would be refused everything."""
    for actor in Actor:
        short = actor.value.removeprefix("controller:")
        if short != actor.value:
            assert acts_as(Identity(name=CONTROLLER_PREFIX + short)) == (actor,)


addresses = st.tuples(st.sampled_from(KINDS), names, names)


@given(first=addresses, second=addresses)
def test_two_objects_never_share_a_key(
    first: tuple[Kind, str, str], second: tuple[Kind, str, str]
) -> None:
    """A key is equal only for equal kind, name and, where it counts, namespace. [C2]"""
    meant = [
        (kind.name, namespace if kind.namespaced else "", name)
        for kind, namespace, name in (first, second)
    ]
    assert (object_key(*first) == object_key(*second)) is (meant[0] == meant[1])


@given(stored=st.lists(addresses, max_size=8), kind=st.sampled_from(KINDS), namespace=names)
def test_a_list_is_one_range_with_nothing_else_in_it(
    stored: list[tuple[Kind, str, str]], kind: Kind, namespace: str
) -> None:
    """All objects of a kind, or of one namespace, and no others. [C8]"""
    for other, where, name in stored:
        key, mine = object_key(other, where, name), other is kind
        for prefix, inside in (
            (kind_prefix(kind), mine),
            (kind_prefix(kind, namespace), mine and (not kind.namespaced or where == namespace)),
        ):
            assert (prefix <= key < after_prefix(prefix)) is inside


texts = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("a/\ud7ff\ue000\uffff\U00010000\U0010ffff"),
    ),
    max_size=4,
)


@settings(max_examples=examples(200))
@given(prefix=texts, key=texts)
@example(prefix="\ud7ff", key="\ue000")
@example(prefix="a\U0010ffff", key="b")
@example(prefix="", key="\U0010fffe")
def test_a_range_holds_exactly_the_keys_with_its_prefix(prefix: str, key: str) -> None:
    """Also at the edges of Unicode, and in the same order as UTF-8, which stores use. [C8]"""
    assume(not key.startswith(END))
    end = after_prefix(prefix)
    assert (prefix <= key < end) is key.startswith(prefix)
    assert (key < end) is (key.encode() < end.encode())


# Conditions.

conditions = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(("Ready", "Bound", "Progressing")),
        status=st.sampled_from(ConditionStatus),
        reason=st.sampled_from(("", "Because")),
        observed_generation=st.integers(0, 2),
    ),
    max_size=8,
)


@given(history=conditions)
def test_a_condition_is_one_per_type_and_silent_when_nothing_changed(
    history: list[Condition],
) -> None:
    """Saying the same again is the same tuple; its time is that of the last change. [A2, V4]"""
    held: tuple[Condition, ...] = ()
    since: dict[str, tuple[ConditionStatus, datetime]] = {}
    for step, new in enumerate(history):
        at = NOW + timedelta(seconds=step)
        held = with_condition(held, new, at)
        assert with_condition(held, new, at + timedelta(hours=1)) is held
        if since.get(new.type, (None,))[0] is not new.status:
            since[new.type] = new.status, at
        assert {c.type: (c.status, c.last_transition_time) for c in held} == since
        assert len(held) == len(since)
        assert next(c.reason for c in held if c.type == new.type) == new.reason


# Total.


@given(node=nodes(), template=templates, tenant=tenants, region=regions, ledger=device_ledgers)
def test_rules_give_an_answer_for_every_valid_object(
    node: Node, template: Template, tenant: Tenant, region: Region, ledger: NodeLedger
) -> None:
    """No valid object makes a rule raise anything but our own words."""
    wanted = demand_of(template)
    mine = mirror_node(node, ledger)
    got = claim(mine, wanted)
    assert isinstance(got, Allocation | Refusal)
    assert site_refusal(mine.gate, template.placement) is None
    residency_refusal(template.placement, tenant, mine.gate.region, region)
    for wrong in (return_allocation, promise_allocation):
        held = Allocation(
            charge={"cpu": 1}, devices=(DeviceShare("none", "gpu", 1),), ports=("TCP/1",)
        )
        with pytest.raises(InvariantBroken):
            wrong(NodeLedger(gate=mine.gate), held, "r")
