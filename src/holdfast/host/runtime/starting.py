"""Starts one attempt: its directory, its files, its shim.

Called by `runtime` in a thread, since it waits for the disk and for a fork. It returns a connection
to the shim, on which the shim says whether the work has begun.
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

from holdfast.agent.runtime_protocol import Launch
from holdfast.host.runtime import devices, safe_paths, unsealing
from holdfast.host.runtime.attempts import LAUNCH, TMP, WORK, AttemptFolders, Choices, lock
from holdfast.host.runtime.cgroups import detect, disk, limits, removal
from holdfast.host.runtime.cgroups.groups import Cgroups
from holdfast.host.runtime.confinement import Confinement, ConfinementRules
from holdfast.host.runtime.containers import container_network as containers_network
from holdfast.host.runtime.containers import containers, oci_spec, runc
from holdfast.host.runtime.containers.container_network import ContainerNetwork
from holdfast.host.runtime.containers.image_stores import BYTES_MAX
from holdfast.host.runtime.containers.images import Image
from holdfast.host.runtime.devices import LocalDevice
from holdfast.host.runtime.run_as import BLOCK
from holdfast.host.runtime.secret_files import SecretFiles
from holdfast.host.runtime.shim_binary import ShimProgram
from holdfast.host.runtime.surroundings import (
    Surroundings,
    User,
    check_supported,
    surroundings,
    user,
)
from holdfast.model.errors import InvariantBroken, Unavailable
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.template import Template
from holdfast.model.quantity import Resource, render

# The program that is started here only forks; the shim is its child.
FORK_TIMEOUT_S = 10
PRIVATE, PASSABLE, SHARED = 0o700, 0o711, 0o1777

_log = logging.getLogger(__name__)


class StartedBefore(Exception):
    """An earlier agent has started this attempt already: it runs, or it ran."""


class RuntimeOptions(msgspec.Struct, frozen=True):
    """The operator's settings for running work on a machine.

    cgroup: the control group below which those of the work are made.
    pids_max: how many processes and threads one attempt may have.
    devices: the machine's devices.
    images: the directories that may hold root file systems of containers.
    rules: how tenants are isolated.
    container_egress: whether the node forwards what containers send beyond it.
    tenant_images_bytes: how much the images pulled for one tenant may take.
    sandbox_runtime: the program that runs containers of sandboxed work.
    """

    cgroup: str = msgspec.field(default_factory=detect.default_parent)
    pids_max: int = limits.PIDS_MAX
    devices: tuple[LocalDevice, ...] = ()
    images: tuple[Path, ...] = ()
    rules: ConfinementRules = ConfinementRules()
    container_egress: bool = False
    tenant_images_bytes: int = BYTES_MAX
    sandbox_runtime: Path | None = None


class _Box(msgspec.Struct, frozen=True):
    """What a container has in addition to a process. `first` is the host's user that is root in it.

    runtime: the program that runs it instead of runc, if any.
    """

    image: Image
    network: ContainerNetwork
    first: int
    runtime: str = ""


class StartContext(msgspec.Struct, frozen=True):
    """What every start on a node needs: its name, its boot, the shim, and where files go."""

    node: str
    boot: str
    program: ShimProgram
    attempts: AttemptFolders
    groups: Cgroups
    options: RuntimeOptions
    confinement: Confinement | None = None
    address: str = "127.0.0.1"
    secret_files: SecretFiles | None = None

    @property
    def has_users(self) -> bool:
        """Whether each tenant's work has a user of its own."""
        return self.confinement is not None and self.confinement.has_users

    def block_of(self, tenant: str) -> int:
        """The host's user that is root inside this tenant's containers; 0 if it is not mapped."""
        return self.confinement.block_of(tenant) if self.confinement is not None else 0


