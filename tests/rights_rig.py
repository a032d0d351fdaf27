"""What a server knows of roles and bindings, over the store of a plane that is driven by hand."""

from __future__ import annotations

from typing import Any

from holdfast.host.api.objects.presentation import Forms
from holdfast.host.server.caller_rights import Rights
from holdfast.model.machine import Answered, Range, Started
from holdfast.model.time import Instant
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.memory import Keyspace


class Freshly:
    """Stands where the server's freshness is: says what a test wants it to say."""

    def __init__(self) -> None:
        self.is_fresh: bool | Exception = True

    async def is_hub_fresh(self, **_: Any) -> bool:
        if isinstance(self.is_fresh, Exception):
            raise self.is_fresh
        return self.is_fresh


def listed(store: Keyspace) -> WatchHub:
    """A hub that has read all that the store has now."""
    hub = WatchHub(Forms(), recent=0)
    read(hub, hub.step(Started({}), Instant(0, 0)), store)
    return hub


def read(hub: WatchHub, effects: list[Any], store: Keyspace) -> None:
    """Let a hub that lists everything read all that a store has now."""
    work = list(effects)
    while work:
        effect = work.pop()
        if isinstance(effect, Range):
            page = store.range(effect.start, effect.end, limit=effect.limit, at=effect.at)
            work += hub.step(Answered(effect.call, page), Instant(0, 0))
    assert hub.is_ready


def rights_on(store: Keyspace) -> Rights:
    """What a caller of the server may do now."""
    return Rights(listed(store), Freshly(), lambda: 0.0)  # type: ignore[arg-type]
