"""Bounds what a piece of work puts on the disk: it is measured again and again, and stopped.

Called by `keeping`. A file system with project quotas would refuse the write itself, but few have
them, and no mount option of the operator's is needed for this. Between two looks work may
exceed its limit by what the disk takes in that time; a file that has no name any more is not seen.
Logs are not counted: they have bounds of their own.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from holdfast.host.runtime import beneath
from holdfast.host.runtime.attempts import TMP, WORK

LOOK_S = 5.0
LAYER = "layer"
# All that the work itself writes.
FOLDERS = (WORK, TMP, LAYER)
# A tree that takes longer to walk than this has too many files, whatever their size.
ENTRIES_MAX = 1_000_000
_BLOCK = 512


def is_exceeded(folder: Path, most: int) -> bool:
    """Whether the work of this attempt has more on the disk than so many bytes.

    A tree that cannot be measured, since it is too deep or too large, counts as too much.
    """
    used, entries = 0, 0
    waiting = [str(folder / name) for name in FOLDERS]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    # What the work removes meanwhile needs no room any more.
                    with suppress(FileNotFoundError):
                        about = entry.stat(follow_symlinks=False)
                        used += about.st_blocks * _BLOCK
                        if stat.S_ISDIR(about.st_mode):
                            waiting.append(entry.path)
                    if used > most or entries > ENTRIES_MAX:
                        return True
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def give_back(fd: int) -> None:
    """Remove what ended work has left in the open directory of its attempt, but not its logs."""
    for name in FOLDERS:
        with suppress(FileNotFoundError):
            beneath.remove(name, fd)
