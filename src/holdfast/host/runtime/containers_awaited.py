"""Waits for images without letting anything else wait.

Kept by `runtime`, which asks for the image of each piece of work before it starts it. An image may
take minutes to come; it is waited for in threads that nothing else needs.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.host.runtime import containers
from holdfast.host.runtime.cgroups import Cgroups
from holdfast.host.runtime.containers_images import Image, find
from holdfast.model.kinds.template import Runtime, Template

# More pulls at once would only share the same network.
THREADS_MAX = 2


class Images:
    """`root` is where attempts lie, `folders` where the operator keeps root file systems."""

    def __init__(self, root: Path, folders: tuple[Path, ...]) -> None:
        self._root, self._folders = root, folders
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="images")
        # Only a yes is kept: who lacks runc may install it any time.
        self._are_possible = False

    async def of(self, template: Template, groups: Cgroups) -> Image | None:
        """The image of this work; None when it is no container. Raises Invalid or Unavailable."""
        if template.runtime is not Runtime.CONTAINER:
            return None
        loop = asyncio.get_running_loop()
        if not self._are_possible:
            await loop.run_in_executor(self._pool, containers.check, self._root, groups)
            self._are_possible = True
        return await loop.run_in_executor(self._pool, find, template.image, self._folders)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
