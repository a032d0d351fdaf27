"""Where validation writes down what is wrong: a place in a document, and all that was found there.

Rules never stop at the first error. Each gets the Place of what it judges, steps down with
`at["ports"][1]["name"]` as the document is written, and says `wrong(value, rule)`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from holdfast.model.errors import FieldError

# A user mends errors in one go, but a hostile document could make thousands. One more finding then
# says that there are others.
ERRORS_MAX = 256
# Long enough to recognise a value by, short enough for one line of a terminal.
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
            # Parts have no short form; their path says enough.
            return ""


class Findings:
    """Everything that is wrong with one object, in the order in which it was found."""

    __slots__ = ("_errors", "_left_out")

    def __init__(self) -> None:
        self._errors: list[FieldError] = []
        self._left_out = 0

    def add(self, at: FieldPath, value: object, rule: str) -> None:
        # Path and text are not even made for what will not be listed.
        if len(self._errors) < ERRORS_MAX:
            self._errors.append(FieldError(path=at.path, value=short_text(value), rule=rule))
        else:
            self._left_out += 1

    def count(self) -> int:
        return len(self._errors) + self._left_out

    def errors(self) -> tuple[FieldError, ...]:
        """All findings; when there were too many, the last one says how many are left out."""
        if not self._left_out:
            return tuple(self._errors)
        rest = FieldError(path="", value=str(self._left_out), rule="further errors are not listed")
        return (*self._errors, rest)


class FieldPath:
    """One place of a document. The text of its path is made only when something is wrong there."""

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
        """How much is wrong so far, in the whole document."""
        return self._findings.count()

    def wrong(self, value: object, rule: str) -> None:
        """This value breaks this rule. A value of None is not shown: it is absent, or a secret."""
        self._findings.add(self, value, rule)

    def borrow(self, value: object, errors: Iterable[FieldError]) -> None:
        """Report what a parser found in this value as found in this place."""
        for error in errors:
            self.wrong(value, error.rule)
