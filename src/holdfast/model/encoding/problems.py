"""Collecting what is wrong with a document: all of it, by its place, in text that is safe to print.

`guard.py` and `checks.py` report here; what they report becomes one Invalid. Whatever a client sent
may end up in a terminal or a log, so values are cut short and control characters escaped, and the
values of Secrets are not shown at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.model.errors import FieldError, Invalid

# Enough to mend a file in one go; more would only scroll the first ones away.
PROBLEMS_MAX = 50
EXCERPT_MAX = 60
SEGMENT_MAX = 63
TOLD_MAX = 200

HIDDEN = "(hidden)"
UNKNOWN = "unknown field"

# What the caller answers differs, so the code does: 413, 400, 400 and 422 over HTTP.
CODE_TOO_LARGE = "TooLarge"
CODE_MALFORMED = "Malformed"
CODE_UNKNOWN_FIELD = "UnknownField"
CODE_INVALID = "Invalid"

# A place in a document: that of its container, and the step into it: a field, an index, or in a
# tuple of its own the key of a map. None is the document. It is turned into text only when
# something is wrong there, which keeps the good case cheap.
DocumentPath = tuple["DocumentPath", str | int | tuple[str]] | None

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def escape(text: str, length_max: int) -> str:
    """Text cut to a length and written in printable ASCII.

    So a terminal does not act on it, and a letter that only looks like another is seen as what it
    is.
    """
    cut = text if len(text) <= length_max else text[: length_max - 3] + "..."
    return ascii(cut)[1:-1]


def describe_error(error: Exception) -> str:
    """What a library says of a document, in words that may hold any part of it."""
    return escape(str(error), TOLD_MAX)


def excerpt(value: Any) -> str:
    """A value as an error shows it. Objects and lists are only named: they may be long."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{escape(value, EXCERPT_MAX)}"'
        case int() | float():
            # Spelling out a very long integer takes quadratic time, and Python refuses to.
            if isinstance(value, int) and value.bit_length() > 8 * EXCERPT_MAX:
                return "(a very long number)"
            return escape(repr(value), EXCERPT_MAX)
        case dict():
            return "(an object)"
        case list() | tuple():
            return "(a list)"
        case _:
            return escape(str(value), EXCERPT_MAX)


def path_text(place: DocumentPath) -> str:
    """A place as people write it: `spec.template.ports[2].port`, `metadata.labels[app]`."""
    segments: list[str] = []
    while place is not None:
        place, step = place
        if isinstance(step, int):
            segments.append(f"[{step}]")
            continue
        text = step if isinstance(step, str) else step[0]
        shown = escape(text, SEGMENT_MAX)
        plain = isinstance(step, str) and _PLAIN_KEY.fullmatch(text)
        segments.append(f".{shown}" if plain else f"[{shown}]")
    return "".join(reversed(segments)).removeprefix(".")


class Problems:
    """What was found so far. Past the bound problems are counted but no longer described."""

    def __init__(self, *, hide_values: bool = False) -> None:
        self.errors: list[FieldError] = []
        self.unknown: list[FieldError] = []
        self.uncounted = 0
        self.unknown_uncounted = 0
        self._hide_values = hide_values

    def add(self, place: DocumentPath, value: Any, rule: str) -> None:
        """A value breaks a rule."""
        if len(self.errors) >= PROBLEMS_MAX:
            self.uncounted += 1
            return
        shown = HIDDEN if self._hide_values else excerpt(value)
        self.errors.append(FieldError(path=path_text(place), value=shown, rule=rule))

    def add_rule(self, place: DocumentPath, rule: str) -> None:
        """A rule is broken that has no value to show, such as a field that is missing."""
        if len(self.errors) >= PROBLEMS_MAX:
            self.uncounted += 1
            return
        self.errors.append(FieldError(path=path_text(place), value="", rule=rule))

    def add_unknown(self, place: DocumentPath, suggest: Callable[[], str]) -> None:
        """A field that nobody declared. Whether that is an error is up to the caller.

        A suggestion is dear, so it is only sought for those that are shown.
        """
        if len(self.unknown) >= PROBLEMS_MAX:
            self.unknown_uncounted += 1
            return
        suggestion = suggest()
        rule = f"{UNKNOWN}; did you mean {suggestion}?" if suggestion else UNKNOWN
        self.unknown.append(FieldError(path=path_text(place), value="", rule=rule))


def invalid(
    errors: Iterable[FieldError], uncounted: int = 0, *, code: str = CODE_INVALID, about: str = ""
) -> Invalid:
    """One error that carries all of these, with a message that lists them."""
    found = tuple(errors)
    texts = [str(error) for error in found]
    if uncounted:
        texts.append(f"and {uncounted} more")
    return Invalid(about + "; ".join(texts), found, code=code)


def malformed(rule: str, *, code: str = CODE_MALFORMED) -> Invalid:
    """The document as a whole cannot be read."""
    return Invalid(f"the document {rule}", (FieldError(path="", value="", rule=rule),), code=code)
