"""The played gangs: times are right, and a reserved start holds small jobs back."""

from __future__ import annotations

from bench.contention.shockwave import GangJob, figures_of, play, resampled

WIDE = GangJob(1, 32, 10)


def test_a_gang_of_all_gpus_waits_for_all_and_is_not_starved() -> None:
    """Without statements small jobs go first; with them only those that end in time. [E3]"""
    jobs = [GangJob(0, 16, 100), WIDE, GangJob(2, 16, 50), GangJob(3, 16, 200)]
    assert play(jobs, is_known=True) == [100, 110, 52, 310]
    # The last one takes the half that the third one returns, and the gang waits for it.
    assert play(jobs, is_known=False) == [100, 262, 52, 252]


def test_the_figures_are_those_of_the_publication() -> None:
    """FTF compares with the job alone on its share of the GPUs."""
    jobs = [GangJob(0, 32, 1_000), GangJob(0, 32, 1_000)]
    found = figures_of(jobs, play(jobs, is_known=True))
    assert found == {"makespan_s": 2, "jct_s": 1.5, "worst_ftf": 32.0, "unfair_pct": 100}


def test_a_resampled_list_keeps_its_arrivals_and_is_the_same_for_the_same_seed() -> None:
    jobs = [GangJob(it, it % 4 + 1, 10 * it + 1) for it in range(30)]
    drawn = resampled(jobs, 7)
    assert [it.arrival_ms for it in drawn] == [it.arrival_ms for it in jobs]
    assert drawn == resampled(jobs, 7) != resampled(jobs, 8)
    assert {it[1:] for it in drawn} <= {it[1:] for it in jobs}
