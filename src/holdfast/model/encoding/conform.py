"""Converts a plain tree to a typed object, or reports every problem at once.

The checks are derived from the structs' types (`checks.py`), so a field is declared once.
`wire.decode` calls this for documents that are not self-proving, patches and server-side apply for
the trees they build. Unlike msgspec, which stops at the first error, this names all of them, prunes
or refuses unknown fields, treats null as absent wherever a field may be left out, accepts 3.0 for
3, as JSON does, and leaves out fields at their default.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.model.encoding.problems import (
    CODE_UNKNOWN_FIELD,
    PROBLEMS_MAX,
    UNKNOWN,
    Problems,
    invalid,
    malformed_error,
)
from holdfast.model.encoding.struct_checks import struct_check
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.meta import API_VERSION

AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)


class Decoded(msgspec.Struct, Generic[AnyStruct], frozen=True, gc=False):
    """A typed object, with the unknown fields that were dropped: as paths, and as warnings."""

    object: AnyStruct
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def conform(cls: type[AnyStruct], tree: Any, *, strict: bool) -> Decoded[AnyStruct]:
    """The tree as an object. Raises Invalid that names every problem.

    With `strict` an unknown field is a problem; otherwise it is dropped with a warning.
    """
    problems = Problems(hide_values=hides_values(cls))
    _check_kind(cls, tree, problems)
    if problems.errors:
        # Checked against the wrong kind everything would be wrong; this one error says more.
        raise invalid(problems.errors)
    clean = struct_check(cls)(tree, None, problems)
    if problems.errors:
        raise _refused(problems, strict)
    if problems.unknown and strict:
        raise _refused_unknown(problems)
    try:
        typed = msgspec.convert(clean, cls)
    except msgspec.ValidationError as error:
        # The checks are at least as strict as msgspec. If they ever differ, the client gets an
        # error.
        raise malformed_error(f"does not conform: {error}") from None
    return Decoded(typed, tuple(e.path for e in problems.unknown), _warnings(problems))


def normal(obj: AnyStruct) -> AnyStruct:
    """The object in its normal form: equal objects then have equal encodings.

    An object that code built or that states a default may equal another and still have a longer
    encoding, because the encoder compares by identity. Digests and stored specs need the normal
    form.
    """
    tree = msgspec.json.decode(msgspec.json.encode(obj))
    return conform(type(obj), tree, strict=True).object


def hides_values(cls: type[msgspec.Struct]) -> bool:
    """Whether errors about such a document hide values: a secret may be in a wrong field."""
    return cls.__struct_config__.tag == "Secret"


def unknown_fields(error: Invalid) -> tuple[str, ...]:
    """The paths of the unknown fields that a strict refusal names."""
    return tuple(e.path for e in error.errors if e.rule.startswith(UNKNOWN))


def _check_kind(cls: type[msgspec.Struct], tree: Any, problems: Problems) -> None:
    """Kind and apiVersion, where given, must be those of the struct.

    A server knows the kind from the path, so they may be left out, as in Kubernetes.
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
    # Kubernetes uses the same sentence, and tools depend on it.
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
