"""What this machine knows of time zones, for cron jobs.

Controllers are pure and read no files; `components` hands them this. The data is the system's, and
where that has none a cron job in such a zone says so instead of running at a wrong time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from holdfast.model.cron import Zone

_NONE = timedelta(0)
# As many zones as there are, so that a tenant with all of them makes nobody read files again.
ZONES_MAX = 600


@lru_cache(maxsize=ZONES_MAX)
def _found(name: str) -> Zone:
    """The zone of this name. Raises where there is none: what is not found is not remembered."""
    zone = ZoneInfo(name)

    def ahead(moment: datetime) -> timedelta:
        return moment.astimezone(zone).utcoffset() or _NONE

    return ahead


def zones(name: str) -> Zone | None:
    """How far local clocks are ahead of UTC in a zone of this name, or None for one not known."""
    try:
        return _found(name)
    except (KeyError, ValueError, OSError):
        # Not found; not a name at all; a directory of the database, or a file that is none.
        return None
