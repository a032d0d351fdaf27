"""Validates texts for users, and texts that become paths, variables and arguments on a node.

Control characters and bidirectional overrides can make a text look different from its content, in a
terminal or a browser, so no text for users may contain them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from holdfast.model.validation.findings import FieldPath

# Reasons and evidence are for people; an object keeps its last transitions for good, so none of
# them may be long.
SENTENCE_MAX = 1024
OPERATION_ID_MAX = 253
PATH_BYTES_MAX = 1024
SEGMENT_BYTES_MAX = 255
# The kernel refuses longer single arguments and variables (MAX_ARG_STRLEN).
ARGUMENT_BYTES_MAX = 128 * 1024 - 1
ARGUMENTS_MAX = 1024

# Control characters, line and paragraph separators, bidirectional embeddings, overrides and
# isolates, and the invisible tag characters. Plain direction marks are part of real scripts.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
_UNPRINTABLE_IN_LINES = re.compile(
    _UNPRINTABLE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b\x0c\x0e-\x1f")
)

_WORD = re.compile(r"[A-Z][A-Za-z0-9]*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][-A-Za-z0-9_.]*", re.ASCII)
_MODE = re.compile(r"0?[0-7]{3}", re.ASCII)
_USER = re.compile(r"[a-z_][-a-z0-9_]{0,31}|[0-9]{1,9}", re.ASCII)
_ZONE = re.compile(r"[A-Za-z][-A-Za-z0-9_+]*(?:/[A-Za-z0-9][-A-Za-z0-9_+]*){0,2}", re.ASCII)
_HOST_PORT = re.compile(
    r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][-A-Za-z0-9.]*):[1-9][0-9]{0,4}", re.ASCII
)
_SEEN = re.compile(r"[\x21-\x7e]+", re.ASCII)


def unprintable(value: str, *, lines: bool = False) -> str:
    """The first unprintable character, such as U+202E; empty if there is none."""
    found = (_UNPRINTABLE_IN_LINES if lines else _UNPRINTABLE).search(value)
    return f"U+{ord(found[0]):04X}" if found is not None else ""


def sentence(
    at: FieldPath,
    value: str,
    *,
    needed: bool = False,
    lines: bool = False,
    limit: int = SENTENCE_MAX,
) -> None:
    """Checks text for users."""
    if needed and not value.strip():
        at.wrong(value, "must not be blank")
    if len(value) > limit:
        at.wrong(value, f"must be at most {limit} characters long")
    found = unprintable(value, lines=lines)
    if found:
        at.wrong(value, f"must not have the character {found}")


def word(at: FieldPath, value: str) -> None:
    """Checks an identifier for programs, such as a condition's type or an event's reason."""
    if len(value) > 128 or not _WORD.fullmatch(value):
        at.wrong(value, "must be one word such as BackoffLimit, at most 128 letters and digits")


def is_token(value: str, limit: int = 253) -> bool:
    """Whether this is a text without blanks, for comparison and display."""
    return len(value) <= limit and _SEEN.fullmatch(value) is not None


def token(at: FieldPath, value: str, limit: int = 253) -> None:
    """Checks a text without blanks, such as a user name or a scope."""
    if not value:
        at.wrong(None, "must be given")
    elif not is_token(value, limit):
        at.wrong(value, f"must be at most {limit} characters of plain ASCII without blanks")


def variable(at: FieldPath, value: str) -> None:
    """Checks the name of an environment variable."""
    if len(value) > 253 or not _VARIABLE.fullmatch(value):
        at.wrong(value, "must be letters, digits, '_', '-' and '.', not starting with a digit")


def relative_path(at: FieldPath, value: str) -> None:
    """Checks a normalized path below the replica's directory."""
    if not value:
        at.wrong(None, "must be given")
    elif len(value.encode()) > PATH_BYTES_MAX:
        at.wrong(value, f"must be at most {PATH_BYTES_MAX} bytes long")
    elif value.startswith("/"):
        at.wrong(value, "must be relative to the replica's directory")
    elif unprintable(value) or "\\" in value:
        at.wrong(value, "must not have control characters or backslashes")
    elif any(part in ("", ".", "..") for part in value.split("/")):
        at.wrong(value, "must not have empty, '.' or '..' parts")
    elif any(len(part.encode()) > SEGMENT_BYTES_MAX for part in value.split("/")):
        at.wrong(value, f"must have parts of at most {SEGMENT_BYTES_MAX} bytes")


def mode(at: FieldPath, value: str) -> None:
    """Checks file permissions. Set-uid, set-gid and sticky bits are not allowed."""
    if not _MODE.fullmatch(value):
        at.wrong(value, 'must be an octal text from "0000" to "0777"')


def argument(at: FieldPath, value: str) -> None:
    """Checks text that the kernel passes to a process: no NUL, and not too long."""
    if "\x00" in value:
        at.wrong(value, "must not have the character U+0000")
    if len(value.encode()) > ARGUMENT_BYTES_MAX:
        at.wrong(value, f"must be at most {ARGUMENT_BYTES_MAX} bytes long")


def command(at: FieldPath, arguments: Sequence[str], *, needed: bool = True) -> None:
    """Checks a program and its arguments."""
    if not arguments:
        if needed:
            at.wrong(None, "must be given")
        return
    if len(arguments) > ARGUMENTS_MAX:
        at.wrong(arguments, f"must have at most {ARGUMENTS_MAX} items")
        return
    if not arguments[0].strip():
        at[0].wrong(arguments[0], "must name a program")
    for index, text in enumerate(arguments):
        argument(at[index], text)


def user(at: FieldPath, value: str) -> None:
    """Checks a user of the node, by name or number."""
    if not _USER.fullmatch(value):
        at.wrong(value, "must be a user's name or number as in /etc/passwd")


def time_zone(at: FieldPath, value: str) -> None:
    """Checks the form of an IANA name. Only code with zone data knows whether the zone exists."""
    if len(value) > 64 or not _ZONE.fullmatch(value) or value.lower() in ("local", "localtime"):
        at.wrong(value, "must be the IANA name of a time zone, such as Europe/Berlin or UTC")


def host_port(at: FieldPath, value: str) -> None:
    """Checks an address: host:port."""
    if (
        len(value) > 300
        or not _HOST_PORT.fullmatch(value)
        or int(value.rpartition(":")[2]) > 65_535
    ):
        at.wrong(value, "must be an address such as 10.0.0.7:8080 or [fd00::7]:8080")


def url(at: FieldPath, value: str) -> None:
    """Checks the URL of another plane. Only https protects its tokens."""
    try:
        parts = urlsplit(value) if _SEEN.fullmatch(value) and len(value) <= 2048 else None
        good = parts is not None and parts.scheme == "https" and bool(parts.hostname)
        # An out-of-range port raises only on access; user:password@ is a secret.
        good = good and parts is not None and parts.port != 0 and parts.username is None
    except ValueError:
        good = False
    if not good:
        at.wrong(value, "must be a URL such as https://eu-west.example.com:8443")
