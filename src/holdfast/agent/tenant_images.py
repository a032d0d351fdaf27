"""The images that work of a tenant has started from on this node, as its record lists them.

Schedulers rank a node higher for work whose image is there. A record that is out of date costs a
pull and nothing else, so a change is reported at most once in a minute, and an image that was
removed from the disk is forgotten only when it was not used for as long as stores are kept.
"""

from __future__ import annotations

from collections.abc import Iterable

REPORT_EVERY_MS = 60_000
# As long as `host/runtime/containers/image_stores.py` keeps an unused store.
KEPT_MS = 24 * 3_600_000
# Nodes are in every cache, so the list stays short: those that were used last.
LISTED_MAX = 32


class TenantImages:
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(self) -> None:
        self._used_ms: dict[str, int] = {}
        self._next_ms = 0

    def in_use(self, images: Iterable[str], now_ms: int) -> tuple[str, ...]:
        """What to list, given what running work uses now. The order follows names alone, so that
        the same images are the same list."""
        for it in images:
            self._used_ms[it] = now_ms
        last = sorted(self._used_ms.items(), key=lambda it: (-it[1], it[0]))
        kept = [it for it in last[:LISTED_MAX] if now_ms - it[1] < KEPT_MS]
        self._used_ms = dict(kept)
        return tuple(sorted(self._used_ms))

    def may_report(self, now_ms: int) -> bool:
        """Whether a change may be reported now. If so, the next one waits."""
        if now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + REPORT_EVERY_MS
        return True
