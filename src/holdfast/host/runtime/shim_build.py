"""Compiles the shim: called by setup.py for wheels and editable installs, and by `shim_binary` when
it is first needed and not compiled yet.

setup.py runs it before anything is installed, so it needs only the standard library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
NAME = "holdfast-shim"
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_S = 60
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-s", "-pthread")
# It runs as root beside hostile work: a buffer overrun must end it and not be exploitable.
_HARDENING = (
    *("-fPIE", "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
    "-Wl,-z,relro,-z,now",
)
# A static program has no loader and no shared libraries in memory: a third of the size. Not every
# machine has a C library for static linking.
_LINKINGS = (("-static-pie",), ("-pie",))


class CannotCompile(Exception):
    """There is no compiler, or it failed. The message is for the person who installs."""


def version(source: Path = SOURCE) -> str:
    """The version that a program compiled from this source and its parts reports."""
    digest = hashlib.sha256()
    for part in [*parts(source), *sorted(source.parent.glob("shim*.h"))]:
        text = part.read_bytes()
        digest.update(f"{part.name} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:16]


def parts(source: Path = SOURCE) -> list[Path]:
    """The files that are compiled into the program: the source and its parts."""
    return sorted(source.parent.glob("shim*.c"))


def compiler() -> str | None:
    """The compiler that CC names, or the first one installed."""
    named = os.environ.get("CC", "").split()
    return next(filter(None, map(shutil.which, [*named[:1], *COMPILERS])), None)


def build(target: Path, source: Path = SOURCE) -> None:
    """Compile the shim to this file, which appears whole or not at all."""
    program = compiler()
    if program is None:
        raise CannotCompile(f"no C compiler found in PATH ({', '.join(COMPILERS)}); install one")
    draft = target.with_name(f".{target.name}.{os.getpid()}.new")
    problem = ""
    try:
        for linking in _LINKINGS:
            problem = _compile(program, linking, source, draft)
            if not problem:
                draft.chmod(0o755)
                draft.replace(target)
                return
    finally:
        draft.unlink(missing_ok=True)
    raise CannotCompile(f"{program} could not compile {source.name}: {problem}")


def _compile(program: str, linking: Sequence[str], source: Path, target: Path) -> str:
    """The compiler's error; empty for success."""
    made = f'-DSHIM_SOURCE="{version(source)}"'
    command = [
        program,
        *_FLAGS,
        *_HARDENING,
        *linking,
        made,
        "-o",
        str(target),
        *map(str, parts(source)),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")
