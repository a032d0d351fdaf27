"""Validates names, labels and annotations, which keys, selectors and paths consist of.

The forms are those of Kubernetes, because kubectl and its users rely on them: RFC 1123 labels for
names, qualified names for label keys.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.text import unprintable

NAME_MAX = 63
DOTTED_MAX = 253
LABELS_MAX = 64
ANNOTATIONS_BYTES_MAX = 256 * 1024

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?", re.ASCII)
_QUALIFIED = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)

NAME_RULE = "must be lower-case letters, digits and dashes, with a letter or digit at both ends"
KEY_RULE = (
    "must be letters, digits, '-', '_' and '.', with a letter or digit at both ends, "
    f"at most {NAME_MAX} characters, optionally after a DNS name and a slash"
)
VALUE_RULE = (
    "must be empty or letters, digits, '-', '_' and '.', with a letter or digit at both ends, "
    f"at most {NAME_MAX} characters"
)


def is_name(text: str) -> bool:
    """Whether this is a name: a DNS label."""
    return len(text) <= NAME_MAX and _NAME.fullmatch(text) is not None


def is_dotted(text: str) -> bool:
    """Whether this is a name with dots: DNS labels of at most 63 characters, 253 in all."""
    return len(text) <= DOTTED_MAX and all(is_name(part) for part in text.split("."))


def is_key(text: str) -> bool:
    """Whether this is the key of a label, such as app or example.com/tier."""
    prefix, slash, name = text.rpartition("/")
    if slash and not is_dotted(prefix):
        return False
    return len(name) <= NAME_MAX and _QUALIFIED.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether this is the value of a label."""
    return not text or (len(text) <= NAME_MAX and _QUALIFIED.fullmatch(text) is not None)


def name(at: FieldPath, text: str, limit: int = NAME_MAX) -> None:
    """Checks a required name."""
    if not text:
        at.wrong(None, "must be given")
    elif len(text) > limit:
        at.wrong(text, f"must be at most {limit} characters long")
    elif not is_name(text):
        at.wrong(text, NAME_RULE)


def optional_name(at: FieldPath, text: str) -> None:
    """Checks an optional name."""
    if text:
        name(at, text)


def dotted_name(at: FieldPath, text: str) -> None:
    """Checks a name that may have dots, such as those of nodes and events."""
    if not text:
        at.wrong(None, "must be given")
    elif not is_dotted(text):
        rule = f"{NAME_RULE} of each part between dots"
        at.wrong(text, f"{rule}; each part at most {NAME_MAX} characters, {DOTTED_MAX} in all")


def at_most(at: FieldPath, items: Sequence[object] | Mapping[str, object], limit: int) -> bool:
    """Whether a list is short enough to be checked item by item."""
    if len(items) <= limit:
        return True
    at.wrong(items, f"must have at most {limit} items")
    return False


def unique(at: FieldPath, items: Sequence[Hashable], field: str = "") -> None:
    """Checks for duplicates. The second one is reported, at the field that makes it equal."""
    seen: set[Hashable] = set()
    for index, item in enumerate(items):
        if item in seen:
            place = at[index][field] if field else at[index]
            place.wrong(item, "must not appear twice")
        seen.add(item)


def names(
    at: FieldPath, items: Sequence[str], limit: int = LABELS_MAX, *, dotted: bool = False
) -> None:
    """Checks a list of distinct names."""
    if not at_most(at, items, limit):
        return
    for index, item in enumerate(items):
        (dotted_name if dotted else name)(at[index], item)
    unique(at, items)


def key(at: FieldPath, text: str) -> None:
    """Checks the key of a label, taint or finalizer."""
    if not is_key(text):
        at.wrong(text, KEY_RULE if text else "must be given")


def label_value(at: FieldPath, text: str) -> None:
    if not is_label_value(text):
        at.wrong(text, VALUE_RULE)


def label_map(at: FieldPath, entries: Mapping[str, str]) -> None:
    """Checks labels, or a label selector."""
    if not at_most(at, entries, LABELS_MAX):
        return
    for label, value in entries.items():
        place = at.entry(label)
        if not is_key(label):
            place.wrong(label, f"the key {KEY_RULE}")
        label_value(place, value)


def annotation_map(at: FieldPath, entries: Mapping[str, str]) -> None:
    """Checks annotations: keys like those of labels, values of any printable text."""
    size = sum(len(k.encode()) + len(v.encode()) for k, v in entries.items())
    if size > ANNOTATIONS_BYTES_MAX:
        at.wrong(entries, f"must have at most {ANNOTATIONS_BYTES_MAX} bytes in all, has {size}")
        return
    for annotation, value in entries.items():
        place = at.entry(annotation)
        if not is_key(annotation):
            place.wrong(annotation, f"the key {KEY_RULE}")
        found = unprintable(value, lines=True)
        if found:
            place.wrong(value, f"must not have the character {found}")


# The keys inside a Secret, which templates refer to.

_KEY = re.compile(r"[-A-Za-z0-9_.]{1,253}", re.ASCII)


def secret_key(at: FieldPath, text: str) -> None:
    """Checks a key of a Secret. It may become a file name, so it must not name a directory."""
    if not _KEY.fullmatch(text) or text in (".", ".."):
        at.wrong(text, "must be letters, digits, '-', '_' and '.', at most 253 characters")
