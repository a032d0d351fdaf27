"""Gives each tenant a user of its own on this machine, and never the same user to two tenants.

Called by `confinement`. One table for the whole machine records which tenant has which number,
since the kernel knows users and not nodes: several agents, also of different planes, share the
range of numbers. A row is on disk before the number is first used, and is never removed. After the
numbers of users the range has blocks of 65,536, one for each user: the users inside a tenant's
containers are the numbers of its block on the host.

Each agent keeps a copy of its own rows beside its data. A row that is in the copy and not in the
table is put back. If the table gives a number to another tenant, or the range lacks a number that
was given, the agent does not start. When the table is lost, numbers that are seen in use are not
given again. A tenant is its name and its uid, so a later tenant of the same name gets another user.
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.host.process.files import PRIVATE_FILE, private_directory, write_private
from holdfast.model.errors import FieldError, Invalid, Unavailable

TABLE = Path("/var/lib/holdfast/run-as")
TABLE_VARIABLE = "HOLDFAST_RUN_AS"
OPTION = "--run-as-range"
# Below these are the users of people and of the system's own services.
FIRST_MIN, LAST_MAX = 1_000, 2**32 - 3
# As many users as images use, `nobody` included; a range has users for as many tenants.
BLOCK = 65_536
TABLE_BYTES_MAX = 64 * 1024 * 1024
SUBORDINATE = (Path("/etc/subuid"), Path("/etc/subgid"))
OWNERS = ("holdfast", "root", "0")

_T = TypeVar("_T")
_RANGE = re.compile(r"([0-9]{1,10})-([0-9]{1,10})", re.ASCII)


class UserRange(msgspec.Struct, frozen=True, gc=False):
    """Numbers of users, and likewise of groups, that nothing else on the machine uses."""

    first: int
    last: int

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last

    @property
    def users_last(self) -> int:
        """The last number that is a tenant's user and not part of a block."""
        return min(self.last, self.first + BLOCK - 1)

    def block(self, user: int) -> int | None:
        """The first number of the block that belongs to this user; None if the range has none."""
        first = self.first + BLOCK * (1 + user - self.first)
        return first if first + BLOCK - 1 <= self.last else None

    def user_of(self, number: int) -> int:
        """The tenant's user for a number of the range: itself, or the owner of its block."""
        at = number - self.first
        return number if at < BLOCK else self.first + at // BLOCK - 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


# Above the range of systemd's containers, outside the ranges that distributions give to people, and
# positive for programs that take a user for a signed number.
DEFAULT = UserRange(2_000_000_000, 2**31 - 1)


class _Table(msgspec.Struct):
    """Which tenant has which number.

    above: numbers up to this one were in use when an earlier table was lost.
    blocks: the first number of each block that containers have used.
    """

    above: int = 0
    given: dict[int, str] = {}
    blocks: dict[int, str] = {}


class _Copy(msgspec.Struct):
    """One agent's own rows, by tenant, and the agent's name in the table."""

    owner: str
    given: dict[str, int] = {}


def parse_range(text: str) -> UserRange:
    """Parse a range such as 2000000000-2147483647. Raises Invalid."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise _wrong(text, "must be FIRST-LAST, such as 2000000000-2147483647")
    it = UserRange(int(found[1]), int(found[2]))
    if not FIRST_MIN <= it.first <= it.last <= LAST_MAX:
        raise _wrong(text, f"must be a range between {FIRST_MIN} and {LAST_MAX}")
    known = [one.pw_name for one in pwd.getpwall() if one.pw_uid in it]
    known += [one.gr_name for one in grp.getgrall() if one.gr_gid in it]
    if known:
        raise _wrong(text, f"must not contain the machine's own user or group {known[0]}")
    return it


def default_range(files: tuple[Path, Path] = SUBORDINATE) -> UserRange:
    """The machine's subordinate range of `holdfast` or root, for users and groups; else DEFAULT."""
    users, groups = (_subordinate(path) for path in files)
    return next((it for it in users if it in groups), DEFAULT)


def _subordinate(path: Path) -> list[UserRange]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows = [line.split(":") for line in lines]
    rows = [row for row in rows if len(row) == 3 and row[1].isdecimal() and row[2].isdecimal()]
    return [
        UserRange(int(first), int(first) + int(count) - 1)
        for owner in OWNERS
        for name, first, count in rows
        if name == owner and int(first) >= FIRST_MIN and 0 < int(count) <= LAST_MAX - int(first)
    ]


def default_table() -> Path:
    """The path of the machine's table, unless the operator sets another."""
    return Path(os.environ.get(TABLE_VARIABLE) or TABLE)


