"""Secrets that are only there to be looked for: none may ever be found where it does not belong.

Tests put `canary(...)` into Secrets, environments and headers, and tell `plant` of secrets that the
product makes up itself, such as those of tokens. After a session (`tests/conftest.py`) every file
below its temporary directory is searched: logs, audit, records of decisions, what agents keep. Only
the store's own database, etcd's, and what was handed to the work itself may hold them.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

MARK = "canary-d0c5e7-never-print-me"
# Where planted secrets are noted, so that other processes of the same session know of them.
VARIABLE = "HOLDFAST_TEST_CANARIES"
PLANTED = "planted-canaries"
_CHUNK = 8 << 20


def canary(name: str) -> str:
    """A secret with a name by which people see where it came from."""
    return f"{MARK}-{name}"


def plant(secret: str) -> str:
    """Have a secret looked for that the product has made up."""
    book = os.environ.get(VARIABLE)
    if book:
        with Path(book).open("a", encoding="utf-8") as file:
            file.write(f"{secret}\n")
    return secret


def forms(secrets: Iterable[str] = ()) -> dict[bytes, str]:
    """What to look for, and what it is: each secret as it is, its hash, and base64 of the mark."""
    found = {MARK.encode(): MARK}
    for skipped in range(3):
        # In base64 a text looks different at each of three places; its ends depend on neighbours.
        text = base64.b64encode(b"x" * skipped + MARK.encode())[4:-4]
        found[text] = f"{MARK} in base64"
    for secret in secrets:
        found[secret.encode()] = f"{secret[:4]}…, which was planted"
        hashed = hashlib.sha256(secret.encode()).hexdigest()
        found[hashed.encode()] = f"the hash of {secret[:4]}…, which was planted"
    return found


def found_in(data: bytes, wanted: dict[bytes, str]) -> list[str]:
    """Which of them are in these bytes."""
    return [what for text, what in wanted.items() if text in data]


def may_hold(path: Path) -> bool:
    """Whether secrets may be in this file: a store's own, what the work got, what a test wrote."""
    store = path.name.partition(".")[2].startswith("db") and path.stem != "decisions"
    of_work = "work" in path.parts or "member" in path.parts
    return store or of_work or path.suffix == ".token" or path.name.startswith(PLANTED)


def leaks(folder: Path, secrets: Iterable[str] = ()) -> Iterator[str]:
    """Every file below a folder that holds what it must not."""
    wanted = forms(secrets)
    overlap = max(map(len, wanted))
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or may_hold(path.relative_to(folder)):
            continue
        try:
            for what in dict.fromkeys(_in_file(path, wanted, overlap)):
                yield f"{path}: {what}"
        except PermissionError:
            continue


def _in_file(path: Path, wanted: dict[bytes, str], overlap: int) -> Iterator[str]:
    before = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield from found_in(before + chunk, wanted)
            before = chunk[-overlap:]


def planted(book: Path) -> list[str]:
    """All secrets that were planted in a session."""
    text = book.read_text(encoding="utf-8") if book.exists() else ""
    return list(dict.fromkeys(text.split()))
