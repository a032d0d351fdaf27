"""Sets which work the kernel kills first when the machine lacks memory, by service class.

Called by `supervisor` once the work runs. Each process has the value and its children inherit it,
so what the work starts later has it too. A child that is started while this runs may miss it:
hence two rounds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

ROUNDS = 2
_PROC = Path("/proc")


def adjust(processes: Callable[[], Iterable[int]], score: int, proc: Path = _PROC) -> str:
    """Set it for all these processes. Returns what is enforced, or "none" and why."""
    set_for: set[int] = set()
    for _ in range(ROUNDS):
        for pid in processes():
            if pid in set_for:
                continue
            try:
                (proc / str(pid) / "oom_score_adj").write_text(str(score), "ascii")
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError as error:
                why = os.strerror(error.errno or 0).lower()
                if score < 0:
                    why = f"{why}; less than 0 needs CAP_SYS_RESOURCE"
                return f"none: oom_score_adj {score} cannot be set: {why}"
            set_for.add(pid)
    return f"oom_score_adj {score}" if set_for else "none: it has no visible processes"
