"""Holding a plain tree against the structs: every problem at once, then the typed object.

The checks are derived from the structs' own types (`checks.py`), so that a field is declared once.
`wire.decode` comes here with documents that do not prove themselves, patches and server-side apply
with the trees they made. Unlike msgspec, which stops at the first mistake, this names all of them,
prunes or refuses unknown fields, takes null as "not given" wherever a field may be left out, takes
3.0 where 3 is meant, as JSON does, and leaves out what equals its default.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.model.encoding.checks import struct_check
from holdfast.model.encoding.problems import (
    CODE_UNKNOWN_FIELD,
    PROBLEMS_MAX,
    UNKNOWN,
    Problems,
    invalid,
    malformed,
)
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.meta import API_VERSION

AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)


class Decoded(msgspec.Struct, Generic[AnyStruct], frozen=True, gc=False):
    """A typed object, with the unknown fields that were left out: as paths, and as warnings."""

    object: AnyStruct
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def conform(cls: type[AnyStruct], tree: Any, *, strict: bool) -> Decoded[AnyStruct]:
    """The tree as an object. Raises Invalid that names every problem.

    Under `strict` an unknown field is a problem; otherwise it is left out and a warning says so.
    """
    problems = Problems(hide_values=hides_values(cls))
    _check_kind(cls, tree, problems)
    if problems.errors:
        # Held against the wrong kind everything would be wrong; this one sentence says more.
        raise invalid(problems.errors)
    clean = struct_check(cls)(tree, None, problems)
    if problems.errors:
        raise _refused(problems, strict)
    if problems.unknown and strict:
        raise _refused_unknown(problems)
    try:
        typed = msgspec.convert(clean, cls)
    except msgspec.ValidationError as error:
        # The checks are at least as strict as msgspec. Should they ever differ, the client is told.
        raise malformed(f"does not conform: {error}") from None
    return Decoded(typed, tuple(e.path for e in problems.unknown), _warnings(problems))


def normal(obj: AnyStruct) -> AnyStruct:
    """The same object in its one normal form: equal objects then have equal encodings.

    An object that code built or that spells out a default may be equal to another and yet take more
    bytes, since the encoder compares by identity. Digests and stored specs need the normal form.
    """
    tree = msgspec.json.decode(msgspec.json.encode(obj))
    return conform(type(obj), tree, strict=True).object


def hides_values(cls: type[msgspec.Struct]) -> bool:
    """Whether errors about such a document show no values: a secret may stand in a wrong place."""
    return cls.__struct_config__.tag == "Secret"


def unknown_fields(error: Invalid) -> tuple[str, ...]:
    """The paths of the unknown fields that a strict refusal names."""
    return tuple(e.path for e in error.errors if e.rule.startswith(UNKNOWN))


def _check_kind(cls: type[msgspec.Struct], tree: Any, problems: Problems) -> None:
    """Kind and apiVersion, where given, must be those of the struct.

    A server knows from the path what is meant, so that leaving them out is no mistake; nor is it in
    Kubernetes.
    """
    if isinstance(tree, dict):
        for key, wanted in _identity(cls):
            given = tree.get(key)
            if given is not None and given != wanted:
                problems.add((None, key), given, f"must be {wanted}")


@cache
def _identity(cls: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    config = cls.__struct_config__
    if config.tag is None or config.tag_field is None:
        return ()
    return (config.tag_field, str(config.tag)), ("apiVersion", API_VERSION)


def _refused(problems: Problems, strict: bool) -> Invalid:
    found, uncounted = problems.errors, problems.uncounted
    if strict:
        found, uncounted = [*found, *problems.unknown], uncounted + problems.unknown_uncounted
    return invalid(found[:PROBLEMS_MAX], uncounted + len(found[PROBLEMS_MAX:]))


def _refused_unknown(problems: Problems) -> Invalid:
    # Users of Kubernetes and their tools know this sentence.
    message = "strict decoding error: " + ", ".join(_sentences(problems, with_suggestions=True))
    return Invalid(message, tuple(problems.unknown), code=CODE_UNKNOWN_FIELD)


def _warnings(problems: Problems) -> tuple[str, ...]:
    return tuple(_sentences(problems, with_suggestions=False)) if problems.unknown else ()


def is_unknown_field(warning: str) -> bool:
    """Whether a warning of a write is one of those above, which a client may ask to leave out."""
    return warning.startswith(f'{UNKNOWN} "') or warning.endswith(f" more {UNKNOWN}s")


def _sentences(problems: Problems, *, with_suggestions: bool) -> list[str]:
    texts = [_sentence(error, with_suggestions) for error in problems.unknown]
    if problems.unknown_uncounted:
        texts.append(f"and {problems.unknown_uncounted} more {UNKNOWN}s")
    return texts


def _sentence(error: FieldError, with_suggestion: bool) -> str:
    suggestion = error.rule.removeprefix(UNKNOWN).removeprefix("; ")
    text = f'{UNKNOWN} "{error.path}"'
    return f"{text} ({suggestion})" if suggestion and with_suggestion else text
