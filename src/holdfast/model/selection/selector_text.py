"""Label selectors in query strings: `app=web,tier!=db,zone in (a,b),!canary`.

The syntax is that of Kubernetes, because kubectl sends it. List and watch requests use this; the
result is the same LabelSelector that objects carry, validated by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.model.encoding.problems import excerpt
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.selection.selectors import Expression, LabelSelector, SelectorOperator
from holdfast.model.validation.findings import FieldPath, Findings
from holdfast.model.validation.placement import expressions

# The server refuses longer request lines before this.
TEXT_MAX = 8192

# A word is anything that is not a sign; it is validated as a key or a value later.
_TOKEN = re.compile(r"\s*(?P<token>==|!=|[=!,()<>]|[^\s=!,()<>]+)", re.ASCII)
_BINARY = {"=": SelectorOperator.IN, "==": SelectorOperator.IN, "!=": SelectorOperator.NOT_IN}
_COMPARED = {">": SelectorOperator.GT, "<": SelectorOperator.LT}
_LISTED = {"in": SelectorOperator.IN, "notin": SelectorOperator.NOT_IN}
_SPACE = " \t\n\r\f\v"
_SIGNS = frozenset(("=", "==", "!=", "!", ",", "(", ")", "<", ">"))


def parse_label_selector(text: str, path: str = "labelSelector") -> LabelSelector:
    """Parses a selector. Raises Invalid with what is wrong.

    An empty text selects everything. Equality becomes `In` with one value, so `a=b,a=c` matches
    nothing.
    """
    if len(text) > TEXT_MAX:
        raise _wrong(path, text, f"must be at most {TEXT_MAX} characters long")
    found = tuple(_Reader(text, path).requirements())
    findings = Findings()
    expressions(FieldPath(findings)[path], found)
    errors = findings.errors()
    if errors:
        raise Invalid("; ".join(str(error) for error in errors), errors)
    return LabelSelector(match_expressions=found)


def label_selector_text(selector: LabelSelector) -> str:
    """A selector as text that `parse_label_selector` reads."""
    equal = [f"{key}={value}" for key, value in selector.match_labels.items()]
    return ",".join([*equal, *map(_expression_text, selector.match_expressions)])


def _expression_text(expression: Expression) -> str:
    key, values = expression.key, expression.values
    match expression.operator:
        case SelectorOperator.EXISTS:
            return key
        case SelectorOperator.DOES_NOT_EXIST:
            return f"!{key}"
        case SelectorOperator.IN:
            return f"{key}={values[0]}" if len(values) == 1 else f"{key} in ({','.join(values)})"
        case SelectorOperator.NOT_IN:
            return (
                f"{key}!={values[0]}" if len(values) == 1 else f"{key} notin ({','.join(values)})"
            )
        case SelectorOperator.GT:
            return f"{key}>{values[0]}"
        case SelectorOperator.LT:
            return f"{key}<{values[0]}"


def _wrong(path: str, text: str, rule: str) -> Invalid:
    error = FieldError(path=path, value=excerpt(text), rule=rule)
    return Invalid(str(error), (error,))


class _Reader:
    """Parses one text from left to right. Each token is read once."""

    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        # Without trailing white space, which the pattern would scan in quadratic time.
        self._tokens = _TOKEN.findall(text.rstrip(_SPACE))
        self._next = 0

    def requirements(self) -> Iterator[Expression]:
        if not self._tokens:
            return
        while True:
            yield self._requirement()
            if not self._peek():
                return
            self._expect(",")

    def _requirement(self) -> Expression:
        if self._peek() == "!":
            self._take()
            return Expression(self._word("a label"), SelectorOperator.DOES_NOT_EXIST)
        key = self._word("a label or '!'")
        sign = self._peek()
        if sign in ("", ","):
            return Expression(key, SelectorOperator.EXISTS)
        self._take()
        if sign in _BINARY:
            return Expression(key, _BINARY[sign], (self._value(),))
        if sign in _COMPARED:
            return Expression(key, _COMPARED[sign], (self._word("a number"),))
        if sign in _LISTED:
            return Expression(key, _LISTED[sign], self._values())
        raise self._unexpected(sign, "=, !=, in, notin, < or >")

    def _values(self) -> tuple[str, ...]:
        self._expect("(")
        values = [self._value()]
        while self._peek() == ",":
            self._take()
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _value(self) -> str:
        """A value, which is empty if a sign or the end follows."""
        return "" if self._peek() in _SIGNS or not self._peek() else self._take()

    def _word(self, wanted: str) -> str:
        token = self._peek()
        if not token or token in _SIGNS:
            raise self._unexpected(token, wanted)
        return self._take()

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._unexpected(self._peek(), f"'{sign}'")
        self._take()

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        self._next += 1
        return str(self._tokens[self._next - 1])

    def _unexpected(self, token: str, wanted: str) -> Invalid:
        after = f"after {excerpt(self._tokens[self._next - 1])}" if self._next else "at the start"
        found = excerpt(token) if token else "the end"
        return _wrong(self._path, self._text, f"must have {wanted} {after}; found {found}")
