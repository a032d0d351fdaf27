"""Replays over a real store's history: what was stored then, not what is stored now."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.host.process.metrics import Metrics
from holdfast.host.server.decision_archive import Decisions
from holdfast.host.server.explaining import replay_round
from holdfast.model.errors import Expired, Missing
from holdfast.model.machine import ArchiveRecord
from holdfast.propose.decision_rounds import DecisionRound
from holdfast.store.memory import MemoryStore
from tests.unit.propose.test_scheduler_on_a_plane import OnPlane


class Watched(OnPlane):
    """A scheduler over the real authority, whose records the test keeps."""

    def __init__(self) -> None:
        self.rounds: list[DecisionRound] = []
        super().__init__()

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, ArchiveRecord):
                data = msgspec.json.encode(effect.body)
                self.rounds.append(msgspec.json.decode(data, type=DecisionRound))
        super()._perform(effects)


def lived() -> Watched:
    """A plane with eight cores a node, some placed replicas, and one without a place."""
    rig = Watched()
    for name in ("node-a", "node-b", "node-c"):
        rig.plane.node(name)
    rig.start()
    for number, cpu in enumerate(("3", "3", "2", "5", "7", "8")):
        rig.works(1, f"w{number}", cpu=cpu)
    results = [case.results[0] for it in rig.rounds for case in it.cases]
    assert {"Accepted", "Pending"} == set(results)
    return rig


def test_what_was_decided_on_a_plane_is_decided_again_from_its_history(tmp_path: Path) -> None:
    """Each round at its own revision, however much has changed since. [M4, F8]"""
    rig = lived()

    async def story() -> None:
        decisions = Decisions(tmp_path, Metrics())
        # Kept as if they had been decided just now: what is old is not kept.
        await decisions.keep(
            [msgspec.structs.replace(it, decided_ms=2**42) for it in rig.rounds], 0
        )
        store = MemoryStore(rig.plane.store)
        for decided in rig.rounds:
            assert await replay_round(store, decisions, decided.name) == []
        first, last = rig.rounds[0], rig.rounds[-1]
        alone = {**last.seen, "nodes": 0}
        await decisions.keep([msgspec.structs.replace(last, decided_ms=2**42, seen=alone)], 0)
        assert await replay_round(store, decisions, last.name), "without nodes it is another one"
        with pytest.raises(Missing, match="are not in this server's archive"):
            await replay_round(store, decisions, "d-0-0-0")
        await store.compact(await store.revision())
        with pytest.raises(Expired):
            await replay_round(store, decisions, first.name)
        decisions.close()

    asyncio.run(story())
