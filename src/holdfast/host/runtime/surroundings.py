"""What a piece of work finds when it starts: its arguments, its variables, its user.

Called by `starting`, before anything is written. A template was validated when it was admitted,
perhaps by an older server; what would be dangerous here is refused here, too.
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
# The kernel takes a quarter of the stack's limit, of which 8 MiB are usual; a name may be used in a
# thousand places, and nobody should build gigabytes here to be refused there.
STRINGS_BYTES_MAX = 2 * 1024 * 1024
# What marks every process of an attempt that did not throw its variables away.
MARK, DIRECTORY = "HOLDFAST_ATTEMPT", "HOLDFAST_DIRECTORY"
# Where work that asked for a service token finds it, and a kubeconfig that names it.
TOKEN_FILE, KUBECONFIG = "HOLDFAST_TOKEN_FILE", "HOLDFAST_KUBECONFIG"

_REFERENCE = re.compile(r"\$(\$(?=\()|\([A-Za-z_][-A-Za-z0-9_.]*\))", re.ASCII)


class User(msgspec.Struct, frozen=True, gc=False):
    """As whom the work runs."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def word(self) -> str:
        """As the shim takes it: the first group is the main one."""
        others = [gid for gid in self.groups if gid != self.gid]
        return f"{self.uid}:" + ",".join(str(gid) for gid in (self.gid, *others))


class Surroundings(msgspec.Struct, frozen=True):
    arguments: tuple[str, ...]
    variables: tuple[str, ...]

    def text(self, paths: tuple[str, ...] = ()) -> bytes:
        """All strings and then these, each with the NUL that ends it."""
        strings = (*self.arguments, *self.variables, *paths)
        return b"".join(os.fsencode(it) + b"\x00" for it in strings)


def _invalid(field: str, value: str, rule: str) -> Invalid:
    return Invalid(f"{field}: {value}: {rule}", (FieldError(field, value, rule),))


def check_supported(of: Template) -> None:
    """Refuse what this agent cannot do, rather than start something else than was asked for."""
    if not of.command or not of.command[0]:
        raise _invalid("command", "", "must name a program")
    for entry in of.env:
        if not entry.name or "=" in entry.name or entry.name.startswith("HOLDFAST_"):
            raise _invalid("env.name", repr(entry.name), "must not be a variable the agent sets")


def user(name: str) -> User | None:
    """Who the template's user is on this machine; None is whoever the agent is."""
    if not name:
        return None
    try:
        found = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        raise _invalid("user", name, "is no user of this machine") from None
    if found.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise _invalid("user", name, "only an agent that runs as root can start work as another")
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return User(found.pw_uid, found.pw_gid, groups, found.pw_dir)


def _expand(text: str, known: Mapping[str, str]) -> str:
    """Replace $(NAME) by what is known; unknown names stay as they are.

    $$(NAME) stands for $(NAME) itself. Other double dollars are left to the shell, to which they
    mean its own pid.
    """
    pieces, end, size = [], 0, 0
    for found in _REFERENCE.finditer(text):
        inner = found[1]
        piece = "$" if inner == "$" else known.get(inner[1:-1], found[0])
        size += len(piece)
        if size > ARGUMENT_BYTES_MAX:
            # Checked on the way: a short text may name a long value thousands of times.
            raise _invalid("env", text[:40] + "…", f"grows beyond {ARGUMENT_BYTES_MAX} bytes")
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
    }
    if template.service_token is not None:
        file = f"{folder}/{template.service_token.file}"
        known |= {TOKEN_FILE: file, KUBECONFIG: file + KUBECONFIG_SUFFIX}
    known.update({port_variable(name): str(port) for name, port in ports.items()})
    known.update(given)
    for entry in template.env:
        # What a Secret says is taken as it is, whatever looks like a reference in it.
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
