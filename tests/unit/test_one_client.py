"""One place speaks HTTP to servers of a plane; a second one would not choose, bound or settle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "src" / "holdfast"
# What opens a connection, by the name that is called.
OPENS = frozenset({"ClientSession", "TCPConnector", "HTTPSConnection", "urlopen", "ws_connect"})
MAY = {
    "host/client/http_session.py": "the one place",
    "host/oidc/fetching.py": "asks identity providers, which are no servers of ours",
    "host/audit/export.py": "sends to the archive of an operator",
}


def opened(text: str) -> set[str]:
    """The names of `OPENS` that a module calls."""
    called = (it.func for it in ast.walk(ast.parse(text)) if isinstance(it, ast.Call))
    names = (it.attr if isinstance(it, ast.Attribute) else getattr(it, "id", "") for it in called)
    return OPENS.intersection(names)


def test_only_the_client_opens_connections_to_servers() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if opened(path.read_text(encoding="utf-8"))
    }
    assert found == set(MAY)


@pytest.mark.parametrize(
    "text", ["aiohttp.ClientSession()", "async def f(s):\n    await s.ws_connect('x')"]
)
def test_a_second_place_is_found(text: str) -> None:
    assert opened(text)
