"""Warning headers, which kubectl prints and every other client may ignore."""

from __future__ import annotations

# More would not fit a terminal, nor the header limits of some proxies.
WARNINGS_MAX = 16
TEXT_MAX = 256


def warned(warnings: tuple[str, ...]) -> dict[str, str] | None:
    """The headers for these warnings; several stand in one header, divided by commas."""
    if not warnings:
        return None
    return {"Warning": ", ".join(map(_warning, warnings[:WARNINGS_MAX]))}


def _warning(text: str) -> str:
    plain = "".join(c if c.isprintable() and c.isascii() else "?" for c in text[:TEXT_MAX])
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'
