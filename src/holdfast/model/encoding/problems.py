"""Collects all problems of a document, with their paths, in text that is safe to print.

`json_guard.py` and `checks.py` report here; all reports become one Invalid. A client's values may
reach a terminal or a log, so they are truncated, control characters are escaped, and the values of
Secrets are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.model.errors import FieldError, Invalid

# Enough to fix a file at once; more would scroll the first ones away.
PROBLEMS_MAX = 50
EXCERPT_MAX = 60
SEGMENT_MAX = 63
TOLD_MAX = 200

HIDDEN = "(hidden)"
UNKNOWN = "unknown field"

# The codes differ because the HTTP status does: 413, 400, 400 and 422.
CODE_TOO_LARGE = "TooLarge"
CODE_MALFORMED = "Malformed"
CODE_UNKNOWN_FIELD = "UnknownField"
CODE_INVALID = "Invalid"

# A path in a document: the path of the container, and the step into it: a field, an index, or a
# one-tuple with the key of a map. None is the document. It becomes text only for a problem, which
# keeps valid documents cheap.
DocumentPath = tuple["DocumentPath", str | int | tuple[str]] | None

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def escape(text: str, length_max: int) -> str:
    """Text truncated to a length and escaped to printable ASCII.

    So it cannot control a terminal, and characters that look alike are distinguishable.
    """
    cut = text if len(text) <= length_max else text[: length_max - 3] + "..."
    return ascii(cut)[1:-1]


def describe_error(error: Exception) -> str:
    """The escaped message of a library's error, which may contain any part of the document."""
    return escape(str(error), TOLD_MAX)


def excerpt(value: Any) -> str:
    """A value as an error shows it. The contents of objects and lists are not shown."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{escape(value, EXCERPT_MAX)}"'
        case int() | float():
            # Formatting a very long integer takes quadratic time, and Python refuses to.
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
    """A path as text: `spec.template.ports[2].port`, `metadata.labels[app]`."""
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
    """The problems found so far. Beyond the bound they are only counted."""

    def __init__(self, *, hide_values: bool = False) -> None:
        self.errors: list[FieldError] = []
        self.unknown: list[FieldError] = []
        self.uncounted = 0
        self.unknown_uncounted = 0
        self._hide_values = hide_values

    def add(self, place: DocumentPath, value: Any, rule: str) -> None:
        """Adds a value that breaks a rule."""
        if len(self.errors) >= PROBLEMS_MAX:
            self.uncounted += 1
            return
        shown = HIDDEN if self._hide_values else excerpt(value)
        self.errors.append(FieldError(path=path_text(place), value=shown, rule=rule))

    def add_rule(self, place: DocumentPath, rule: str) -> None:
        """Adds a broken rule without a value to show, such as a missing field."""
        if len(self.errors) >= PROBLEMS_MAX:
            self.uncounted += 1
            return
        self.errors.append(FieldError(path=path_text(place), value="", rule=rule))

    def add_unknown(self, place: DocumentPath, suggest: Callable[[], str]) -> None:
        """Adds an unknown field. The caller decides whether that is an error.

        A suggestion is expensive, so it is only computed for the fields that are shown.
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
    """One Invalid that carries all these errors, with a message that lists them."""
    found = tuple(errors)
    texts = [str(error) for error in found]
    if uncounted:
        texts.append(f"and {uncounted} more")
    return Invalid(about + "; ".join(texts), found, code=code)


def malformed_error(rule: str, *, code: str = CODE_MALFORMED) -> Invalid:
    """The error for a document that cannot be read as a whole."""
    return Invalid(f"the document {rule}", (FieldError(path="", value="", rule=rule),), code=code)
