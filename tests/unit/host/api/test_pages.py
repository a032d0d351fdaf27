"""Lists in pages while objects come, change and go: all pages together are one moment. [C8]"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.host.api.flow import loop_share
from holdfast.host.api.objects import reads
from holdfast.store import mvcc
from tests.unit.host.api.api_rig import GROUP, MERGE, ApiRig, play, store_of

ROUNDS = 20
NAMES = tuple(f"w{number:02}" for number in range(12))
CLASSES = f"{GROUP}/priorityclasses"
# A selector of each sort, and which objects it selects: by labels, by fields that are at hand, and
# by fields for which an object has to be read.
SELECTORS: dict[str, Callable[[str, str, bool], bool]] = {
    "": lambda name, team, preempts: True,
    "&labelSelector=team=red": lambda name, team, preempts: team == "red",
    "&fieldSelector=metadata.name!=w05": lambda name, team, preempts: name != "w05",
    "&fieldSelector=spec.preempts=true": lambda name, team, preempts: preempts,
}


class Fleet:
    """Objects that change at random: the team and a field of each that exists."""

    def __init__(self, rig: ApiRig, rng: random.Random) -> None:
        self.rig, self.rng = rig, rng
        self.there: dict[str, tuple[str, bool]] = {}

    async def change(self) -> None:
        name, team = self.rng.choice(NAMES), self.rng.choice(("red", "blue"))
        preempts = self.rng.random() < 0.5
        at, said = f"{CLASSES}/{name}", {"labels": {"team": team}}
        if name not in self.there:
            spec = {"value": 7, "preempts": preempts}
            body = {"kind": "PriorityClass", "metadata": {"name": name, **said}, "spec": spec}
            answer = await self.rig.send("POST", CLASSES, body)
        elif self.rng.random() < 0.4:
            answer = await self.rig.send("DELETE", at)
            del self.there[name]
        else:
            change = {"metadata": said, "spec": {"preempts": preempts}}
            answer = await self.rig.send("PATCH", at, change, headers={"Content-Type": MERGE})
        assert answer.code in (200, 201), answer.body
        if answer.code == 201 or name in self.there:
            self.there[name] = (team, preempts)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_pages_are_of_one_moment(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left out and nothing told twice, wherever pages and slices end."""
    monkeypatch.setattr(loop_share, "SLICE_S", 0.0)
    monkeypatch.setattr(reads, "LOOKED_AT_MAX", 3)
    monkeypatch.setattr(mvcc, "LOOKED_AT_MAX", 2)

    async def story() -> None:
        async with ApiRig(await store_of(store, tmp_path)) as rig:
            rng = random.Random(7)
            fleet = Fleet(rig, rng)
            for _ in range(20):
                await fleet.change()
            for _ in range(ROUNDS):
                selector, selects = rng.choice(list(SELECTORS.items()))
                wanted = sorted(n for n, it in fleet.there.items() if selects(n, *it))
                asked = f"{CLASSES}?limit={rng.choice((1, 2, 5))}{selector}"
                found, token = [], ""
                while True:
                    answer = await rig.send("GET", asked + token)
                    assert answer.code == 200, answer.body
                    found += [it["metadata"]["name"] for it in answer.body["items"]]
                    more = answer.body["metadata"].get("continue")
                    if not more:
                        break
                    token = f"&continue={more}"
                    for _ in range(rng.randrange(3)):
                        await fleet.change()
                assert found == wanted, asked

    play(story())
