"""Runs work in a container: turns a template with an image into a command for the shim.

Called by `starting`. To the shim a container is work like any other: it runs runc, in the
foreground, below the same init, deadline and groups. So stopping, adopting and proving an end are
the same for containers, and the kernel ends a container together with its shim.

runc's bundle and its state lie on a tmpfs in a mount namespace of the work's own, in which the
image is mounted with a writable layer. Both vanish with the work, however that ends: no mounts and
no state are left to clean up, and no secret among the variables touches a disk. The same holds for
its network, which is a pair of devices that the kernel removes with the namespace.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import msgspec

from holdfast.agent.runtime_protocol import Attempt, Launch
from holdfast.host.runtime import devices, shim_build
from holdfast.host.runtime.cgroups import groups as cgroups
from holdfast.host.runtime.cgroups import limits
from holdfast.host.runtime.containers import container_network as containers_network
from holdfast.host.runtime.containers import runc
from holdfast.host.runtime.containers.container_network import ContainerNetwork
from holdfast.host.runtime.containers.images import UNSAFE, Image
from holdfast.host.runtime.containers.oci_spec import DIRECTORY, LOOKUPS, Container, config
from holdfast.host.runtime.devices import LocalDevice
from holdfast.host.runtime.run_as import BLOCK
from holdfast.host.runtime.shim_binary import ShimProgram
from holdfast.host.runtime.surroundings import MARK, PATH_DEFAULT, Surroundings, User, user
from holdfast.model.errors import FieldError, Invalid, Unavailable, invariant
from holdfast.model.kinds.template import EnvVar, Template

RUNC = runc.RUNC
TOOLS = (RUNC, "unshare", "mount", "sh", "sed", "mkfifo", *containers_network.TOOLS)
# The place of everything of a container in its mount namespace. The users of a container must be
# able to pass all directories above it. On the node it is an empty directory.
BOX = Path("/run/holdfast/box")
UPPER, SCRATCH = "layer/upper", "layer/scratch"
# The kernel allows 128 KiB for a single variable.
CHUNK_BYTES = 96 * 1024
CHUNKS_MAX = 256
PROBE_TIMEOUT_S, TRIAL_TIMEOUT_S = 20, 60
_CHUNK, _LAYER = "HOLDFAST_BOX_", "HOLDFAST_LAYER_"
# runc itself only needs the bundle to be private.
_TMPFS = f'mount -t tmpfs -o mode=0711,size=16m holdfast "{BOX}"'


class _State(msgspec.Struct, frozen=True):
    """The part of a runtime's state of a container that is needed here."""

    status: str


class Boxing(msgspec.Struct, frozen=True):
    """Where a container runs and as which user.

    folder: the directory of the attempt.
    group: its control group.
    program: the shim, which also mounts layers and publishes ports.
    first: the host's user that is root inside; 0 if users inside are those of the node.
    secrets: the directory with its files from Secrets, which it has at the same path.
    joins: the files that a process writes to so that it is charged to the container.
    runtime: the program that runs it instead of runc, if any.
    """

    folder: Path
    work: Path
    group: str
    image: Image
    user: User | None
    devices: tuple[LocalDevice, ...]
    program: Path
    network: ContainerNetwork
    first: int = 0
    secrets: Path | None = None
    joins: tuple[Path, ...] = ()
    runtime: str = ""


def check(root: Path, groups: cgroups.Cgroups, program: ShimProgram, first: int = 0) -> None:
    """Raises Unavailable unless containers can be run here, with their layers below this folder.

    With `first`, they have users of their own, from this number on.
    """
    if os.geteuid() != 0:
        raise Unavailable("containers need an agent that runs as root")
    missing = [name for name in TOOLS if shutil.which(name, path=PATH_DEFAULT) is None]
    if missing:
        raise Unavailable(f"containers need {', '.join(missing)}; install on this node")
    if not groups.controllers:
        raise Unavailable("runc needs control groups, and none can be made on this node")
    if UNSAFE.search(str(root)):
        raise Unavailable(
            "the path of the agent's directory has characters that overlay mounts do not accept"
        )
    runc.check()
    _make_box()
    with tempfile.TemporaryDirectory(dir=root, prefix=".probe-") as made:
        places = {it: str(Path(made, it)) for it in ("LOWER", "UPPER", "SCRATCH")}
        for path in places.values():
            os.mkdir(path)
        _try(program, first, places)


def _make_box() -> None:
    try:
        for path in (BOX.parent, BOX):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
    except OSError as error:
        raise Unavailable(f"{BOX}, the directory of containers, cannot be made: {error}") from error


