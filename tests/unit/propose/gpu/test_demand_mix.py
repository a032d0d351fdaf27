from __future__ import annotations

from holdfast.propose.gpu import GpuDemand, LearnedMix, typical_mix
from holdfast.propose.gpu.demand_mix import HALF_LIFE, KINDS_MAX, TYPICAL_MAX

A = GpuDemand(1_000, 500, 1)
B = GpuDemand(2_000, 1_000, 1)
C = GpuDemand(8_000, 1_000, 8)


def test_the_mix_holds_the_most_frequent_kinds_until_they_cover_the_share() -> None:
    """Among equals the larger comes first, and shares add up to one. [F3]"""
    mix = typical_mix({A: 5, B: 4, C: 1}, cover=0.9)
    assert [(typical.demand, typical.share) for typical in mix] == [(A, 5 / 9), (B, 4 / 9)]
    assert [typical.demand for typical in typical_mix({A: 1, B: 1}, cover=0.5)] == [B]
    assert [typical.demand for typical in typical_mix({A: 5, B: 4, C: 1}, most=1)] == [A]
    assert typical_mix({}) == ()


def test_demands_that_differ_in_memory_only_are_one_kind_with_their_mean() -> None:
    """Memory varies more than what is worth telling apart. [F3]"""
    counts = {GpuDemand(1, 500, 1, (), 100): 3, GpuDemand(1, 500, 1, (), 200): 1}
    (typical,) = typical_mix(counts)
    assert (typical.demand.memory, typical.share) == (125, 1.0)


def test_a_mix_is_learnt_from_the_first_demand_on() -> None:
    """The very first decision knows at least the replica that it is about. [F3]"""
    learned = LearnedMix()
    assert learned.see(A)
    assert [typical.demand for typical in learned.mix] == [A]


def test_work_without_devices_has_no_part_in_the_learnt_mix() -> None:
    """It uses no idle GPU, however often it comes. [F3]"""
    learned = LearnedMix()
    assert not learned.see(GpuDemand(1_000))
    assert learned.mix == ()


def test_the_learnt_mix_comes_near_the_true_one_and_rests_there() -> None:
    """Of a steady stream few demands change the mix, since a change costs all scores. [F3]"""
    learned = LearnedMix()
    changes = [learned.see((A, A, A, B)[index % 4]) for index in range(2_000)]
    shares = {typical.demand: typical.share for typical in learned.mix}
    assert abs(shares[A] - 0.75) < 0.05
    assert sum(changes) < 30
    assert not any(changes[200:])


def test_what_no_longer_comes_is_forgotten() -> None:
    """A fleet whose work changes is followed. [F3]"""
    learned = LearnedMix()
    for _ in range(HALF_LIFE):
        learned.see(A)
    for _ in range(6 * HALF_LIFE):
        learned.see(B)
    shares = {typical.demand: typical.share for typical in learned.mix}
    assert shares[B] > 0.9


def test_random_demands_do_not_fill_memory() -> None:
    """Kinds are bounded, and a frequent one survives the noise. [F3]"""
    learned = LearnedMix()
    for index in range(2 * KINDS_MAX):
        learned.see(GpuDemand(index + 1, 100, 1))
        learned.see(A)
    assert len(learned.counts) <= KINDS_MAX
    assert len(learned.mix) <= TYPICAL_MAX
    assert learned.mix[0].demand == A


def test_counting_never_ends_in_infinity() -> None:
    """The unit of counting is brought down before it overflows. [F3]"""
    learned = LearnedMix()
    learned.see(A)
    learned.unit = 1e100
    learned.see(B)
    learned.see(A)
    assert learned.unit < 2
    assert all(0 <= count < 2 for count in learned.counts.values())
