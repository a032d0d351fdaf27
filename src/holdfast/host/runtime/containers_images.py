"""Images of containers: a directory of the node, or what podman has under a reference.

Called by `runtime` before a container is started, in threads of their own: a pull may take minutes,
and nobody else's work should wait for it. An image is only ever read; what a container writes goes
into a layer of its attempt.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.model.errors import FieldError, Invalid, Unavailable

PODMAN = "podman"
ASK_TIMEOUT_S = 30
# A stop that comes meanwhile waits for this, so it is not longer.
PULL_TIMEOUT_S = 120
# Separators of the options that mount takes, and what no path of an image needs.
UNSAFE = re.compile(r"[,:\\\"\x00-\x1f\x7f]")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}", re.ASCII)
# runc is what containers run by here, and no other manager of groups is needed.
_GLOBAL = ("--cgroup-manager", "cgroupfs", "--runtime", "runc")


class Image(msgspec.Struct, frozen=True):
    """A root file system, and what runs in it unless a template says otherwise."""

    root: Path
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    variables: dict[str, str] = {}


class _Config(msgspec.Struct, frozen=True, rename="pascal"):
    """What podman tells of an image; a part of it is enough."""

    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: tuple[str, ...] | None = None


class _Inspected(msgspec.Struct, frozen=True, rename="pascal"):
    id: str
    config: _Config = _Config()


def find(image: str, folders: Sequence[Path]) -> Image:
    """The image of a template. Invalid or Unavailable say why there is none."""
    if image.startswith("/"):
        return Image(_directory(image, folders))
    if not _REFERENCE.fullmatch(image):
        raise _wrong(image, "must be an absolute path or a reference such as docker.io/a/b:1")
    return _by_podman(image)


def _directory(image: str, folders: Sequence[Path]) -> Path:
    """A root file system that lies in one of the operator's directories of images.

    Links are followed before that is judged: no name may lead to files that are not meant for it.
    """
    if UNSAFE.search(image) or ".." in image.split("/"):
        raise _wrong(image, "must be a path without '..', commas, colons and the like")
    try:
        real = Path(os.path.realpath(image, strict=True))
        above = [Path(os.path.realpath(folder, strict=True)) for folder in folders]
    except (OSError, ValueError):
        raise _wrong(image, "is no directory of this node's images") from None
    if not any(real != it and real.is_relative_to(it) for it in above) or not real.is_dir():
        # One answer to all of them: whether other files exist is nobody's business.
        raise _wrong(image, "is no directory of this node's images")
    if UNSAFE.search(str(real)):
        raise _wrong(image, "must lead to a path without commas, colons and the like")
    return real


def _by_podman(reference: str) -> Image:
    program = shutil.which(PODMAN)
    if program is None:
        raise Unavailable(f"the image {reference} needs podman, which is not installed here")
    if _podman(program, "image", "exists", reference).returncode != 0:
        pulled = _podman(program, "pull", "--quiet", reference, timeout_s=PULL_TIMEOUT_S)
        if pulled.returncode != 0:
            raise Unavailable(f"the image {reference} cannot be pulled: {_last(pulled.stderr)}")
    inspected = _podman(program, "image", "inspect", reference)
    mounted = _podman(program, "image", "mount", reference)
    for asked in (inspected, mounted):
        if asked.returncode != 0:
            raise Unavailable(f"the image {reference} cannot be used: {_last(asked.stderr)}")
    try:
        (of,) = msgspec.json.decode(inspected.stdout, type=tuple[_Inspected, ...])
    except (msgspec.DecodeError, ValueError) as error:
        raise Unavailable(f"podman's word on {reference} cannot be read: {error}") from error
    pairs = (text.partition("=") for text in of.config.env or ())
    variables = {name: value for name, _, value in pairs if not name.startswith("HOLDFAST_")}
    root = Path(mounted.stdout.strip())
    if not root.is_dir() or UNSAFE.search(str(root)):
        raise Unavailable(f"podman has {reference} at {root}, which cannot be used")
    return Image(root, of.config.entrypoint or (), of.config.cmd or (), variables)


def _podman(
    program: str, *words: str, timeout_s: int = ASK_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [program, *_GLOBAL, *words],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"podman {words[0]} did not come to an end: {error}") from error


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "it gave no reason"


def _wrong(image: str, rule: str) -> Invalid:
    error = FieldError("image", image[:80], rule)
    return Invalid(str(error), (error,))
