"""Removes the groups of ended attempts, and groups that earlier agents left behind.

Called in a thread, once the end of an attempt is proven and before it is reported. A group knows
that the kernel killed for lack of memory only as long as it exists; so that goes into the exit
record first, where every later agent finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Container

import msgspec

from holdfast.agent.runtime_protocol import DISK_EXCEEDED, DISK_PRESSURE, STOPPED, Attempt
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.cgroups import disk
from holdfast.host.runtime.cgroups.groups import Cgroups
from holdfast.host.runtime.shim_records import Exit
from holdfast.model.errors import Invalid

_log = logging.getLogger(__name__)


def close(
    groups: Cgroups,
    attempts: AttemptFolders,
    attempt: Attempt,
    end: Exit | None,
    stopped_for: str = "",
) -> Exit | None:
    """The end with what its groups know of it; then the groups are removed.

    `stopped_for` is why the agent ended it, if it did. Files of work that exceeded its disk limit
    are removed at once: ended attempts are kept for their logs, and would keep the disk full.
    """
    known = end
    if end is not None and end.is_started and end.code != 0 and groups.ooms(attempt):
        end = msgspec.structs.replace(end, oom=1)
    if end is not None and end.is_started and stopped_for and end.reason == STOPPED:
        end = msgspec.structs.replace(end, reason=stopped_for)
    try:
        if end is not None and end is not known:
            attempts.record(attempt, end)
        if stopped_for.partition(":")[0] in (DISK_EXCEEDED, DISK_PRESSURE):
            with attempts.of(attempt) as fd:
                disk.give_back(fd)
    except OSError as error:
        # This agent still reports it; only a later agent would not know.
        _log.warning("how %s ended cannot be recorded: %s", attempt, error)
    remove(groups, attempt)
    return end


def remove(groups: Cgroups, attempt: Attempt) -> None:
    """Remove its groups; processes that are still in them after its end are killed."""
    if not (groups.kill(attempt) and groups.remove(attempt)):
        _log.warning("control groups of %s are in use and left for the next look around", attempt)


def sweep(groups: Cgroups, attempts: AttemptFolders, held: Container[Attempt]) -> None:
    """Remove groups of attempts that this agent does not hold and that no shim holds either."""
    for attempt in groups.attempts():
        if attempt in held:
            continue
        try:
            is_alive = attempts.look(attempt).is_alive
        except (FileNotFoundError, Invalid):
            is_alive = False
        except OSError:
            # If the attempt cannot be inspected, its groups stay for the next time.
            continue
        if not is_alive:
            remove(groups, attempt)