def start(
    of: Launch,
    place: StartContext,
    ports: Mapping[str, int],
    choices: Choices,
    image: Image | None = None,
) -> socket.socket:
    """Start an attempt, in a container if there is an image.

    Invalid, Unavailable or OSError mean that nothing runs and nothing will; StartedBefore means
    that the attempt was started before, and nothing more was started now.
    """
    of = of if image is None else containers.with_image_defaults(of, image)
    check_supported(of.template)
    runtime = _runtime(of, place, image)
    # A container has its own ways of isolation; see `containers`.
    confined = place.confinement if image is None else None
    runs_as = _runs_as(of, confined, image)
    first = place.block_of(of.tenant) if image is not None else 0
    attempts = place.attempts
    # Confined work never passes through the directories above its own.
    _make_room(of, attempts, PRIVATE if runs_as is None or confined else PASSABLE)
    try:
        attempts.prune(of.attempt.uid)
        disk.give_back_before(attempts, of.attempt)
    except OSError as error:
        # What an earlier attempt left in its directory must not prevent this start.
        _log.warning("old attempts of %s cannot be removed: %s", of.name, error)
    box = None
    if image is not None:
        box = _Box(image, _network(of, place, ports), first, runtime)
    found = _found(of, place, ports, runs_as, box)
    with attempts.of(of.attempt) as fd, _limited(of, place, box) as (told, entrances):
        held = lock(fd)
        if held is None:
            raise InvariantBroken(f"another process holds the new attempt {of.attempt}")
        try:
            word = runs_as.word() if runs_as is not None and image is None else ""
            wanted = limits.cgroup_limits(of.template)
            most, aside = wanted.disk_bytes, wanted.disk_aside_bytes
            if most:
                told["disk"] = f"looked at each {disk.LOOK_S:g} s {render(Resource.DISK, most)}"
            bounds = {"limits": told, "disk_bytes": most, "disk_aside_bytes": aside}
            how = {"runs_as": word, "oci_runtime": runtime}
            chosen = msgspec.structs.replace(choices, **how, **bounds)
            safe_paths.write_new(LAUNCH, fd, msgspec.json.encode(chosen), 0o600)
            owner = _owner(runs_as, first)
            _furnish(of, fd, owner, place.secret_files)
            if confined:
                _make_folder(TMP, SHARED, fd, owner)
            with safe_paths.folder(WORK, fd) as work, _inside(of.template, work, owner) as cwd:
                # The shim follows no links.
                folder = attempts.root.resolve() / of.attempt.uid / str(of.attempt.number)
                paths = _paths(of, place, folder / WORK) if confined else ()
                text = _text(found.text(paths))
                try:
                    return _spawn(
                        of,
                        place,
                        runs_as if image is None else None,
                        (len(found.arguments), len(found.variables), len(paths)),
                        (held, text, fd, cwd),
                        entrances,
                    )
                finally:
                    os.close(text)
        finally:
            os.close(held)


def _runtime(of: Launch, place: StartContext, image: Image | None) -> str:
    """The runtime of its container, if that is not runc. Raises Unavailable if there is none."""
    if of.isolation is not Isolation.SANDBOXED:
        return ""
    if image is None:
        raise Unavailable("isolation: sandboxed needs a container: give the template an image")
    return runc.sandbox(place.options.sandbox_runtime)


def _runs_as(of: Launch, confined: Confinement | None, image: Image | None) -> User | None:
    if image is not None:
        return containers.user_of(of.template)
    if confined is None:
        return user(of.template.user)
    return confined.user_of(of.tenant, of.template.user)


def _found(
    of: Launch,
    place: StartContext,
    ports: Mapping[str, int],
    runs_as: User | None,
    box: _Box | None,
) -> Surroundings:
    """The command that the shim runs, and its variables."""
    folder = place.attempts.root.absolute() / of.attempt.uid / str(of.attempt.number)
    seen = str(folder / WORK) if box is None else oci_spec.DIRECTORY
    given = devices.variables(place.options.devices, of.devices)
    found = surroundings(of, place.node, seen, ports, runs_as.home if runs_as else "", given)
    if box is None:
        return found
    boxing = containers.Boxing(
        folder=folder,
        work=folder / WORK,
        group=place.groups.path(of.attempt),
        image=box.image,
        user=runs_as,
        devices=place.options.devices,
        program=place.program.path,
        network=box.network,
        first=box.first,
        secrets=_secrets(of, place),
        joins=place.groups.joins(of.attempt, (limits.CPU, limits.MEMORY)),
        runtime=box.runtime,
    )
    return containers.in_container(of, boxing, found)


def _network(of: Launch, place: StartContext, ports: Mapping[str, int]) -> ContainerNetwork:
    is_routed = place.options.container_egress
    host = socket.getaddrinfo(place.address, None, proto=socket.IPPROTO_TCP)[0][4][0]
    return containers_network.network(of.template, ports, str(host), is_routed=is_routed)


def _paths(of: Launch, place: StartContext, work: Path) -> tuple[str, ...]:
    """The shim's arguments that confine the work; empty where it is not confined."""
    if place.confinement is None:
        return ()
    secrets = place.secret_files.root if place.secret_files is not None else None
    return place.confinement.paths(work, of.template.working_dir, secrets)


