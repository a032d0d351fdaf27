"""A process that writes to an embedded store as fast as it can and tells each acknowledgement.

Started by test_sqlite_process.py, which kills it, fills its disk or makes its syncs fail. Each line
on standard output is one acknowledged transaction: its revision, its key and its value. On a failed
disk it exits with 3 and the reason on standard error, as a server does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from holdfast.model.errors import HoldfastError
from holdfast.model.transaction import Committed, Put, Transaction
from holdfast.store.sqlite import SqliteStore

WRITERS = 8
KEYS = 20


async def main(path: Path, life: int, value_bytes: int) -> int:
    store = await SqliteStore.open(path)
    print("open", flush=True)

    async def write(name: int) -> None:
        number = 0
        while True:
            key = f"w{name}/{number % KEYS}"
            value = f"{life}.{number}".encode().ljust(value_bytes, b".")
            # Two records that must always be equal.
            pair = (Put(f"left/{key}", value), Put(f"right/{key}", value))
            outcome = await store.txn(Transaction((), pair))
            if isinstance(outcome, Committed):
                os.write(1, f"{outcome.revision} {key} {life}.{number}\n".encode())
            number += 1

    try:
        await asyncio.gather(*(write(n) for n in range(WRITERS)))
    except HoldfastError as error:
        print(store.failure or error.message, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
