"""The time zones that this computer knows, for cron jobs.

Controllers are pure and read no files; `build` gives them this. The data is the system's. A cron
job in an unknown zone says so instead of running at a wrong time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from holdfast.model.workload.cron import Zone

_NONE = timedelta(0)
# As many as there are zones, so that a tenant that uses all of them evicts none from the cache.
ZONES_MAX = 600


@lru_cache(maxsize=ZONES_MAX)
def _found(name: str) -> Zone:
    """Return the zone of this name. Raises if there is none, so that this is not cached."""
    zone = ZoneInfo(name)

    def ahead(moment: datetime) -> timedelta:
        return moment.astimezone(zone).utcoffset() or _NONE

    return ahead


def zones(name: str) -> Zone | None:
    """Return by how much a zone's local time is ahead of UTC, or None for an unknown zone."""
    try:
        return _found(name)
    except (KeyError, ValueError, OSError):
        # Not found; not a valid name; a directory of the database, or a file of another format.
        return None
