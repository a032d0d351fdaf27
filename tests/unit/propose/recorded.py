"""A rig that keeps the rounds that the scheduler archives, and every object at each revision."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.explain.replay import Difference, decide_again
from holdfast.model.errors import Expired
from holdfast.model.machine import ArchiveRecord, Ended, Open
from holdfast.model.registry import kind_of
from holdfast.observe.cache import Key
from holdfast.propose.decision_rounds import DecisionRound
from tests.unit.propose.rig import Rig


class Recorded(Rig):
    """See the module's docstring. `rounds` has the last record of each, by sequence."""

    def __init__(self, **more: Any) -> None:
        self.rounds: dict[int, DecisionRound] = {}
        self.handed_over = 0
        self.history: dict[str, list[tuple[int, Key, Any]]] = {}
        super().__init__(**more)

    def put(self, obj: Any) -> Any:
        at = self.revision + 1
        # Recorded before the event is sent: a replay of decisions based on it has to find it.
        metadata = obj.metadata
        plural = kind_of(obj).plural
        history = self.history.setdefault(plural, [])
        history.append((at, (metadata.namespace, metadata.name), None))
        place = len(history) - 1
        made = msgspec.structs.replace(
            obj,
            metadata=msgspec.structs.replace(metadata, uid=metadata.uid or f"uid-{at}"),
        )
        history[place] = (at, (metadata.namespace, metadata.name), made)
        return super().put(made)

    def remove(self, obj: Any) -> None:
        key = obj.namespace, obj.name
        self.history[kind_of(obj).plural].append((self.revision + 1, key, None))
        super().remove(obj)

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, ArchiveRecord):
                self.handed_over += 1
                # As it is sent: a record that cannot be encoded and decoded proves nothing.
                data = msgspec.json.encode(effect.body)
                decided = msgspec.json.decode(data, type=DecisionRound)
                self.rounds[decided.sequence] = decided
        super()._perform(effects)

    def set_receiving(self, receives: bool) -> None:
        """Receive events, or not. When it receives again, all streams start over."""
        was_deaf, self.is_deaf = self.is_deaf, not receives
        for stream in list(self.streams) if was_deaf and receives else ():
            del self.streams[stream]
            self.step(Ended(stream, Expired("what came between is not kept")))

    def _list(self, effect: Open) -> None:
        """A stream that is resumed after events were lost is too old.

        The rig itself would ignore that: then the scheduler's record says that it knew
        what it never received, and no replay can decide as it did.
        """
        since = effect.body.since
        if since is None or since >= self.revision:
            super()._list(effect)
            return
        del self.streams[effect.stream]
        self.step(Ended(effect.stream, Expired("what came between is not kept")))

    def objects_at(self, seen: dict[str, int]) -> dict[str, list[Any]]:
        """All objects, each kind as of its revision."""
        found: dict[str, dict[Key, Any]] = {}
        for plural, history in self.history.items():
            there = found.setdefault(plural, {})
            for at, key, obj in history:
                if at <= seen.get(plural, 0):
                    there.pop(key, None)
                    if obj is not None:
                        there[key] = obj
        return {plural: list(there.values()) for plural, there in found.items()}

    def again(self, decided: DecisionRound) -> list[Difference]:
        return decide_again(decided, self.objects_at(decided.seen), self.rounds)
