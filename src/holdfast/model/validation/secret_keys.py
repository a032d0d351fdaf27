"""The keys inside a Secret, which templates refer to."""

from __future__ import annotations

import re

from holdfast.model.validation.findings import Place

_KEY = re.compile(r"[-A-Za-z0-9_.]{1,253}", re.ASCII)


def secret_key(at: Place, text: str) -> None:
    """A key may become the name of a file, so it is never a way to another folder."""
    if not _KEY.fullmatch(text) or text in (".", ".."):
        at.wrong(text, "must be letters, digits, '-', '_' and '.', at most 253 characters")
