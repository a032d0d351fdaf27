"""Images of containers: a directory of the node, or what podman has under a reference.

Called by `image_waits` in threads of its own: a pull may take minutes, and other work must not wait
for it. An image is only ever read; what a container writes goes into a layer of its attempt.

The operator fills podman's store of the node, which serves every tenant. Nothing is ever pulled
into it: each tenant has stores of its own (`image_stores`), which are filled with that tenant's
credentials and used only for work with these credentials, so a pulled private image stays private.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.host.runtime.containers.image_stores import NODE_STORE, ImageStore
from holdfast.model.errors import FieldError, Invalid, Unavailable
from holdfast.model.image_references import image_fault, registry_name

PODMAN = "podman"
ASK_TIMEOUT_S = 30
# A stop that comes meanwhile waits for the pull, so this is not longer.
PULL_TIMEOUT_S = 120
# How often a running pull is checked against the room that is left.
PULL_LOOK_S = 1.0
# Separators in the options of mount, and other characters that no path of an image needs.
UNSAFE = re.compile(r"[,:\\\"\x00-\x1f\x7f]")
# Containers run with runc here, so podman needs no other cgroup manager.
_GLOBAL = ("--cgroup-manager", "cgroupfs", "--runtime", "runc")
# The options of one mount must fit a page; images usually have fewer layers.
LAYERS_MAX = 120
_NO_CREDENTIALS = b"{}"


class Image(msgspec.Struct, frozen=True):
    """A root file system, and the defaults for what runs in it.

    layers: its directories, the topmost first.
    """

    layers: tuple[Path, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    variables: dict[str, str] = {}


class _Config(msgspec.Struct, frozen=True, rename="pascal"):
    """The part of podman's description of an image that is needed here."""

    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: tuple[str, ...] | None = None


class _Driver(msgspec.Struct, frozen=True, rename="pascal"):
    name: str = ""
    data: dict[str, str] | None = None


class _Inspected(msgspec.Struct, frozen=True, rename="pascal"):
    id: str
    config: _Config = _Config()
    graph_driver: _Driver = _Driver()


def local(image: str, folders: Sequence[Path], store: ImageStore) -> Image | None:
    """The image, if it is here already. Raises Invalid or Unavailable if there can be none."""
    fault = image_fault(image)
    if fault:
        raise _wrong(image, fault)
    if image.startswith("/"):
        return Image((_directory(image, folders),))
    program, name = _program(image), registry_name(image)
    for it in (NODE_STORE, store):
        if _podman(program, it, "image", "exists", name).returncode == 0:
            return _described(program, it, name)
    return None


def pull(
    reference: str,
    store: ImageStore,
    credentials: bytes,
    is_full: Callable[[], bool] = lambda: False,
) -> Image:
    """Pull it into a tenant's store, with that tenant's credentials or none.

    The transport is always stated: without one podman may take a reference for a file of the node.
    Raises Unavailable as soon as `is_full`, which is called repeatedly meanwhile, returns True.
    """
    program, name = _program(reference), registry_name(reference)
    if store.temporary is not None:
        # Files that an earlier, killed pull left.
        shutil.rmtree(store.temporary, ignore_errors=True)
        store.temporary.mkdir(parents=True)
    # A file without a name, so that no disk has it. Without a file podman would look for the
    # credentials of the agent's own user.
    fd = os.memfd_create("holdfast-credentials", os.MFD_CLOEXEC)
    try:
        os.write(fd, credentials or _NO_CREDENTIALS)
        words = ("pull", "--quiet", "--authfile", f"/proc/self/fd/{fd}", f"docker://{name}")
        fault = _watched(program, store, words, fd, is_full)
    finally:
        os.close(fd)
    if is_full():
        _podman(program, store, "rmi", "--force", name)
        fault = "the tenant's images leave no room for it on this node"
    if fault:
        raise Unavailable(f"the image {reference} cannot be pulled: {fault}")
    return _described(program, store, name)


