"""Validates templates, wherever they appear.

A `$(NAME)` that names no variable is not an error: as in Kubernetes it is left unchanged, because
commands and values often contain dollars for a shell.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from holdfast.model.image_references import image_fault
from holdfast.model.kinds.template import (
    DeviceRequest,
    EnvVar,
    ExecAction,
    File,
    HttpAction,
    OnDisconnect,
    Port,
    PreStop,
    Probe,
    Runtime,
    SecretRef,
    TcpAction,
    Template,
)
from holdfast.model.quantity import MILLI, Resource
from holdfast.model.validation import amounts, names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.names import secret_key
from holdfast.model.validation.placement import placement

ENV_MAX = 512
FILES_MAX = 128
# Each replica has a copy of its template, in the store and on the wire.
FILES_BYTES_MAX = 256 * 1024
PORTS_MAX = 64
PORT_NAME_MAX = 15
DEVICES_MAX = 16

# The prefix of the agent's own variables, which work must be able to trust.
RESERVED_PREFIX = "HOLDFAST_"


# Thousands of replicas have the same template. A template is validated by itself, so a valid one
# stays valid: this many are remembered by their bytes.
_SOUND_MAX = 512
_SOUND_BYTES_MAX = 16 * 1024
_sound: dict[bytes, None] = {}
_encoder = msgspec.json.Encoder()


def template(at: FieldPath, of: Template) -> None:
    """Checks everything that can be checked in a template by itself."""
    known = _encoder.encode(of)
    if known in _sound:
        return
    before = at.found
    _judge(at, of)
    if at.found == before and len(known) <= _SOUND_BYTES_MAX:
        if len(_sound) >= _SOUND_MAX:
            del _sound[next(iter(_sound))]
        _sound[known] = None


def _judge(at: FieldPath, of: Template) -> None:
    names.label_map(at["metadata"]["labels"], of.metadata.labels)
    names.annotation_map(at["metadata"]["annotations"], of.metadata.annotations)
    _program(at, of)
    _environment(at["env"], of)
    _files(at["files"], of.files)
    _service_token(at["serviceToken"], of)
    _ports(at["ports"], of.ports)
    _resources(at, of)
    devices(at["devices"], of.devices)
    placement(at["placement"], of.placement)
    names.optional_name(at["priorityClass"], of.priority_class)
    _probes(at["probes"], of)
    _stopping(at, of)


def _program(at: FieldPath, of: Template) -> None:
    container = of.runtime is Runtime.CONTAINER
    if container:
        fault = image_fault(of.image) if of.image else "must be given"
        if fault:
            at["image"].wrong(of.image or None, fault)
    elif of.image:
        at["image"].wrong(of.image, "must be left out unless the runtime is container")
    if of.image_pull_secret and not container:
        at["imagePullSecret"].wrong(
            of.image_pull_secret, "must be left out unless the runtime is container"
        )
    elif of.image_pull_secret:
        names.name(at["imagePullSecret"], of.image_pull_secret)
    if of.host_network and not container:
        at["hostNetwork"].wrong(True, "must be left out: a process has the node's network anyway")
    text.command(at["command"], of.command, needed=not container)
    if of.working_dir:
        text.relative_path(at["workingDir"], of.working_dir)
    if of.user:
        text.user(at["user"], of.user)


# The name of the kubeconfig beside a service token is the token's name with this suffix.
KUBECONFIG_SUFFIX = ".kubeconfig"


def _service_token(at: FieldPath, of: Template) -> None:
    if of.service_token is None:
        return
    file = of.service_token.file
    text.relative_path(at["file"], file)
    if "/" in file:
        at["file"].wrong(file, "must be a file name without directories")
    first = {it.path.partition("/")[0] for it in of.files}
    for name in (file, file + KUBECONFIG_SUFFIX):
        if name in first:
            at["file"].wrong(file, f"must not conflict with the entry {name} of files")


def _secret(at: FieldPath, ref: SecretRef) -> None:
    names.name(at["name"], ref.name)
    secret_key(at["key"], ref.key)


def port_variable(name: str) -> str:
    """The environment variable with the number of the port of this name."""
    return "PORT_" + name.upper().replace("-", "_")


def _environment(at: FieldPath, of: Template) -> None:
    if not names.at_most(at, of.env, ENV_MAX):
        return
    given = {port_variable(port.name) for port in of.ports}
    for index, entry in enumerate(of.env):
        _variable(at[index], entry)
        if entry.name.startswith(RESERVED_PREFIX) or entry.name in given:
            at[index]["name"].wrong(entry.name, "must not be a variable that the agent sets")
    names.unique(at, [entry.name for entry in of.env], "name")


def _variable(at: FieldPath, entry: EnvVar) -> None:
    text.variable(at["name"], entry.name)
    if entry.secret is None:
        text.argument(at["value"], entry.value)
        return
    _secret(at["secret"], entry.secret)
    if entry.value:
        at["value"].wrong(None, "must be left out where a secret is named")


def _files(at: FieldPath, files: tuple[File, ...]) -> None:
    if not names.at_most(at, files, FILES_MAX):
        return
    for index, file in enumerate(files):
        text.relative_path(at[index]["path"], file.path)
        if file.mode:
            text.mode(at[index]["mode"], file.mode)
        if file.secret is not None:
            _secret(at[index]["secret"], file.secret)
            if file.content:
                at[index]["content"].wrong(None, "must be left out where a secret is named")
    paths = [file.path for file in files]
    names.unique(at, paths, "path")
    _folders(at, paths)
    size = sum(len(file.content.encode()) for file in files)
    if size > FILES_BYTES_MAX:
        at.wrong(files, f"must have at most {FILES_BYTES_MAX} bytes of content in all, has {size}")


def _folders(at: FieldPath, paths: list[str]) -> None:
    """Checks that no file is a directory of another.

    With the separator sorted first, the files below a directory directly follow it.
    """
    order = sorted(range(len(paths)), key=lambda index: paths[index].replace("/", "\x00"))
    for index, following in pairwise(order):
        if paths[following].startswith(paths[index] + "/"):
            at[index]["path"].wrong(paths[index], "must not be a directory of another file")


def _ports(at: FieldPath, ports: tuple[Port, ...]) -> None:
    if not names.at_most(at, ports, PORTS_MAX):
        return
    for index, port in enumerate(ports):
        names.name(at[index]["name"], port.name, limit=PORT_NAME_MAX)
        if port.name.isdigit():
            # The port of a probe is a name or a number, so a numeric name would be ambiguous.
            at[index]["name"].wrong(port.name, "must have a letter or a dash")
    names.unique(at, [port.name for port in ports], "name")
    seen: set[str] = set()
    for index, port in enumerate(ports):
        key = f"{port.protocol.value}/{port.port}"
        if port.port and key in seen:
            at[index]["port"].wrong(port.port, "must not appear twice for the same protocol")
        seen.add(key)


def _resources(at: FieldPath, of: Template) -> None:
    limits = of.limits.amounts
    for resource, amount in of.resources.amounts.items():
        name, most = resource.value, limits[resource]
        wanted = amounts.read_demand(at["resources"][name], resource, amount)
        limit = amounts.read_demand(at["limits"][name], resource, most)
        if wanted is not None and limit and limit < wanted:
            at["limits"][name].wrong(most, "must not be less than the amount in resources")


def devices(at: FieldPath, items: tuple[DeviceRequest, ...]) -> None:
    """Checks the device requests of one replica."""
    if not names.at_most(at, items, DEVICES_MAX):
        return
    for index, device in enumerate(items):
        _device(at[index], device)


def _device(at: FieldPath, device: DeviceRequest) -> None:
    amounts.device_class(at["deviceClass"], device.device_class)
    amounts.read_demand(at["memory"], Resource.MEMORY, device.memory)
    for index, model in enumerate(device.models):
        text.sentence(at["models"][index], model, needed=True, limit=names.DOTTED_MAX)
    names.unique(at["models"], device.models)
    if device.share is None:
        return
    share = amounts.read_demand(at["share"], device.device_class, device.share)
    if share is not None and not 0 < share <= MILLI:
        at["share"].wrong(device.share, "must be more than 0 and at most 1")
    if device.count > 1:
        at["count"].wrong(device.count, "must be 1 if a share of a device is requested")


def _probes(at: FieldPath, of: Template) -> None:
    probes = of.probes
    for field, probe in (
        ("startup", probes.startup),
        ("readiness", probes.readiness),
        ("liveness", probes.liveness),
    ):
        if probe is None:
            continue
        _actions(at[field], of, probe)
        if field != "readiness" and probe.success_threshold != 1:
            at[field]["successThreshold"].wrong(
                probe.success_threshold, "must be 1 for all but readiness"
            )


def _actions(at: FieldPath, of: Template, asks: Probe | PreStop) -> None:
    """Checks that there is exactly one action, and that it can be performed."""
    tcp = asks.tcp if isinstance(asks, Probe) else None
    given = [action for action in (asks.exec, asks.http, tcp) if action is not None]
    if len(given) != 1:
        choice = "exec, http and tcp" if isinstance(asks, Probe) else "exec and http"
        at.wrong(None, f"must have exactly one of {choice}, has {len(given)}")
    for action in given:
        match action:
            case ExecAction():
                text.command(at["exec"]["command"], action.command)
            case HttpAction():
                _port_reference(at["http"]["port"], of, action.port)
                _http_path(at["http"]["path"], action.path)
            case TcpAction():
                _port_reference(at["tcp"]["port"], of, action.port)


def _http_path(at: FieldPath, path: str) -> None:
    text.token(at, path, limit=2048)
    if path and not path.startswith("/"):
        at.wrong(path, "must start with a slash")


def _port_reference(at: FieldPath, of: Template, port: str | int) -> None:
    if isinstance(port, int):
        if not 1 <= port <= 65_535:
            at.wrong(port, "must be a port number from 1 to 65535")
    elif port not in [known.name for known in of.ports]:
        at.wrong(port, "must be the name of one of the template's ports")


def _stopping(at: FieldPath, of: Template) -> None:
    if of.pre_stop is not None:
        _actions(at["preStop"], of, of.pre_stop)
        if of.grace_seconds == 0:
            at["graceSeconds"].wrong(0, "must be at least 1 where preStop needs time")
    if of.replace_after_seconds is not None and of.on_disconnect is not OnDisconnect.KEEP:
        # Work that stops itself is replaced after the fence, not after this time.
        at["replaceAfterSeconds"].wrong(
            of.replace_after_seconds, "must be left out unless onDisconnect is keep"
        )
    if of.startup_deadline_seconds == 0:
        at["startupDeadlineSeconds"].wrong(0, "must be at least 1")
