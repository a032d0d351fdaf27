"""Decides how work is isolated from what is not its own, and what a node can promise.

Called by `runtime` when it starts, and by `starting` for each attempt; shim_confine.c performs it.
An agent that is root gives each tenant a user of its own, and hides the directories of the agent
and of the plane. An agent that is not root can only hide them, and all work has its user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.host.runtime import listeners, shim_binary
from holdfast.host.runtime.attempts import WORK, AttemptFolders
from holdfast.host.runtime.run_as import BLOCK, OPTION, RunAs, UserRange
from holdfast.host.runtime.shim_binary import ShimProgram
from holdfast.host.runtime.surroundings import User, user
from holdfast.model.errors import FieldError, Invalid, Unavailable

COPY = "run-as"
SINGLE_TENANT = "--single-tenant"
NARROW = f"{OPTION} has fewer than {2 * BLOCK} numbers"
STRONGEST, UNPRIVILEGED = "pid-namespace", "user-namespace"


class ConfinementRules(msgspec.Struct, frozen=True):
    """The operator's settings for tenants on a machine.

    numbers: the users that tenants get; None when all work runs as the agent's own user.
    table: where the machine records which tenant has which user.
    hidden: the directories that work cannot see.
    """

    numbers: UserRange | None = None
    table: Path = Path()
    hidden: tuple[Path, ...] = ()


class Confinement:
    """How the work of one node is confined. It exists only where the machine can do it."""

    def __init__(self, run_as: RunAs | None, covers: tuple[str, ...]) -> None:
        self._run_as, self._covers = run_as, covers

    @property
    def has_users(self) -> bool:
        """Whether each tenant has a user of its own."""
        return self._run_as is not None

    @property
    def block_first(self) -> int:
        """A user of containers for a trial run; 0 where they have none of their own."""
        if self._run_as is None:
            return 0
        first = self._run_as.numbers.block(self._run_as.numbers.first)
        if first is None:
            raise Unavailable(f"containers need users of their own: {NARROW}")
        return first

    def block_of(self, tenant: str) -> int:
        """The host's user that is root inside this tenant's containers; 0 if it is not mapped."""
        return self._run_as.block_of(tenant) if self._run_as is not None else 0

    def paths(self, work: Path, working_dir: str, secrets: Path | None) -> tuple[str, ...]:
        """The shim's path arguments: the work's directory, where it starts, and what is hidden.

        `secrets` is the mount of files from Secrets, which the work sees read-only.
        """
        return (str(work), working_dir or ".", str(secrets or ""), *self._covers)

    def user_of(self, tenant: str, named: str) -> User | None:
        """The user that this tenant's work runs as. Raises Invalid for one that it may not have."""
        if self._run_as is None:
            return user(named)
        if not named:
            number = self._run_as.of(tenant)
            return User(number, number, (number,), "")
        found = user(named)
        if found is None or found.uid == 0 or found.uid in self._run_as.numbers:
            rule = "must not be root or another tenant's user on this node; leave it out"
            raise Invalid(f"user: {named} {rule}", (FieldError("user", named, rule),))
        return found


def confinement(
    rules: ConfinementRules, program: ShimProgram, attempts: AttemptFolders
) -> Confinement | None:
    """How work is confined here; None when the agent's user cannot or need not confine it.

    Raises Unavailable when tenants must be isolated and this machine cannot do it.
    """
    if rules.numbers is None:
        covers = tuple(map(str, _directories(rules.hidden)))
        is_able = program.isolation == UNPRIVILEGED and shim_binary.can_confine(program, 0)
        return Confinement(None, covers) if covers and is_able else None
    _check(program, rules.numbers)
    copy = attempts.root.absolute() / COPY
    run_as = RunAs(rules.numbers, rules.table, copy, lambda: in_use(attempts))
    run_as.prepare()
    return Confinement(run_as, covers_of((*rules.hidden, rules.table.parent)))


def _check(program: ShimProgram, numbers: UserRange) -> None:
    if os.geteuid() != 0:
        why = "the agent is not root"
    elif program.isolation != STRONGEST or not program.has_own_proc:
        why = f"work has no processes and no /proc of its own (isolation {program.isolation})"
    elif not shim_binary.can_confine(program, numbers.first):
        why = "the kernel refuses mounts, namespaces or users that this needs"
    elif not listeners.can_look():
        why = "the kernel cannot list sockets with their users (INET_DIAG and INET_UDP_DIAG)"
    else:
        return
    raise Unavailable(
        f"this machine cannot isolate tenants: {why}; start the agent with {SINGLE_TENANT} if only "
        "one tenant's work is to run here"
    )


def covers_of(hidden: Iterable[Path]) -> tuple[str, ...]:
    """The directories to cover so that these are hidden, none of them below another.

    If a directory lies below one that other users cannot pass, the upper one is covered: nothing in
    it could be reached anyway, and the work's own directory can be mounted back at its place.
    """
    found = {_first_closed(path) for path in _directories(hidden)}
    return tuple(
        str(path) for path in sorted(found) if not any(other in found for other in path.parents)
    )


def _directories(hidden: Iterable[Path]) -> Iterator[Path]:
    # One that is made later is covered for work that starts after that.
    return (path.resolve() for path in hidden if path.is_dir() or not path.exists())


def _first_closed(path: Path) -> Path:
    for above in reversed(path.parents[:-1]):
        if not above.is_dir():
            return path
        if not above.stat().st_mode & stat.S_IXOTH:
            return above
    return path


def in_use(attempts: AttemptFolders) -> Iterator[int]:
    """The users of all processes, and of all work whose directory is still here."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):
                yield entry.stat().st_uid
    for uid in attempts.uids():
        for number in attempts.numbers(uid):
            with suppress(OSError):
                yield (attempts.root / uid / str(number) / WORK).lstat().st_uid