def _watched(
    program: str, store: ImageStore, words: tuple[str, ...], fd: int, is_full: Callable[[], bool]
) -> str:
    """Run podman until it ends, its time is over or the store is full. Returns any error."""
    surroundings = {**os.environ, "TMPDIR": str(store.temporary or "/var/tmp")}
    ends = time.monotonic() + PULL_TIMEOUT_S
    try:
        # A group of its own: podman unpacks layers in children, which must end with it.
        running = subprocess.Popen(
            [program, *_GLOBAL, *store.options, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(fd,),
            env=surroundings,
            start_new_session=True,
        )
    except OSError as error:
        return str(error)
    while True:
        try:
            _, said = running.communicate(timeout=PULL_LOOK_S)
            return _last(said) if running.returncode else ""
        except subprocess.TimeoutExpired:
            is_late = time.monotonic() > ends
            if is_late or is_full():
                os.killpg(running.pid, signal.SIGKILL)
                running.communicate()
                late = f"it took longer than {PULL_TIMEOUT_S} s"
                return late if is_late else "the tenant's images leave no room for it on this node"


def _directory(image: str, folders: Sequence[Path]) -> Path:
    """A root file system in one of the operator's directories of images.

    Links are resolved before the check: no name may lead to other files of the node.
    """
    try:
        real = Path(os.path.realpath(image, strict=True))
        above = [Path(os.path.realpath(folder, strict=True)) for folder in folders]
    except (OSError, ValueError):
        raise _wrong(image, "must be a directory of this node's images") from None
    if not any(real != it and real.is_relative_to(it) for it in above) or not real.is_dir():
        # The same error for all of these: tenants must not learn whether other files exist.
        raise _wrong(image, "must be a directory of this node's images")
    if UNSAFE.search(str(real)):
        raise _wrong(image, "must be a path without commas, colons and similar characters")
    return real


def _program(reference: str) -> str:
    program = shutil.which(PODMAN)
    if program is None:
        raise Unavailable(f"the image {reference} needs podman, which is not installed here")
    return program


def _described(program: str, store: ImageStore, reference: str) -> Image:
    inspected = _podman(program, store, "image", "inspect", reference)
    if inspected.returncode != 0:
        raise Unavailable(f"the image {reference} cannot be used: {_last(inspected.stderr)}")
    try:
        (of,) = msgspec.json.decode(inspected.stdout, type=tuple[_Inspected, ...])
    except (msgspec.DecodeError, ValueError) as error:
        raise Unavailable(f"podman's output on {reference} cannot be parsed: {error}") from error
    pairs = (text.partition("=") for text in of.config.env or ())
    variables = {name: value for name, _, value in pairs if not name.startswith("HOLDFAST_")}
    layers = _layers(program, store, reference, of.graph_driver)
    for layer in layers:
        if not layer.is_dir() or UNSAFE.search(str(layer)):
            raise Unavailable(f"podman has {reference} at {layer}, which cannot be used")
    if len(layers) > LAYERS_MAX:
        raise Unavailable(f"the image {reference} has more than {LAYERS_MAX} layers")
    return Image(layers, of.config.entrypoint or (), of.config.cmd or (), variables)


def _layers(program: str, store: ImageStore, reference: str, driver: _Driver) -> tuple[Path, ...]:
    """The directories of the layers, if podman names them; else the whole image, mounted.

    A mounted image is itself an overlay, and the kernel cannot map the owners of its files.
    """
    data: Mapping[str, str] = driver.data or {}
    if driver.name == "overlay" and data.get("UpperDir"):
        below = data.get("LowerDir", "").split(":")
        return tuple(Path(text) for text in (data["UpperDir"], *below) if text)
    mounted = _podman(program, store, "image", "mount", reference)
    if mounted.returncode != 0:
        raise Unavailable(f"the image {reference} cannot be used: {_last(mounted.stderr)}")
    return (Path(mounted.stdout.strip()),)


def _podman(
    program: str,
    store: ImageStore,
    *words: str,
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [program, *_GLOBAL, *store.options, *words],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"podman {words[0]} failed: {error}") from error


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "it gave no reason"


def _wrong(image: str, rule: str) -> Invalid:
    error = FieldError("image", image[:80], rule)
    return Invalid(str(error), (error,))
