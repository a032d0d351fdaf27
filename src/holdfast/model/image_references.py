"""Image names: a reference to a registry, or a directory of the node.

Validation checks every template, and the agent checks again before it calls podman: podman takes
texts such as `docker-archive:/root/x.tar` or `oci:/srv/x` for files of the node, which it would
open as root. So a reference has the grammar of the OCI distribution and nothing else:

    [HOST[:PORT]/]PATH[:TAG][@sha256:DIGEST]

Without a host it refers to docker.io, or to an image that the operator has loaded on the node under
that name. The agent's operator chooses the directories that a container may use (`--images`).
"""

from __future__ import annotations

import re

REFERENCE_MAX = 512
RULE = (
    "must be a reference such as registry.example.com/team/app:1.2 or app@sha256:... in lower "
    "case, or the path of a directory such as /srv/images/app"
)
PATH_RULE = "must be an absolute path without '..', commas, colons, quotes and backslashes"
# The transports that podman accepts before a colon; all but one refer to files of the node.
TRANSPORTS = frozenset(
    {
        "atomic",
        "containers-storage",
        "dir",
        "docker",
        "docker-archive",
        "docker-daemon",
        "oci",
        "oci-archive",
        "ostree",
        "sif",
        "tarball",
    }
)

_LABEL = r"(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-]*[A-Za-z0-9])"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]{{2,39}}\])(?::[0-9]{{1,5}})?"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
# podman takes such a text for the identifier of an image, whichever tenant pulled it.
_IDENTIFIER = re.compile(r"sha256:.*|[0-9a-f]{64}", re.ASCII)
# Separators of mount options, and characters that no image path needs.
_UNSAFE = re.compile(r"[,:\\\"\x00-\x20\x7f]")


def image_fault(image: str) -> str:
    """The rule that an image name breaks; empty if it is valid."""
    if image.startswith("/"):
        is_safe = len(image) <= REFERENCE_MAX and image.isascii() and not _UNSAFE.search(image)
        return "" if is_safe and ".." not in image.split("/") else PATH_RULE
    return "" if _parsed(image) is not None else RULE


def registry_name(reference: str) -> str:
    """The name to pass to podman: with a digest the tag is dropped, as podman refuses both.

    Raises ValueError if the text is not a reference.
    """
    found = _parsed(reference)
    if found is None:
        raise ValueError(f"{reference[:80]!r} is not an image reference")
    name, tag, digest = found["name"], found["tag"], found["digest"]
    return f"{name}@{digest}" if digest else f"{name}:{tag}" if tag else str(name)


def _parsed(reference: str) -> re.Match[str] | None:
    if len(reference) > REFERENCE_MAX or _IDENTIFIER.fullmatch(reference):
        return None
    first, colon, _ = reference.partition(":")
    return None if colon and first in TRANSPORTS else _REFERENCE.fullmatch(reference)
