"""The arguments, variables and user that work starts with.

Called by `starting`, before anything is written. A template was validated when it was admitted,
perhaps by an older server; what would be dangerous here is refused here as well.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from holdfast.agent.runtime_protocol import Launch
from holdfast.host.runtime import unsealing
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kinds.template import Template
from holdfast.model.validation.template import KUBECONFIG_SUFFIX, port_variable
from holdfast.model.validation.text import ARGUMENT_BYTES_MAX

PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The kernel accepts a quarter of the stack's limit, which is usually 8 MiB. A name may be used in a
# thousand places, and the agent must not build gigabytes that the kernel would refuse.
STRINGS_BYTES_MAX = 2 * 1024 * 1024
# Marks every process of an attempt, unless it drops its variables.
MARK, DIRECTORY = "HOLDFAST_ATTEMPT", "HOLDFAST_DIRECTORY"
# Where work that asked for a service token finds it, and a kubeconfig that names it.
TOKEN_FILE, KUBECONFIG = "HOLDFAST_TOKEN_FILE", "HOLDFAST_KUBECONFIG"

_REFERENCE = re.compile(r"\$(\$(?=\()|\([A-Za-z_][-A-Za-z0-9_.]*\))", re.ASCII)


class User(msgspec.Struct, frozen=True, gc=False):
    """The user and groups that the work runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def word(self) -> str:
        """The shim's argument for it: the first group is the primary one."""
        others = [gid for gid in self.groups if gid != self.gid]
        return f"{self.uid}:" + ",".join(str(gid) for gid in (self.gid, *others))


class Surroundings(msgspec.Struct, frozen=True):
    arguments: tuple[str, ...]
    variables: tuple[str, ...]

    def text(self, paths: tuple[str, ...] = ()) -> bytes:
        """All strings followed by these, each with its terminating NUL."""
        strings = (*self.arguments, *self.variables, *paths)
        return b"".join(os.fsencode(it) + b"\x00" for it in strings)


def _invalid(field: str, value: str, rule: str) -> Invalid:
    return Invalid(f"{field}: {value}: {rule}", (FieldError(field, value, rule),))


def check_supported(of: Template) -> None:
    """Refuse what this agent cannot do, instead of starting something else."""
    if not of.command or not of.command[0]:
        raise _invalid("command", "", "must name a program")
    for entry in of.env:
        if not entry.name or "=" in entry.name or entry.name.startswith("HOLDFAST_"):
            raise _invalid("env.name", repr(entry.name), "must not be a variable the agent sets")


def user(name: str) -> User | None:
    """The template's user on this machine; None is the agent's own."""
    if not name:
        return None
    try:
        found = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        raise _invalid("user", name, "must be a user of this machine") from None
    if found.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise _invalid("user", name, "needs an agent that runs as root")
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return User(found.pw_uid, found.pw_gid, groups, found.pw_dir)


def _expand(text: str, known: Mapping[str, str]) -> str:
    """Replace $(NAME) by its value; unknown names stay as they are.

    $$(NAME) stands for $(NAME) itself. Other double dollars are left to the shell, where they mean
    its own pid.
    """
    pieces, end, size = [], 0, 0
    for found in _REFERENCE.finditer(text):
        inner = found[1]
        piece = "$" if inner == "$" else known.get(inner[1:-1], found[0])
        size += len(piece)
        if size > ARGUMENT_BYTES_MAX:
            # Checked on the way: a short text may name a long value thousands of times.
            raise _invalid(
                "env", text[:40] + "…", f"must expand to at most {ARGUMENT_BYTES_MAX} bytes"
            )
        pieces += [text[end : found.start()], piece]
        end = found.end()
    return "".join((*pieces, text[end:]))


def surroundings(
    of: Launch,
    node: str,
    folder: str,
    ports: Mapping[str, int],
    home: str,
    given: Mapping[str, str] = MappingProxyType({}),
) -> Surroundings:
    """The arguments and variables of an attempt whose ports were chosen.

    `given` are further variables, which no template can change: those of its devices.
    """
    template = of.template
    known = {
        "PATH": PATH_DEFAULT,
        "HOME": home or folder,
        "HOLDFAST_REPLICA": of.name,
        "HOLDFAST_NAMESPACE": of.namespace,
        "HOLDFAST_UID": of.attempt.uid,
        "HOLDFAST_INDEX": str(of.index),
        "HOLDFAST_NODE": node,
        "HOLDFAST_TOKEN": str(of.token),
        DIRECTORY: folder,
        MARK: f"{of.attempt.uid}/{of.attempt.number}",
        **of.variables,
    }
    if template.service_token is not None:
        file = f"{folder}/{template.service_token.file}"
        known |= {TOKEN_FILE: file, KUBECONFIG: file + KUBECONFIG_SUFFIX}
    known.update({port_variable(name): str(port) for name, port in ports.items()})
    known.update(given)
    for entry in template.env:
        # The value of a Secret is taken literally, even if it contains $(NAME).
        secret = unsealing.variable(entry, of.secrets)
        known[entry.name] = _expand(entry.value, known) if secret is None else secret
    known.update(given)
    found = Surroundings(
        tuple(_expand(argument, known) for argument in template.command),
        tuple(f"{name}={value}" for name, value in known.items()),
    )
    strings = (*found.arguments, *found.variables)
    if any("\x00" in text for text in strings):
        raise _invalid("command, env", "", "must not have the character U+0000")
    size = sum(len(os.fsencode(text)) + 1 for text in strings)
    if size > STRINGS_BYTES_MAX:
        raise _invalid("command, env", f"{size} bytes", f"must be at most {STRINGS_BYTES_MAX}")
    return found
