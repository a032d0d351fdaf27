"""Counts the records in quarantine, and reports each new one in the server's log.

`server_process` runs it. Alarms are set on the metric; `holdfast status` and `holdfast repair` use
the API instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from holdfast.commit.server import AuthorityServer
from holdfast.host.api.plane.quarantine_routes import quarantined_records
from holdfast.host.process.metrics import Labels, Metrics
from holdfast.model.errors import HoldfastError
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import Store

EVERY_S = 10.0


class QuarantineWatch:
    """See the module's docstring."""

    def __init__(self, store: Store, hub: WatchHub, say: Callable[[str], None]) -> None:
        self._store, self._hub, self._say = store, hub, say
        # The reason of each record, by key.
        self.found: dict[str, str] = {}

    async def look(self) -> None:
        """Read the store once. Raises HoldfastError."""
        records = await quarantined_records(self._store)
        for it in records:
            if it.key not in self.found:
                self._say(
                    f"{it.key} is in quarantine: {it.message} "
                    "`holdfast repair list` shows what to do."
                )
        self.found = {it.key: it.reason for it in records}

    async def look_for_ever(self, every_s: float = EVERY_S) -> None:
        """Read the store at intervals until cancelled."""
        while True:
            # The last result stays until the store can be read again.
            with contextlib.suppress(HoldfastError):
                await self.look()
            await asyncio.sleep(every_s)

    def count(self, metrics: Metrics, machine: AuthorityServer) -> None:
        """Add these metrics to the server's."""
        metrics.gauges(
            "records_quarantined",
            "Records in quarantine, by reason; alarm above 0.",
            ("reason",),
            self._by_reason,
        )
        metrics.gauge(
            "objects_unreadable",
            "Stored objects that this server cannot read at all; alarm above 0.",
            lambda: len(self._hub.unreadable),
        )
        metrics.gauge(
            "decisions_in_doubt_total",
            "Requests refused because records that they need are damaged.",
            lambda: machine.doubts,
        )

    def _by_reason(self) -> Iterator[tuple[Labels, float]]:
        for reason, count in sorted(Counter(self.found.values()).items()):
            yield (reason,), count