def _secrets(of: Launch, place: StartContext) -> Path | None:
    """The directory of its files from Secrets that are in memory, if it has any."""
    has_some = any(it.secret is not None for it in of.template.files)
    if place.secret_files is None or not has_some:
        return None
    return place.secret_files.files(of.namespace, of.attempt)


def _owner(runs_as: User | None, first: int) -> tuple[int, int] | None:
    """The owner of the work's directory; None if it is the agent."""
    if runs_as is None:
        return (first, first) if first else None
    return (first + runs_as.uid, first + runs_as.gid)


def _told(box: _Box) -> dict[str, str]:
    """The further limits of a container."""
    users = f"{box.first}-{box.first + BLOCK - 1}" if box.first else "none: those of the node"
    runtime = os.path.basename(box.runtime) or containers.RUNC
    return {
        "devices": f"{runtime}, none but its own",
        "network": box.network.word,
        "syscalls": f"the kernel of {runtime}" if box.runtime else "seccomp",
        "users": users,
    }


@contextmanager
def _limited(
    of: Launch, place: StartContext, box: _Box | None
) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """Make its groups: what they enforce, and how to join them. Removed if nothing was started."""
    wanted = limits.cgroup_limits(of.template, place.options.pids_max)
    denied = devices.deny_rules(place.options.devices, of.devices)
    try:
        told = place.groups.make(of.attempt, wanted, () if box is not None else denied)
        if box is not None:
            # runc itself stays outside, and puts what it starts into the groups. The process that
            # publishes ports joins them by itself.
            yield {**told, **_told(box)}, ()
            return
        with place.groups.entrances(of.attempt) as entrances:
            yield told, entrances
    except BaseException:
        removal.remove(place.groups, of.attempt)
        if place.secret_files is not None:
            place.secret_files.remove(of.attempt)
        raise


def _make_room(of: Launch, attempts: AttemptFolders, mode: int) -> None:
    try:
        attempts.make(of.attempt, mode)
    except FileExistsError:
        seen = attempts.look(of.attempt)
        if seen.is_alive or seen.state is not None or seen.exit is not None:
            raise StartedBefore(f"attempt {of.attempt.number} of {of.name}") from None
        # An agent died between making the directory and starting the shim.
        with attempts.of_replica(of.attempt.uid) as replica:
            safe_paths.remove(str(of.attempt.number), replica)
        attempts.make(of.attempt, mode)


def _furnish(
    of: Launch,
    fd: int,
    owner: tuple[int, int] | None,
    kept: SecretFiles | None,
) -> None:
    """Put the template's files into the work's own directory, those from Secrets by a link."""
    _make_folder(WORK, PRIVATE, fd, owner)
    with safe_paths.folder(WORK, fd) as work:
        for file in of.template.files:
            *above, name = safe_paths.parts(file.path, "files.path")
            content, mode = unsealing.content(file, of.secrets), unsealing.mode(file)
            with safe_paths.descend(above, work, owner) as where:
                if kept is None or file.secret is None:
                    safe_paths.write_new(name, where, content, mode, owner)
                    continue
                target = kept.path(of.namespace, of.attempt, file.path)
                kept.write(target, content, mode, owner)
                os.symlink(target, name, dir_fd=where)


def _make_folder(name: str, mode: int, at: int, owner: tuple[int, int] | None) -> None:
    os.mkdir(name, PRIVATE, dir_fd=at)
    with safe_paths.folder(name, at) as fd:
        os.fchmod(fd, mode)
        if owner is not None:
            os.fchown(fd, *owner)


def _inside(of: Template, work: int, owner: tuple[int, int] | None) -> safe_paths.Folder:
    """The open working directory, made if writing the files did not make it."""
    names = safe_paths.parts(of.working_dir, "workingDir") if of.working_dir else []
    return safe_paths.descend(names, work, owner)


def _text(content: bytes) -> int:
    """The strings in a file without a name: secrets among the variables never touch a disk."""
    fd = os.memfd_create("holdfast-work", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    return fd


def _spawn(
    of: Launch,
    place: StartContext,
    runs_as: User | None,
    counts: tuple[int, int, int],
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
            *map(str, counts),
            *(str(fd) for fd in given),
            f"{of.namespace}/{of.name}",
            *(str(fd) for fd in entrances),
        ]
        try:
            # No variable of the agent or of the work may influence the shim.
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
            raise Unavailable("the shim refused its arguments; install agent and shim together")
    near.setblocking(False)
    return near
