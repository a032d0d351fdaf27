"""The shell of a machine: its stimuli, its effects, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.process.clock import monotonic_ms
from holdfast.host.process.shell import ShellLimits
from holdfast.model.errors import HoldfastError, InvariantBroken, OutcomeUnknown, Unavailable
from holdfast.model.machine import Answer, Answered, Asked, Persist, Started, Txn, Withdrawn
from holdfast.model.time import Instant
from holdfast.model.transaction import Committed
from holdfast.store.memory import MemoryStore
from tests.puppet import PERSON, Puppet, obey, play, put, shell


def test_a_machine_gets_started_as_its_first_stimulus() -> None:
    """Also when a request came in before."""

    async def story() -> None:
        puppet = Puppet(obey)
        one = shell(puppet)
        early = one.submit(PERSON, [], 5.0)
        async with one:
            assert await early == "done"
        started, asked = puppet.stimuli
        assert isinstance(started, Started)
        assert started.durable == {}
        assert len(started.boot) == 36
        assert (asked.sender, asked.body) == (PERSON, [])
        assert puppet.instants[0].monotonic_ms <= monotonic_ms()
        assert puppet.instants[0].wall_ms > 1_600_000_000_000

    play(story())


def test_what_is_persisted_is_there_in_the_next_life(tmp_path: Path) -> None:
    """[C7.4]"""

    async def story() -> None:
        effects = [
            Persist("epoch", b"7"),
            Persist("odd/../name", b"x"),
            Persist("gone", b"y"),
            Persist("epoch", b"8"),
            Persist("gone", None),
        ]
        async with shell(Puppet(obey), folder=tmp_path / "one") as one:
            await one.ask(PERSON, effects, 5.0)
        (tmp_path / "one" / ".half.value.new").write_bytes(b"a crash left this")
        puppet = Puppet(obey)
        async with shell(puppet, folder=tmp_path / "one"):
            started = (await puppet.told(Started))[0]
        assert started.durable == {"epoch": b"8", "odd/../name": b"x"}

    play(story())
    assert not list(tmp_path.glob("**/.*.new"))


def test_effects_are_performed_in_order_and_a_value_is_on_disk_before_the_next(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        seen: list[Any] = []

        def react(stimulus: Any, now: Instant) -> Sequence[Any]:
            if not isinstance(stimulus, Asked):
                return ()
            waiting.append(stimulus.call)
            if len(waiting) < 2:
                return ()
            return [Answer(waiting[0], "before"), Persist("k", b"v"), Answer(waiting[1], "after")]

        waiting: list[int] = []
        async with shell(Puppet(react), folder=tmp_path) as one:
            files = lambda _: seen.append([p.name for p in tmp_path.iterdir()])  # noqa: E731
            first, second = one.submit(PERSON, 1, 5.0), one.submit(PERSON, 2, 5.0)
            second.add_done_callback(files)
            assert await asyncio.gather(first, second) == ["before", "after"]
        assert seen == [["k.value"]]

    play(story())


def test_a_value_that_cannot_be_kept_stops_the_machine(tmp_path: Path) -> None:
    """A machine whose disk fails has promised what it cannot keep. [INV11]"""

    async def story() -> None:
        one = shell(Puppet(obey), folder=tmp_path / "one")
        await one.start()
        (tmp_path / "one").rmdir()
        with pytest.raises(OutcomeUnknown):
            await one.ask(PERSON, [Persist("k", b"v")], 5.0)
        with pytest.raises(FileNotFoundError):
            await one.stop()

    play(story())


def test_a_machine_that_breaks_stops_and_all_callers_learn() -> None:
    """The exception is raised; waiting callers get OutcomeUnknown."""

    async def story() -> None:
        def react(stimulus: Any, now: Instant) -> Sequence[Any]:
            if isinstance(stimulus, Asked) and stimulus.body == "break":
                raise InvariantBroken("a device has two owners")
            return ()

        one = shell(Puppet(react))
        await one.start()
        waiting = one.submit(PERSON, "wait", 5.0)
        with pytest.raises(OutcomeUnknown):
            await one.ask(PERSON, "break", 5.0)
        assert isinstance(await waiting, OutcomeUnknown)
        with pytest.raises(InvariantBroken, match="two owners"):
            await one.wait()
        with pytest.raises(Unavailable):
            await one.ask(PERSON, "again", 5.0)
        with pytest.raises(InvariantBroken):
            await one.stop()

    play(story())


def test_an_effect_without_a_performer_is_a_bug() -> None:
    async def story() -> None:
        one = shell(Puppet(obey))
        await one.start()
        with pytest.raises(OutcomeUnknown):
            await one.ask(PERSON, ["no effect at all"], 5.0)
        with pytest.raises(InvariantBroken, match="does not perform str"):
            await one.stop()

    play(story())


def test_a_request_without_answer_was_begun_or_was_not() -> None:
    """Only what no machine has seen is called Unavailable. [N1.1]"""

    async def story() -> None:
        one = shell(puppet := Puppet())
        with pytest.raises(Unavailable):
            await one.ask(PERSON, "too early", 0.01)
        async with one:
            with pytest.raises(OutcomeUnknown):
                await one.ask(PERSON, "seen", 0.01)
        assert [s.body for s in puppet.stimuli if isinstance(s, Asked)] == ["seen"]

    play(story())


def test_an_asker_that_left_is_not_answered_and_an_unbegun_request_not_begun() -> None:
    async def story() -> None:
        one = shell(puppet := Puppet(obey))
        left = one.submit(PERSON, [], 5.0)
        left.cancel()
        async with one:
            seen = one.submit(PERSON, [], 5.0)
            await puppet.told(Asked)
            seen.cancel()
            assert await one.ask(PERSON, [], 5.0) == "done"
        assert len(await puppet.told(Asked, 2)) == 2

    play(story())


def test_requests_beyond_the_bound_are_refused_at_once() -> None:
    async def story() -> None:
        async with shell(Puppet(), limits=ShellLimits(asks_max=3)) as one:
            waiting = [one.submit(PERSON, n, 5.0) for n in range(3)]
            with pytest.raises(Unavailable, match="3 requests"):
                await one.ask(PERSON, "one more", 5.0)
        answers = await asyncio.gather(*waiting)
        assert all(isinstance(answer, HoldfastError) for answer in answers)

    play(story())


def test_a_client_that_leaves_a_batch_withdraws_what_is_undecided_of_it() -> None:
    """As when its connection closes: the machine gets all of them at once. [INV3]"""

    async def story() -> None:
        async with shell(puppet := Puppet()) as one:

            async def ask() -> None:
                with one.submitted(PERSON, ["a", "b", "c"], 5.0) as answers:
                    await asyncio.gather(*answers)

            asking = asyncio.create_task(ask())
            calls = [it.call for it in await puppet.told(Asked, 3)]
            asking.cancel()
            (withdrawn,) = await puppet.told(Withdrawn)
            assert withdrawn.calls == tuple(calls)

    play(story())


@pytest.mark.parametrize("grace_s", [0.0, 5.0])
def test_a_stop_with_grace_answers_what_was_asked(grace_s: float) -> None:
    async def story() -> None:
        store = MemoryStore()
        asked: list[int] = []

        def react(stimulus: Any, now: Instant) -> Sequence[Any]:
            if isinstance(stimulus, Asked):
                asked.append(stimulus.call)
                return [Txn(stimulus.call, put("a"))]
            if isinstance(stimulus, Answered):
                return [Answer(stimulus.call, stimulus.body)]
            return ()

        one = shell(puppet := Puppet(react), store=store)
        await one.start()
        future = one.submit(PERSON, "slow", 5.0)
        await puppet.told(Asked)
        await one.stop(grace_s)
        if grace_s:
            assert await future == Committed(1)
        else:
            assert isinstance(await future, OutcomeUnknown)
        with pytest.raises(Unavailable):
            await one.ask(PERSON, "after", 5.0)
        await store.close()

    play(story())


def test_effects_of_its_own_kind_are_performed_for_a_machine_in_their_order() -> None:
    """By the performers of its shell, which answer through `post`."""

    class Rang:
        pass

    async def story() -> None:
        puppet = Puppet(obey)
        performed: list[str] = []

        def ring(effect: str) -> None:
            performed.append(effect)
            one.post(Rang())

        one = shell(puppet, performers={str: ring})
        async with one:
            assert await one.ask(PERSON, ["a", "b"], 5.0) == "done"
            assert performed == ["a", "b"]
            await puppet.told(Rang, 2)
        one.post(Rang())
        assert len(puppet.heard(Rang)) == 2

    play(story())


def test_a_bug_of_a_performer_stops_the_machine() -> None:
    async def story() -> None:
        one = shell(Puppet(obey))
        await one.start()
        one.fail(InvariantBroken("a performer lost count"))
        with pytest.raises(InvariantBroken, match="lost count"):
            await one.wait()

    play(story())


def test_a_machine_learns_which_requests_have_no_waiting_caller() -> None:
    """A request whose caller has left or timed out is not begun."""

    async def story() -> None:
        puppet = Puppet(lambda stimulus, now: ())
        async with shell(puppet) as one:
            gone = asyncio.create_task(one.ask(PERSON, "gone", 30.0))
            (asked,) = await puppet.told(Asked)
            gone.cancel()
            assert await puppet.told(Withdrawn) == [Withdrawn((asked.call,))]
            with pytest.raises(OutcomeUnknown):
                await one.ask(PERSON, "late", 0.02)
            late = (await puppet.told(Asked, 2))[1]
            assert (await puppet.told(Withdrawn, 2))[1] == Withdrawn((late.call,))

    play(story())
