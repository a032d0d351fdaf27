"""How long a server waits for a client: for a handshake, a request, its body, and for being read.

Each of these is a moment at which a client holds a connection, and with it memory, while it gives
nothing. `host/api/flow/connections.py` keeps the times; they are options of a server, for links
that are slower than those we know. None of them ends a watch, a log or a command, which last as
long as somebody wants them.
"""

from __future__ import annotations

import argparse

import msgspec

from holdfast.model.errors import FieldError, Invalid

# Below this a busy machine would cut off clients that do nothing wrong.
SECONDS_MIN = 0.1
SECONDS_MAX = 3_600.0


class ClientTimeouts(msgspec.Struct, frozen=True):
    """In seconds.

    tls_s: for a TLS handshake, from the connection on.
    header_s: for the head of a request, from its first byte on; of the first one, from the
        handshake on.
    body_s: for the body of a request, all of it.
    idle_s: between two requests of one connection.
    write_s: for a client to take what fills the server's buffer.
    """

    tls_s: float = 10.0
    header_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 90.0
    write_s: float = 60.0


# Options in seconds: the field, and what it is.
OPTIONS = {
    "tls-timeout": ("tls_s", "how long a client may take for its TLS handshake"),
    "header-timeout": ("header_s", "how long a client may take for the head of a request"),
    "body-timeout": ("body_s", "how long a client may take for the body of a request"),
    "idle-timeout": ("idle_s", "how long a connection may wait for its next request"),
    "write-timeout": ("write_s", "how long a client may take nothing of its answer"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a server's patience."""
    group = parser.add_argument_group("patience", "what clients may take their time for")
    for option, (field, meaning) in OPTIONS.items():
        given = getattr(ClientTimeouts(), field)
        group.add_argument(f"--{option}", metavar="SECONDS", help=f"{meaning} (usually {given:g})")


def patience_of(arguments: argparse.Namespace) -> ClientTimeouts:
    """What the command line says. Raises Invalid."""
    given: dict[str, float] = {}
    for option, (field, _) in OPTIONS.items():
        text = getattr(arguments, option.replace("-", "_"))
        if text is not None:
            given[field] = seconds(f"--{option}", text)
    return msgspec.structs.replace(ClientTimeouts(), **given)


def seconds(option: str, text: str) -> float:
    """A number of seconds as an option states it. Raises Invalid."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not SECONDS_MIN <= found <= SECONDS_MAX:
        rule = f"must be a number of seconds from {SECONDS_MIN:g} to {SECONDS_MAX:g}"
        error = FieldError(option, text[:40], rule)
        raise Invalid(str(error), (error,))
    return found
