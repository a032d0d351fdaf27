"""The WebSocket on which clients of Kubernetes run commands: channels, and a status at the end.

`api.commands` uses it. `v4.channel.k8s.io` and `v5.channel.k8s.io` differ in one thing: a
client of the fifth can say that there is no more input. How a command ended is a Status on the
channel for errors, in the words that kubectl turns into its own exit code.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.host.api.call import bad
from holdfast.host.summons import CLOSE, RESIZE, STATUS, STDIN, Closed
from holdfast.model.errors import Forbidden
from holdfast.model.problems import excerpt
from holdfast.model.refusal import Reason

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
UPGRADE = "websocket"
COMMAND_WORDS_MAX = 1_024


def demand_websocket(headers: Any) -> None:
    """Refuse, in a sentence, clients that cannot speak as we do."""
    if headers.get("Upgrade", "").lower() != UPGRADE:
        bad(
            "commands are run over a WebSocket; kubectl does so from 1.30 on, earlier ones speak "
            "SPDY, which this server does not: use a newer kubectl, or `holdfast exec`"
        )
    offered = [it.strip() for it in headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if not any(it in PROTOCOLS for it in offered):
        bad(f"Sec-WebSocket-Protocol: must offer one of {', '.join(PROTOCOLS)}")
    _demand_own_origin(headers)


def _demand_own_origin(headers: Any) -> None:
    """Refuse a WebSocket that a page of another site opens in somebody's browser.

    A browser shows its client certificate to whatever page asks, and only says which page that is.
    Clients that are no browser say nothing. Raises Forbidden.
    """
    origin = headers.get("Origin", "")
    if not origin:
        return
    host = headers.get("Host", "").lower()
    if origin.lower() != f"https://{host}":
        raise Forbidden(
            "Origin: commands are run only from pages of this server itself, not from "
            f"{excerpt(origin)}",
            code=Reason.NOT_ALLOWED,
        )


def is_for_command(frame: bytes, *, has_terminal: bool) -> bool:
    """Whether what a client sent may go on to the command."""
    if not frame:
        return False
    if frame[0] == CLOSE:
        return frame[1:] == bytes((STDIN,))
    return frame[0] == STDIN or (frame[0] == RESIZE and has_terminal)


def ended(of: Closed) -> bytes:
    """The last frame: how it ended."""
    return bytes((STATUS,)) + msgspec.json.encode(_status(of))


def _status(of: Closed) -> dict[str, Any]:
    if of.code == 0:
        return {"metadata": {}, "status": "Success"}
    if of.code is None:
        return failed(of.message)
    message = of.message or f"command terminated with non-zero exit code: {of.code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(of.code)}]},
    }


def failed(message: str) -> dict[str, Any]:
    """The Status of a command of which nobody knows how it ended, or that never began."""
    return {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "InternalError",
        "code": 500,
    }
