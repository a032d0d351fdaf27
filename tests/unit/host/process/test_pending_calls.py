"""Calls of a machine run concurrently, and each gets exactly one answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.host.process.peers import Peers, PeerTable
from holdfast.host.process.shell import Shell, ShellLimits
from holdfast.model.access.identity import Identity, server
from holdfast.model.errors import Expired, OutcomeUnknown, Unavailable
from holdfast.model.machine import Answered, Ask, Asked, FateOf, Range, Txn
from holdfast.model.transaction import Committed, CompareFailed, Page, Record, TokenApplied
from holdfast.store.contract import KEY_END
from holdfast.store.memory import MemoryStore
from tests.puppet import PERSON, Puppet, obey, play, put, shell


def test_each_call_to_the_store_gets_one_answer() -> None:
    async def story() -> None:
        store = MemoryStore()
        token = store.new_token()
        puppet = Puppet(obey)
        async with shell(puppet, store=store) as one:
            effects = [
                Txn(1, put("a"), token),
                Txn(2, put("a")),
                FateOf(3, token),
                Range(4, "", KEY_END),
                Range(5, "", KEY_END, at=99),
            ]
            await one.ask(PERSON, effects, 5.0)
            answers = {a.call: a.body for a in await puppet.told(Answered, 5)}
        record = Record("a", b"1", 1, 1)
        expired = answers.pop(5)
        assert answers == {
            1: Committed(1),
            2: CompareFailed(1, (record,)),
            3: TokenApplied(1),
            4: Page(1, (record,)),
        }
        assert isinstance(expired, Expired)
        await store.close()

    play(story())


def test_a_store_that_fails_answers_with_values() -> None:
    async def story() -> None:
        store = MemoryStore()
        await store.close()
        puppet = Puppet(obey)
        async with shell(puppet, store=store) as one:
            await one.ask(PERSON, [Txn(1, put("a")), Range(2, "", KEY_END)], 5.0)
            answers = await puppet.told(Answered, 2)
        assert all(isinstance(answer.body, Unavailable) for answer in answers)

    play(story())


class Mute(MemoryStore):
    """A store whose answers never come."""

    async def txn(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    async def range(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()


def test_a_store_that_is_silent_may_have_done_it() -> None:
    """A read has changed nothing; a transaction may have. [N1.1]"""

    async def story() -> None:
        store, puppet = Mute(), Puppet(obey)
        async with shell(puppet, store=store) as one:
            calls = [Txn(1, put("a"), timeout_ms=10), Range(2, "", KEY_END, timeout_ms=10)]
            await one.ask(PERSON, calls, 5.0)
            answers = {a.call: a.body for a in await puppet.told(Answered, 2)}
        assert isinstance(answers[1], OutcomeUnknown)
        assert isinstance(answers[2], Unavailable)
        await store.close()

    play(story())


def test_calls_beyond_the_bound_certainly_did_not_happen() -> None:
    async def story() -> None:
        store, puppet = Mute(), Puppet(obey)
        async with shell(puppet, store=store, limits=ShellLimits(calls_max=2)) as one:
            await one.ask(PERSON, [Range(n, "", KEY_END) for n in range(3)], 5.0)
            answer = (await puppet.told(Answered))[0]
        assert answer.call == 2
        assert isinstance(answer.body, Unavailable)
        await store.close()

    play(story())


class Broken(MemoryStore):
    async def txn(self, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError


def test_a_bug_below_stops_the_machine_instead_of_leaving_it_without_answer() -> None:
    async def story() -> None:
        store = Broken()
        one = shell(Puppet(obey), store=store)
        await one.start()
        await one.ask(PERSON, [Txn(1, put("a"))], 5.0)
        with pytest.raises(ZeroDivisionError):
            await one.wait()
        await store.close()

    play(story())


def test_machines_of_one_process_reach_each_other_by_name() -> None:
    """An unknown name is Unavailable, since nothing can have happened."""

    async def story() -> None:
        table = PeerTable()
        asking, asked = Puppet(obey), Puppet(obey)
        one = Shell(asking, server("one"), peers=table)
        two = Shell(asked, server("two"), peers=table)
        table.add("two", two)
        async with one, two:
            calls = [Ask(1, "two", [], 5_000), Ask(2, "three", [], 5_000)]
            await one.ask(PERSON, calls, 5.0)
            answers = {a.call: a.body for a in await asking.told(Answered, 2)}
            assert answers[1] == "done"
            assert isinstance(answers[2], Unavailable)
            assert (await asked.told(Asked))[0].sender == server("one")
            table.remove("two")
            await one.ask(PERSON, [Ask(3, "two", [], 5_000)], 5.0)
            assert isinstance((await asking.told(Answered, 3))[2].body, Unavailable)

    play(story())


def test_a_machine_without_neighbours_gets_an_error() -> None:
    async def story() -> None:
        async with shell(puppet := Puppet(obey)) as one:
            await one.ask(PERSON, [Ask(1, "anybody", [], 5_000)], 5.0)
            assert isinstance((await puppet.told(Answered))[0].body, Unavailable)

    play(story())


class Gathering(Peers):
    """Accepts requests without a task for each, and answers as scripted."""

    def __init__(self) -> None:
        self.futures: dict[Any, asyncio.Future[Any]] = {}

    def submit(
        self, sender: Identity, to: str, body: Any, timeout_s: float
    ) -> asyncio.Future[Any] | None:
        if body == "nowhere":
            raise Unavailable("there is no way")
        if body == "alone":
            return None
        self.futures[body] = asyncio.get_running_loop().create_future()
        return self.futures[body]

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        return f"{body} was asked"


def test_questions_that_travel_together_have_one_answer_each_as_others_do() -> None:
    """Errors are values here too, and a stop waits for none of them."""

    async def story() -> None:
        peers, puppet = Gathering(), Puppet(obey)
        async with Shell(puppet, server("one"), peers=peers) as one:
            bodies = ("a", "b", "nowhere", "alone", "never")
            asked = [Ask(n, "x", body, 5_000) for n, body in enumerate(bodies, 1)]
            await one.ask(PERSON, asked, 5.0)
            peers.futures["a"].set_result("yes")
            lost = OutcomeUnknown("lost")
            peers.futures["b"].set_result(lost)
            answers = {a.call: a.body for a in await puppet.told(Answered, 4)}
            assert isinstance(answers.pop(3), Unavailable)
            assert answers == {1: "yes", 2: lost, 4: "alone was asked"}
        assert peers.futures["never"].cancelled()

    play(story())


def test_a_bug_on_the_way_of_many_stops_the_machine() -> None:
    async def story() -> None:
        peers = Gathering()
        one = Shell(Puppet(obey), server("one"), peers=peers)
        await one.start()
        await one.ask(PERSON, [Ask(1, "x", "a", 5_000)], 5.0)
        peers.futures["a"].set_exception(ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await one.wait()

    play(story())