def _try(program: ShimProgram, first: int, places: dict[str, str]) -> None:
    """Mount an empty image like that of a container, and make a network, for real."""
    layers = _layers(1)
    names = {"SHIM": str(program.path), "FIRST": str(first), f"{_LAYER}0": places["LOWER"]}
    mapped = f'test "$(stat -c %u {BOX}/rootfs)" = {first}' if first else "true"
    os.chown(places["UPPER"], first, first)
    script = "\n".join((_TMPFS, *layers, mapped, containers_network.PROBE))
    try:
        tried = subprocess.run(
            [*_unshared(), script],
            env={"PATH": PATH_DEFAULT, **places, **names, "COUNT": str(BLOCK if first else 0)},
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"a trial of containers cannot be run: {error}") from error
    if tried.returncode != 0:
        why = tried.stderr.strip().splitlines()
        raise Unavailable(
            f"a trial of containers failed: {why[-1][:200] if why else 'no reason given'}"
        )


def try_runtime(
    root: Path, groups: cgroups.Cgroups, program: ShimProgram, first: int, runtime: str
) -> None:
    """Run a container with this runtime whose only program is the shim. Raises Unavailable."""
    template = Template(command=("/trial", "version"))
    launch = Launch(Attempt(str(uuid.uuid4()), 0), "", "trial", template, 0, None, 0)
    network = containers_network.network(template, {}, "127.0.0.1", is_routed=False)
    try:
        with tempfile.TemporaryDirectory(dir=root, prefix=".probe-") as made:
            image, work = Path(made, "image"), Path(made, "work")
            for path in (image, work):
                path.mkdir()
            shutil.copy(program.path, image / "trial")
            os.chown(work, first, first)
            groups.make(launch.attempt, limits.CgroupLimits())
            who = (Path(made), work, groups.path(launch.attempt), Image((image,)), None, ())
            place = Boxing(*who, program.path, network, first, runtime=runtime)
            found = in_container(
                launch, place, Surroundings(template.command, (f"PATH={PATH_DEFAULT}",))
            )
            tried = subprocess.run(
                found.arguments,
                env=dict(pair.split("=", 1) for pair in found.variables),
                capture_output=True,
                text=True,
                timeout=TRIAL_TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{runtime} cannot be tried: {error}") from error
    finally:
        groups.kill(launch.attempt)
        groups.remove(launch.attempt)
    if tried.returncode != 0 or tried.stdout.strip() != shim_build.version():
        why = tried.stderr.strip().splitlines()
        raise Unavailable(
            f"{runtime} cannot run a container: {why[-1][:200] if why else 'no output'}"
        )


def _unshared() -> list[str]:
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-e", "-c"]


def _layers(count: int) -> tuple[str, ...]:
    """Mount the image's layers, the topmost first, and the root file system."""
    places = [f"{BOX}/lower/{number}" for number in range(count)]
    pairs = " ".join(f'"${_LAYER}{number}" {place}' for number, place in enumerate(places))
    options = f"nosuid,nodev,lowerdir={':'.join(places)},upperdir=$UPPER,workdir=$SCRATCH"
    return (
        f"mkdir -p {BOX}/rootfs {' '.join(places)}",
        f'"$SHIM" layers "$FIRST" "$COUNT" {pairs}',
        f'mount -t overlay -o "{options}" holdfast {BOX}/rootfs',
    )


def with_image_defaults(of: Launch, image: Image) -> Launch:
    """The launch, with the image's defaults where the template states nothing."""
    # Values of an image are literal: the agent replaces no references in them.
    variables = (EnvVar(name, _literal(value)) for name, value in image.variables.items())
    command = (_literal(word) for word in (*image.entrypoint, *image.command))
    template = msgspec.structs.replace(
        of.template,
        env=(*variables, *of.template.env),
        command=of.template.command or tuple(command),
    )
    return msgspec.structs.replace(of, template=template)


def _literal(text: str) -> str:
    return text.replace("$(", "$$(")


def user_of(of: Template) -> User | None:
    """The user that it runs as: a user of the node, or any number; None is root."""
    if not of.user.isdecimal():
        found = user(of.user)
    else:
        number = int(of.user)
        found = User(number, number, (number,), "") if number else None
    if found is not None and max(found.uid, *found.groups) >= BLOCK:
        rule = f"must be below {BLOCK}, the number of users in a container"
        raise Invalid(f"user: {of.user}: {rule}", (FieldError("user", of.user, rule),))
    return found


def in_container(of: Launch, place: Boxing, found: Surroundings) -> Surroundings:
    """What the shim runs, so that this command runs inside the container."""
    for path in (UPPER, SCRATCH):
        (place.folder / path).mkdir(mode=0o700, parents=True)
    # This directory is the root of the container, and any user may have to list it.
    (place.folder / UPPER).chmod(0o755)
    if place.first:
        os.chown(place.folder / UPPER, place.first, place.first)
    working_dir = f"{DIRECTORY}/{of.template.working_dir}".rstrip("/")
    container = Container(
        name=of.name,
        work=place.work,
        working_dir=working_dir,
        user=place.user,
        group=place.group,
        devices=devices.paths(place.devices, of.devices),
        lookups=tuple(path for path in LOOKUPS if os.path.isfile(path)),
        first=place.first,
        has_host_network=place.network.is_host,
        connect=place.network.connect(BOX),
        secrets=place.secrets,
    )
    text = config(container, found)
    chunks = [text[at : at + CHUNK_BYTES] for at in range(0, len(text), CHUNK_BYTES)]
    invariant(len(chunks) <= CHUNKS_MAX, "the strings of a container are bounded by surroundings")
    variables = {
        "PATH": PATH_DEFAULT,
        MARK: f"{of.attempt.uid}/{of.attempt.number}",
        "SHIM": str(place.program),
        "FIRST": str(place.first),
        "COUNT": str(BLOCK if place.first else 0),
        "UPPER": str(place.folder / UPPER),
        "SCRATCH": str(place.folder / SCRATCH),
        **{f"{_LAYER}{number}": str(path) for number, path in enumerate(place.image.layers)},
    }
    pairs = [os.fsencode(f"{name}={value}") for name, value in variables.items()]
    pairs += [f"{_CHUNK}{number}=".encode() + chunk for number, chunk in enumerate(chunks)]
    script = _script(len(chunks), cgroups.name(of.attempt), place)
    return Surroundings((*_unshared(), script), tuple(os.fsdecode(pair) for pair in pairs))


def _script(chunks: int, name: str, place: Boxing) -> str:
    """The script that mounts, writes runc's configuration, and becomes runc."""
    names = [f"{_CHUNK}{number}" for number in range(chunks)]
    values = " ".join(f'"${name}"' for name in names)
    return "\n".join(
        (
            _TMPFS,
            f"mkdir -m 0700 {BOX}/state",
            *_layers(len(place.image.layers)),
            f"touch {BOX}/config.json && chmod 0600 {BOX}/config.json",
            f"printf %s {values} > {BOX}/config.json",
            f"unset {' '.join(names)}",
            *place.network.publish(BOX, place.first, place.joins),
            f"exec {_run(place.runtime)} --bundle {BOX} {shlex.quote(name)}",
        )
    )


def _run(runtime: str) -> str:
    """The command that runs a container. runc keeps its groups, which count OOM kills."""
    keep = "" if runtime else " --keep"
    return f"{shlex.quote(runtime or RUNC)} --root {BOX}/state run{keep}"


def has_begun(pid: int, name: str, runtime: str = "") -> bool:
    """Whether runc, which is the process `pid`, has started the container's program.

    Before that no command can enter it. Files below BOX are visible only in that process's mount
    namespace. Another runtime is asked by its command, in the namespaces of that process: its files
    are internal to it. It is not asked before it has a bundle, since it makes its directory
    when asked, and the script, which makes that directory too, would fail.
    """
    box = Path(f"/proc/{pid}/root{BOX}")
    seen = box / "state" / name
    try:
        if not runtime:
            # A container that is made and not started has a pipe on which it waits for its start.
            return (seen / "state.json").exists() and not (seen / "exec.fifo").exists()
        has_bundle = (box / "config.json").exists()
    except OSError:
        return False
    words = ("--root", str(BOX / "state"), "state", name)
    asked = ["nsenter", f"--target={pid}", "--mount", "--pid", runtime, *words]
    return has_bundle and _says_running(asked)


def _says_running(command: list[str]) -> bool:
    env = {"PATH": PATH_DEFAULT}
    try:
        said = subprocess.run(
            command, env=env, capture_output=True, timeout=PROBE_TIMEOUT_S, check=True
        )
        return bool(msgspec.json.decode(said.stdout, type=_State).status == "running")
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return False


def inside(
    name: str,
    command: tuple[str, ...],
    *,
    runtime: str = "",
    has_terminal: bool = False,
    more: tuple[bytes, ...] = (),
) -> tuple[str, ...]:
    """The command that runs another one inside the container of the shim's work.

    User, directory and variables are those of the container, with `more` variables added.
    """
    # Other runtimes detect a terminal by themselves.
    terminal = ("--tty",) if has_terminal and not runtime else ()
    variables = (word for pair in more for word in ("--env", os.fsdecode(pair)))
    state = ("--root", str(BOX / "state"))
    return (runtime or RUNC, *state, "exec", *terminal, *variables, name, *command)
