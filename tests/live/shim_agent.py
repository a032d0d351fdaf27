"""An agent's runtime in a process of its own, so that a test can kill it or stop it.

    python -m tests.live.shim_agent FOLDER UID WITHIN_MS GRACE_MS SCRIPT

It launches one piece of work, says `launched` on its standard output, and then does nothing.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.workshop import Workshop, command


async def main(folder: str, uid: str, within_ms: str, grace_ms: str, script: str) -> None:
    """Launch and wait to be ended."""
    one = Workshop(Path(folder))
    await one.runtime.start(one.post, one.fail)
    await one.launched(command(script), within_ms=int(within_ms), grace_ms=int(grace_ms), uid=uid)
    print("launched", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
