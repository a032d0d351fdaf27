"""What a struct and its fields mean, read from its docstring.

The convention is that of `meta.py`: first a sentence about the whole, then for each field a line
`field: sentence`, which may go on over further lines. The schema carries these sentences to
`kubectl explain`, so they are written for users.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache

import msgspec

_FIELD_LINE = re.compile(r"(?P<field>[a-z_][a-z0-9_]*): (?P<sentence>\S.*)")


def about(cls: type[msgspec.Struct]) -> str:
    """What the struct is: its docstring up to the first blank line, in one line."""
    return " ".join(_docstring(cls).partition("\n\n")[0].split())


@cache
def about_fields(cls: type[msgspec.Struct]) -> dict[str, str]:
    """What each field is, by its name in Python. Fields of a parent are explained there."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if isinstance(owner, type) and issubclass(owner, msgspec.Struct):
            found |= _own_fields(owner)
    return {name: found[name] for name in cls.__struct_fields__ if name in found}


def _own_fields(cls: type[msgspec.Struct]) -> dict[str, str]:
    found: dict[str, str] = {}
    current = ""
    for line in _docstring(cls).splitlines()[1:]:
        match = _FIELD_LINE.fullmatch(line)
        if match is not None and match["field"] in cls.__struct_fields__:
            current = match["field"]
            found[current] = match["sentence"].strip()
        elif not line.strip():
            current = ""
        elif current:
            found[current] += " " + line.strip()
    return found


def _docstring(cls: type[msgspec.Struct]) -> str:
    # Python gives a class without a docstring none of its parents'; that is what is wanted here.
    first, _, rest = (cls.__doc__ or "").partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}"