class RunAs:
    """The users of one agent's tenants. Its methods may be called from any thread."""

    def __init__(
        self, numbers: UserRange, table: Path, copy: Path, in_use: Callable[[], Iterable[int]]
    ) -> None:
        """`in_use` gives all numbers that are in use; it is called when there is no table."""
        self.numbers = numbers
        self._table, self._copy, self._in_use = table, copy, in_use
        self._alone = threading.Lock()
        self._known: _Copy | None = None
        self._blocks: set[int] = set()

    def prepare(self) -> None:
        """Compare the copy with the table. Raises Unavailable when they contradict each other."""
        with self._alone, self._held() as table:
            self._known = self._reconciled(table)

    def of(self, tenant: str) -> int:
        """The number of this tenant's user and group, durable when this returns."""
        with self._alone:
            if self._known is not None and tenant in self._known.given:
                return self._known.given[tenant]
            with self._held() as table:
                known = self._reconciled(table)
                # A crash may have come between the table and the copy.
                mine = _row(known.owner, tenant)
                number = next((it for it, whose in table.given.items() if whose == mine), None)
                if number is None:
                    number = self._next(table)
                    table.given[number] = mine
                    self._write(self._table, table)
                known.given[tenant] = number
                self._write(self._copy, known)
                self._known = known
            return number

    def block_of(self, tenant: str) -> int:
        """The first number of the block for this tenant's containers. Raises Unavailable."""
        user = self.of(tenant)
        first = self.numbers.block(user)
        if first is None:
            raise Unavailable(
                f"the range {self.numbers} has no {BLOCK} numbers left for the containers of "
                f"another tenant; give the agent a wider {OPTION}"
            )
        with self._alone:
            if first not in self._blocks:
                with self._held() as table:
                    self._take_block(table, first, table.given[user])
            self._blocks.add(first)
        return first

    def _take_block(self, table: _Table, first: int, mine: str) -> None:
        """Record the block's tenant. Agents' ranges may overlap; two tenants share no block."""
        if table.blocks.get(first) == mine:
            return
        others = [it for it in table.blocks if abs(it - first) < BLOCK]
        if others or any(first <= it < first + BLOCK for it in table.given):
            raise Unavailable(
                f"numbers of {first}-{first + BLOCK - 1} belong to another tenant according to "
                f"{self._table}; give all agents of this machine the same {OPTION}"
            )
        table.blocks[first] = mine
        self._write(self._table, table)

    def _next(self, table: _Table) -> int:
        for number in range(max(self.numbers.first, table.above + 1), self.numbers.users_last + 1):
            if number not in table.given and not _is_within(table.blocks, number):
                return number
        raise Unavailable(
            f"all users of the range {self.numbers} belong to tenants, or were in use when the "
            f"table {self._table} was lost; give the agent a wider {OPTION}"
        )

    def _reconciled(self, table: _Table) -> _Copy:
        known = self._read(self._copy, _Copy)
        if known is None:
            known = _Copy(secrets.token_hex(16))
            self._write(self._copy, known)
        lacking = {n: _row(known.owner, t) for t, n in known.given.items() if n not in table.given}
        for tenant, number in known.given.items():
            if not self.numbers.first <= number <= self.numbers.users_last:
                raise Unavailable(
                    f"{OPTION} {self.numbers} does not contain the user {number}, which belongs to "
                    f"tenant {tenant} according to {self._copy}; give the agent its former range, "
                    f"or stop the work of this node, remove {self._copy}, and start the agent "
                    "again: its tenants then get new users"
                )
            if table.given.get(number, _row(known.owner, tenant)) != _row(known.owner, tenant):
                raise Unavailable(
                    f"the user {number} belongs to tenant {tenant} according to {self._copy} and "
                    f"to another tenant according to {self._table}; stop the work of this node, "
                    f"remove {self._copy}, and start the agent again: its tenants then get new "
                    "users"
                )
        if lacking:
            table.given.update(lacking)
            self._write(self._table, table)
        return known

    @contextmanager
    def _held(self) -> Iterator[_Table]:
        """The table, while no other agent of this machine changes it."""
        try:
            private_directory(self._table.parent)
            path = self._table.with_name(f"{self._table.name}.lock")
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError as error:
            raise self._unusable(self._table, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            table = self._read(self._table, _Table)
            if table is None:
                numbers = self.numbers
                used = [numbers.user_of(it) for it in self._in_use() if it in numbers]
                table = _Table(above=max(used, default=0))
                self._write(self._table, table)
            yield table
        finally:
            os.close(lock)

    @staticmethod
    def _unusable(path: Path, error: Exception) -> Unavailable:
        return Unavailable(
            f"{path}, the table of tenants' users, cannot be used: {error}; repair it, or restore "
            "it from a backup; if it is lost, remove it"
        )

    def _read(self, path: Path, kind: type[_T]) -> _T | None:
        try:
            with path.open("rb") as file:
                return msgspec.json.decode(file.read(TABLE_BYTES_MAX), type=kind, strict=False)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unusable(path, error) from error

    def _write(self, path: Path, content: _Table | _Copy) -> None:
        try:
            write_private(path, msgspec.json.encode(content))
        except OSError as error:
            raise self._unusable(path, error) from error


def _is_within(blocks: Iterable[int], number: int) -> bool:
    return any(first <= number < first + BLOCK for first in blocks)


def _row(owner: str, tenant: str) -> str:
    return f"{owner}/{tenant}"


def _wrong(value: str, rule: str) -> Invalid:
    error = FieldError(OPTION, value[:80], rule)
    return Invalid(str(error), (error,))
