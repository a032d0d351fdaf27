"""How long a server waits for a client: for a handshake, a request, its body, and for its reads.

At each of these points a client holds a connection, and with it memory, without progress.
`host/api/flow/connections.py` enforces the timeouts. They are options of a server for slow links.
None of them ends a watch, a log or a command, which last as long as their client wants.
"""

from __future__ import annotations

import argparse

import msgspec

from holdfast.model.errors import FieldError, Invalid

# Below this a busy machine would disconnect well-behaved clients.
SECONDS_MIN = 0.1
SECONDS_MAX = 3_600.0


class ClientTimeouts(msgspec.Struct, frozen=True):
    """Timeouts in seconds.

    tls_s: for a TLS handshake, from the connection on.
    header_s: for the header of a request, from its first byte on; of the first request, from the
        handshake on.
    body_s: for the whole body of a request.
    idle_s: between two requests of one connection.
    write_s: for a client to read when the server's send buffer is full.
    """

    tls_s: float = 10.0
    header_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 90.0
    write_s: float = 60.0


# Options in seconds: the field and its meaning.
OPTIONS = {
    "tls-timeout": ("tls_s", "how long a TLS handshake may take"),
    "header-timeout": ("header_s", "how long a client may take for the header of a request"),
    "body-timeout": ("body_s", "how long a client may take for the body of a request"),
    "idle-timeout": ("idle_s", "how long a connection may wait for its next request"),
    "write-timeout": ("write_s", "how long a client may read nothing of its answer"),
}


def patience_of(arguments: argparse.Namespace) -> ClientTimeouts:
    """Return the timeouts on the command line. Raises Invalid."""
    given: dict[str, float] = {}
    for option, (field, _) in OPTIONS.items():
        text = getattr(arguments, option.replace("-", "_"))
        if text is not None:
            given[field] = seconds(f"--{option}", text)
    return msgspec.structs.replace(ClientTimeouts(), **given)


def seconds(option: str, text: str) -> float:
    """Return a number of seconds given as an option. Raises Invalid."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not SECONDS_MIN <= found <= SECONDS_MAX:
        rule = f"must be a number of seconds from {SECONDS_MIN:g} to {SECONDS_MAX:g}"
        error = FieldError(option, text[:40], rule)
        raise Invalid(str(error), (error,))
    return found
