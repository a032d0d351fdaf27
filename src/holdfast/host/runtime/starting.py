"""Starts one attempt: its directory, its files, its shim.

Called by `runtime` in a thread, for it waits for the disk and for a fork. What comes back is the
near end of a line to the shim, which says on it whether the work has begun.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.agent.words import Launch
from holdfast.host.runtime import (
    beneath,
    cgroups_found,
    containers,
    containers_spec,
    devices,
    limits,
    limits_closing,
    unsealing,
)
from holdfast.host.runtime.attempts import LAUNCH, WORK, Attempts, Choices, lock
from holdfast.host.runtime.cgroups import Cgroups
from holdfast.host.runtime.containers_images import Image
from holdfast.host.runtime.devices import LocalDevice
from holdfast.host.runtime.shim_binary import ShimProgram
from holdfast.host.runtime.surroundings import (
    Surroundings,
    User,
    check_supported,
    surroundings,
    user,
)
from holdfast.model.errors import InvariantBroken, Unavailable
from holdfast.model.kinds.template import Runtime, Template

# The program that we start only forks; the shim is its child.
FORK_TIMEOUT_S = 10
PRIVATE, PASSABLE = 0o700, 0o711

_log = logging.getLogger(__name__)


class StartedBefore(Exception):
    """An earlier agent has started this very attempt: it runs, or it ran."""


class Options(msgspec.Struct, frozen=True):
    """What the operator of a machine says about running work there.

    cgroup: the control group below which those of the work are made.
    pids_max: how many processes and threads one attempt may have.
    devices: the machine's devices.
    images: the directories in which root file systems of containers may lie.
    """

    cgroup: str = msgspec.field(default_factory=cgroups_found.default_parent)
    pids_max: int = limits.PIDS_MAX
    devices: tuple[LocalDevice, ...] = ()
    images: tuple[Path, ...] = ()


class Place(msgspec.Struct, frozen=True):
    """Where work is started: on which node, in which boot, by what."""

    node: str
    boot: str
    program: ShimProgram
    attempts: Attempts
    groups: Cgroups
    options: Options


def start(
    of: Launch,
    place: Place,
    ports: Mapping[str, int],
    choices: Choices,
    image: Image | None = None,
) -> socket.socket:
    """Start it, in a container with this image if there is one.

    Invalid, Unavailable or OSError mean that nothing runs and nothing will; StartedBefore means the
    opposite, and that nothing more was started.
    """
    of = of if image is None else containers.dressed(of, image)
    check_supported(of.template)
    runs_as = user(of.template.user) if image is None else containers.user_of(of.template)
    attempts = place.attempts
    _make_room(of, attempts, PRIVATE if runs_as is None else PASSABLE)
    try:
        attempts.prune(of.attempt.uid)
    except OSError as error:
        # What an earlier attempt made of its directory must not keep this one from starting.
        _log.warning("old attempts of %s cannot be removed: %s", of.name, error)
    found = _found(of, place, ports, runs_as, image)
    with attempts.of(of.attempt) as fd, _limited(of, place) as (told, entrances):
        held = lock(fd)
        if held is None:
            raise InvariantBroken(f"somebody holds the new attempt {of.attempt}")
        try:
            chosen = msgspec.structs.replace(choices, limits=told)
            beneath.write_new(LAUNCH, fd, msgspec.json.encode(chosen), 0o600)
            owner = (runs_as.uid, runs_as.gid) if runs_as is not None else None
            _furnish(of, fd, owner)
            with beneath.folder(WORK, fd) as work, _inside(of.template, work, owner) as cwd:
                text = _text(found.text())
                try:
                    return _spawn(
                        of,
                        place,
                        runs_as if image is None else None,
                        len(found.arguments),
                        len(found.variables),
                        (held, text, fd, cwd),
                        entrances,
                    )
                finally:
                    os.close(text)
        finally:
            os.close(held)


def _found(
    of: Launch,
    place: Place,
    ports: Mapping[str, int],
    runs_as: User | None,
    image: Image | None,
) -> Surroundings:
    """What the shim is to run, and its variables."""
    folder = place.attempts.root.absolute() / of.attempt.uid / str(of.attempt.number)
    seen = str(folder / WORK) if image is None else containers_spec.DIRECTORY
    given = devices.variables(place.options.devices, of.devices)
    found = surroundings(of, place.node, seen, ports, runs_as.home if runs_as else "", given)
    if image is None:
        return found
    group, local = place.groups.path(of.attempt), place.options.devices
    boxing = containers.Boxing(folder, folder / WORK, group, image, runs_as, local)
    return containers.boxed(of, boxing, found)


@contextmanager
def _limited(of: Launch, place: Place) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """Its groups: what they enforce, and how to join them. Gone again when nothing was started."""
    wanted = limits.wanted(of.template, place.options.pids_max)
    denied = devices.denied(place.options.devices, of.devices)
    is_boxed = of.template.runtime is Runtime.CONTAINER
    try:
        told = place.groups.make(of.attempt, wanted, () if is_boxed else denied)
        if is_boxed:
            # runc itself stays outside, and puts what it starts into the groups.
            yield {**told, "devices": "runc, none but its own"}, ()
            return
        with place.groups.entrances(of.attempt) as entrances:
            yield told, entrances
    except BaseException:
        limits_closing.remove(place.groups, of.attempt)
        raise


def _make_room(of: Launch, attempts: Attempts, mode: int) -> None:
    try:
        attempts.make(of.attempt, mode)
    except FileExistsError:
        seen = attempts.look(of.attempt)
        if seen.is_alive or seen.state is not None or seen.exit is not None:
            raise StartedBefore(f"attempt {of.attempt.number} of {of.name}") from None
        # An agent died between making the directory and starting the shim.
        with attempts.of_replica(of.attempt.uid) as replica:
            beneath.remove(str(of.attempt.number), replica)
        attempts.make(of.attempt, mode)


def _furnish(of: Launch, fd: int, owner: tuple[int, int] | None) -> None:
    """Put the template's files into the work's own directory."""
    os.mkdir(WORK, PRIVATE, dir_fd=fd)
    if owner is not None:
        os.chown(WORK, *owner, dir_fd=fd, follow_symlinks=False)
    with beneath.folder(WORK, fd) as work:
        for file in of.template.files:
            *above, name = beneath.parts(file.path, "files.path")
            content = unsealing.content(file, of.secrets)
            with beneath.descend(above, work, owner) as where:
                beneath.write_new(name, where, content, unsealing.mode(file), owner)


def _inside(of: Template, work: int, owner: tuple[int, int] | None) -> beneath.Folder:
    """The open working directory, made where the files did not make it."""
    names = beneath.parts(of.working_dir, "workingDir") if of.working_dir else []
    return beneath.descend(names, work, owner)


def _text(content: bytes) -> int:
    """A file without a name: secrets among the variables never touch a disk."""
    fd = os.memfd_create("holdfast-work", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    return fd


def _spawn(
    of: Launch,
    place: Place,
    runs_as: User | None,
    arguments: int,
    variables: int,
    files: tuple[int, int, int, int],
    entrances: tuple[int, ...],
) -> socket.socket:
    near, far = socket.socketpair()
    with far:
        given = (far.fileno(), *files)
        command = [
            str(place.program.path),
            "run",
            place.program.isolation,
            place.boot,
            str(of.deadline_ms) if of.deadline_ms is not None else "none",
            str(of.grace_ms),
            runs_as.word() if runs_as is not None else "-",
            str(arguments),
            str(variables),
            *(str(fd) for fd in given),
            f"{of.namespace}/{of.name}",
            *(str(fd) for fd in entrances),
        ]
        try:
            # No variable of the agent's or of the work's can lead the shim astray.
            child = subprocess.Popen(
                command,
                env={},
                pass_fds=(*given, *entrances),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            code = child.wait(FORK_TIMEOUT_S)
        except OSError:
            near.close()
            raise
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            code = -1
        if code == 2:
            near.close()
            raise Unavailable("the shim did not understand how it was called")
    near.setblocking(False)
    return near
