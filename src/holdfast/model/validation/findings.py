"""Collects validation errors with their field paths.

Rules never stop at the first error. Each rule gets the `FieldPath` of its value, descends with
`at["ports"][1]["name"]` as in the document, and reports with `wrong(value, rule)`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from holdfast.model.errors import FieldError

# A user fixes all errors at once, but a hostile document could cause thousands. One more finding
# then states how many are not listed.
ERRORS_MAX = 256
# Long enough to recognise a value, short enough for one line of a terminal.
SHOWN_MAX = 60


def short_text(value: object) -> str:
    """A value as short text that is safe to print: ASCII, quoted, without control characters."""
    match value:
        case None:
            return ""
        case str():
            cut = len(value) > SHOWN_MAX
            return json.dumps(value[:SHOWN_MAX])[:-1] + ('…"' if cut else '"')
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)[:SHOWN_MAX]
        case datetime():
            return value.isoformat()
        case list() | tuple() | dict():
            return f"{len(value)} items" if len(value) != 1 else "1 item"
        case _:
            # Parts have no short form; their path is enough.
            return ""


class Findings:
    """All errors of one object, in the order in which they were found."""

    __slots__ = ("_errors", "_left_out")

    def __init__(self) -> None:
        self._errors: list[FieldError] = []
        self._left_out = 0

    def add(self, at: FieldPath, value: object, rule: str) -> None:
        # For errors that are not listed, path and text are not computed.
        if len(self._errors) < ERRORS_MAX:
            self._errors.append(FieldError(path=at.path, value=short_text(value), rule=rule))
        else:
            self._left_out += 1

    def count(self) -> int:
        return len(self._errors) + self._left_out

    def errors(self) -> tuple[FieldError, ...]:
        """All findings; if there were too many, the last one states how many are left out."""
        if not self._left_out:
            return tuple(self._errors)
        rest = FieldError(path="", value=str(self._left_out), rule="further errors are not listed")
        return (*self._errors, rest)


class FieldPath:
    """The path of a field in a document. Its text is built only for an error."""

    __slots__ = ("_findings", "_parent", "_step")

    def __init__(
        self, findings: Findings, parent: FieldPath | None = None, step: str | int = ""
    ) -> None:
        self._findings = findings
        self._parent = parent
        self._step = step

    def __getitem__(self, step: str | int) -> FieldPath:
        """The field of this name, or the item of this number."""
        return FieldPath(self._findings, self, step)

    def entry(self, key: str) -> FieldPath:
        """The entry of a map under this key, which may be any text."""
        return FieldPath(self._findings, self, f"[{short_text(key)[1:-1]}]")

    @property
    def path(self) -> str:
        """The path as on the wire, such as spec.template.ports[1].name; empty for the whole."""
        if self._parent is None:
            return ""
        before = self._parent.path
        if isinstance(self._step, int):
            return f"{before}[{self._step}]"
        if not before or self._step.startswith("["):
            return before + self._step
        return f"{before}.{self._step}"

    @property
    def found(self) -> int:
        """The number of errors so far, in the whole document."""
        return self._findings.count()

    def wrong(self, value: object, rule: str) -> None:
        """Reports that a value breaks a rule. None is not shown: it is absent, or a secret."""
        self._findings.add(self, value, rule)

    def borrow(self, value: object, errors: Iterable[FieldError]) -> None:
        """Reports the errors of a parser for this value at this path."""
        for error in errors:
            self.wrong(value, error.rule)
