"""Which etcd versions lack which fixes, as data, to warn operators at start-up.

`EtcdStore.open` asks every reachable member for its version and puts the result of `warnings_for`
into `EtcdStore.warnings`; the host logs it. Holdfast tolerates all of these bugs (it commits by
compare, guards its watches and takes no lease as proof) except those marked `loses`: there etcd
itself loses what it acknowledged, and no client can make up for that.
"""

from __future__ import annotations

import re

import msgspec

# The recommended versions: they have every fix below.
RECOMMENDED = (3, 5, 28)
# Older servers lack fragmented watches and linearizable reads that survive a change of leader.
OLDEST = (3, 4, 0)

Version = tuple[int, int, int]


class KnownBug(msgspec.Struct, frozen=True, gc=False):
    """A defect of etcd, and the first release of each series that is free of it.

    A series that is not listed never had it if it is newer than all listed, and was never fixed if
    it is older. `since` is the first release that has the defect.
    """

    what: str
    issue: int
    fixed: tuple[Version, ...]
    since: Version = (0, 0, 0)
    loses: bool = False


STALE_READS = KnownBug(
    "reads can be stale after a member was paused",
    issue=20418,
    fixed=((3, 4, 43), (3, 5, 28), (3, 6, 9)),
)

KNOWN_BUGS = (
    KnownBug(
        "committed writes are lost and members diverge when killed under load",
        issue=13766,
        since=(3, 5, 0),
        fixed=((3, 5, 3),),
        loses=True,
    ),
    KnownBug(
        "a single member acknowledges writes before they are on disk",
        issue=14370,
        fixed=((3, 4, 21), (3, 5, 5)),
        loses=True,
    ),
    KnownBug(
        "a watch travels back in time when its member catches up by snapshot",
        issue=15271,
        fixed=((3, 4, 25), (3, 5, 8)),
    ),
    KnownBug(
        "progress notifications overtake the events before them",
        issue=15220,
        fixed=((3, 4, 25), (3, 5, 8)),
    ),
    KnownBug(
        "a slow watch silently skips compacted events",
        issue=17529,
        fixed=((3, 4, 31), (3, 5, 13)),
    ),
    KnownBug(
        "a watch from the compacted revision misses deletions",
        issue=19179,
        fixed=((3, 4, 36), (3, 5, 18)),
    ),
    STALE_READS,
    KnownBug(
        "a lease can be renewed after it was revoked",
        issue=20547,
        fixed=((3, 4, 38), (3, 5, 23), (3, 6, 5)),
    ),
)

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


def parse_version(text: str) -> Version | None:
    """Parse `3.5.28`, also with a suffix such as `-rc.1`; None for anything else."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def affects(bug: KnownBug, version: Version) -> bool:
    """Whether a server of this version has the defect."""
    if version < bug.since:
        return False
    same_series = [fix for fix in bug.fixed if fix[:2] == version[:2]]
    if same_series:
        return version < same_series[0]
    return version < max(bug.fixed)


def reads_are_fresh(text: str) -> bool:
    """Whether linearizable reads of this version are never stale."""
    version = parse_version(text)
    return version is not None and not affects(STALE_READS, version)


def warnings_for(text: str) -> tuple[str, ...]:
    """Warnings for the operator about a server of this version, if any."""
    version = parse_version(text)
    recommended = ".".join(map(str, RECOMMENDED))
    if version is None:
        return (f"etcd reports the unknown version {text!r}: its known bugs cannot be checked",)
    if version < OLDEST:
        return (f"etcd {text} is older than Holdfast supports; use {recommended} or newer",)
    found = [bug for bug in KNOWN_BUGS if affects(bug, version)]
    if not found and version >= RECOMMENDED:
        return ()
    lines = []
    if any(bug.loses for bug in found):
        lines.append(
            f"etcd {text} CAN LOSE ACKNOWLEDGED WRITES: upgrade before trusting it with any"
        )
    bugs = "".join(f"; {bug.what} (etcd#{bug.issue})" for bug in found)
    lines.append(f"etcd {text} lacks known fixes, {recommended} or newer is recommended{bugs}")
    return tuple(lines)
