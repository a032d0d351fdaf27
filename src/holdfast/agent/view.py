"""Where the node stands, as far as a decision about one piece of work depends on it.

Made by `agent` for every step; `tend` and `reports` read it.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.renewing import Life


class View(msgspec.Struct, frozen=True):
    """Where the node stands. `life` None means that the last one is over and no new one has begun.

    `is_clear`: as far as we know the servers trust the node in this life. `deadline_ms` is None
    when nothing may be started now. `installation` is our own; `has_lost_name` says that another
    one is registered under the node's name.
    """

    node: str
    identity: str
    life: Life | None
    is_clear: bool
    deadline_ms: int | None
    grace_max_ms: int
    now_ms: int
    installation: str = ""
    has_lost_name: bool = False
