"""Documents that no client sends by accident, and the answer that each must get.

One table for all who read what comes from outside: the decoder's tests, the benchmark of the most
expensive refusal, and the server's tests. A document is made when it is asked for, since some are
large.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

MIB = 1 << 20
BODY_MAX = 1 << 20
NODES_MAX = 20_000


class Hostile(NamedTuple):
    """One document.

    `says` is in the refusal's text. `kind` is what the document is taken for. `after` is the step
    that refuses it: "decode" reads bytes, "validate" judges what was read. `strict` is how unknown
    fields are taken.
    """

    name: str
    make: Callable[[], bytes]
    says: str
    kind: str = "Workload"
    after: str = "decode"
    strict: bool = True


def document(
    spec: str = '{"template":{"command":["/bin/true"]}}',
    metadata: str = '{"name":"a","namespace":"t"}',
    kind: str = "Workload",
    more: str = "",
) -> bytes:
    """An object from raw JSON text, so that what JSON libraries refuse to write can be put in."""
    # The kind comes first, as in our own encoding, so that the quick way in is tried as well.
    start = f'{{"kind":"{kind}","apiVersion":"holdfast.dev/v1"'
    text = f'{start},"metadata":{metadata},"spec":{spec}{more}}}'
    return text.encode("utf-8", "surrogatepass")


def template(text: str) -> bytes:
    return document(f'{{"template":{text}}}')


def replicas(text: str) -> bytes:
    return document(f'{{"template":{{"command":["/bin/true"]}},"replicas":{text}}}')


def cpu(text: str) -> bytes:
    return template(f'{{"command":["/bin/true"],"resources":{{"cpu":{text}}}}}')


def named(name: str) -> bytes:
    return document(metadata=json.dumps({"name": name, "namespace": "t"}, ensure_ascii=False))


def labelled(labels: dict[str, str]) -> bytes:
    return document(metadata=json.dumps({"name": "a", "namespace": "t", "labels": labels}))


def secret(text: str) -> bytes:
    start = (
        '{"kind":"Secret","apiVersion":"holdfast.dev/v1","metadata":{"name":"a","namespace":"t"}'
    )
    return f"{start},{text}}}".encode()


def managed(fields: str) -> bytes:
    """Canonical bytes, which prove themselves, around any JSON in the one field that takes it."""
    return (
        '{"kind":"Node","metadata":{"name":"a","managedFields":[{"manager":"m","fieldsV1":'
        f'{fields}}}]}},"apiVersion":"holdfast.dev/v1","spec":{{}},"status":{{}}}}'
    ).encode()


def nested(depth: int, opening: str = "[", closing: str = "]", core: str = "") -> str:
    return opening * depth + core + closing * depth


TOO_MANY = f"must have at most {NODES_MAX} values"
TOO_DEEP = "must not be nested deeper than 32 levels"
TOO_LARGE = f"must be at most {BODY_MAX} bytes"
WITHIN_2_53 = "must be an integer within ±9007199254740992"

SIZE = (
    Hostile("an empty body", lambda: b"", "is empty"),
    Hostile("only white space", lambda: b" \n\t ", "is not JSON"),
    Hostile("a body of 5 MB", lambda: b'{"a":"' + b"x" * 5_000_000 + b'"}', TOO_LARGE),
    Hostile("one byte too many", lambda: replicas("1") + b" " * (BODY_MAX + 1), TOO_LARGE),
    Hostile("1 MiB of [", lambda: b"[" * MIB, TOO_MANY),
    Hostile("1 MiB of ]", lambda: b"]" * MIB, "more brackets are closed than opened"),
    Hostile("1 MiB of {", lambda: b"{" * MIB, TOO_MANY),
    Hostile('1 MiB of {"a":', lambda: (b'{"a":' * MIB)[:MIB], TOO_MANY),
    Hostile("1 MiB of []", lambda: b"[" + b"[]," * 349_000 + b"[]]", TOO_MANY),
    Hostile("1 MiB of commas", lambda: b"," * MIB, TOO_MANY),
    Hostile("1 MiB of quotes", lambda: b'"' * MIB, TOO_MANY),
    Hostile("1 MiB of two-letter strings", lambda: (b'"ab' * MIB)[:MIB], TOO_MANY),
    Hostile("1 MiB of escaped quotes", lambda: b'"' + b'\\"' * 500_000 + b'"', "must be an object"),
    Hostile("1 MiB of backslashes", lambda: b'"' + b"\\" * 1_000_000 + b'"', "must be an object"),
    Hostile(
        "1 MiB of \\u escapes", lambda: b'"' + b"\\u0041" * 170_000 + b'"', "must be an object"
    ),
    Hostile("1 MiB of NUL bytes", lambda: b"\0" * MIB, "is not JSON"),
    Hostile("1 MiB of spaces", lambda: b" " * MIB, "is not JSON"),
    Hostile("1 MiB of digits", lambda: b"1" * MIB, WITHIN_2_53),
    Hostile("20,001 values", lambda: template(f'{{"command":[{"1," * 19_993}1]}}'), TOO_MANY),
    Hostile("20,000 wrong values", lambda: template(f'{{"command":[{"1," * 19_990}1]}}'), "more"),
    Hostile("20,000 nulls", lambda: template(f'{{"command":[{"null," * 19_990}null]}}'), "more"),
    Hostile(
        "19,000 unknown fields",
        lambda: template("{" + ",".join(f'"comand{i:030}":1' for i in range(19_000)) + "}"),
        "more",
    ),
    Hostile(
        "19,000 duplicate keys",
        lambda: document(metadata="{" + ",".join(['"name":"a"'] * 19_000) + "}"),
        "metadata.name: duplicate field",
    ),
    Hostile("a key of 1 MB", lambda: template(f'{{"{"k" * 1_000_000}":1}}'), "unknown field"),
    Hostile("a number of 1 MB", lambda: replicas("0." + "1" * 1_000_000), "at most 64 characters"),
)

DEPTH = (
    Hostile("lists 10,000 deep", lambda: nested(10_000).encode(), TOO_DEEP),
    Hostile("objects 10,000 deep", lambda: nested(10_000, '{"a":', "}", "1").encode(), TOO_DEEP),
    Hostile("10,000 lists never closed", lambda: b"[" * 10_000, TOO_DEEP),
    Hostile(
        "10,000 deep where any JSON goes",
        lambda: managed(nested(10_000, '{"a":', "}", "1")),
        TOO_DEEP,
    ),
    Hostile(
        "33 deep where any JSON goes",
        lambda: managed(nested(30, '{"a":', "}", "1")),
        TOO_DEEP,
        kind="Node",
    ),
    Hostile(
        "33 deep in an unknown field",
        lambda: template(f'{{"x":{nested(31)}}}'),
        TOO_DEEP,
        strict=False,
    ),
    Hostile(
        "brackets in strings around depth",
        lambda: template(f'{{"command":["]]]]]]{{"],"x":{nested(31)}}}'),
        TOO_DEEP,
        strict=False,
    ),
)

NUMBERS = (
    Hostile("NaN", lambda: replicas("NaN"), "spec.replicas: NaN"),
    Hostile("Infinity", lambda: replicas("Infinity"), "JSON has no NaN and no infinities"),
    Hostile("-Infinity", lambda: cpu("-Infinity"), "JSON has no NaN and no infinities"),
    Hostile("a NaN that would be pruned", lambda: template('{"x":NaN}'), "NaN", strict=False),
    Hostile("an integer of 100,000 digits", lambda: replicas("9" * 100_000), WITHIN_2_53),
    Hostile("2^53 + 1", lambda: replicas("9007199254740993"), WITHIN_2_53),
    Hostile("-2^53 - 1", lambda: replicas("-9007199254740993"), WITHIN_2_53),
    Hostile(
        "2^53 + 1 in bytes that prove themselves",
        lambda: managed('{"a":9007199254740993}'),
        WITHIN_2_53,
        kind="Node",
    ),
    Hostile(
        "2^53 + 1 as a quantity",
        lambda: (
            b'{"kind":"Node","metadata":{"name":"a"},"apiVersion":"holdfast.dev/v1",'
            b'"spec":{"capacity":{"cpu":9007199254740993}},"status":{}}'
        ),
        WITHIN_2_53,
        kind="Node",
    ),
    Hostile("a float too large", lambda: cpu("1e400"), "fits 64-bit floating point"),
    Hostile("an exponent of nine digits", lambda: cpu("1e999999999"), "64-bit floating point"),
    Hostile("a fraction of a replica", lambda: replicas("1.5"), "must be an integer"),
    Hostile("1e300 replicas", lambda: replicas("1e300"), "must be from 0 to 1000000"),
    Hostile("-1 replicas", lambda: replicas("-1"), "must be from 0 to 1000000"),
    Hostile("a leading zero", lambda: replicas("007"), "is not JSON"),
    Hostile("a hexadecimal number", lambda: replicas("0x10"), "is not JSON"),
    Hostile("a plus sign", lambda: replicas("+1"), "is not JSON"),
)

TEXT = (
    Hostile("a lone high surrogate", lambda: named_raw("\\ud800"), "lone surrogate"),
    Hostile("a lone low surrogate", lambda: named_raw("\\udc00"), "lone surrogate"),
    Hostile(
        "surrogates the wrong way round", lambda: named_raw("\\udc00\\ud800"), "lone surrogate"
    ),
    Hostile("a lone surrogate in a key", lambda: template('{"\\udfff":1}'), "lone surrogate"),
    Hostile("a surrogate as bytes", lambda: named("\ud800"), "must be UTF-8"),
    Hostile(
        "an overlong slash", lambda: document().replace(b"/bin", b"\xc0\xafbin"), "must be UTF-8"
    ),
    Hostile("a stray byte", lambda: document().replace(b"/bin", b"\xff"), "byte 0xff at offset"),
    Hostile("a character cut in two", lambda: b'{"a":"\xe2\x82', "must be UTF-8"),
    Hostile("a byte order mark", lambda: b"\xef\xbb\xbf" + document(), "byte order mark"),
    Hostile("UTF-16", lambda: document().decode().encode("utf-16-le"), "is not JSON"),
    Hostile("UTF-16 with a mark", lambda: document().decode().encode("utf-16"), "must be UTF-8"),
    Hostile("an escaped NUL", lambda: named_raw("a\\u0000b"), "must not contain NUL"),
    Hostile(
        "an escaped NUL in bytes that prove themselves",
        lambda: (
            b'{"kind":"Node","metadata":{"name":"a\\u0000"},"apiVersion":"holdfast.dev/v1",'
            b'"spec":{},"status":{}}'
        ),
        "must not contain NUL",
        kind="Node",
    ),
    Hostile("a raw NUL", lambda: named_raw("a\0b"), "is not JSON"),
    Hostile("a raw line break", lambda: named_raw("a\nb"), "is not JSON"),
    Hostile("an unknown escape", lambda: named_raw("\\x41"), "is not JSON"),
    Hostile("half an escape", lambda: named_raw("\\u00"), "is not JSON"),
    Hostile(
        "a field with a Cyrillic letter", lambda: document(more=',"st\u0430tus":{}'), "\\u0430"
    ),
)


def named_raw(text: str) -> bytes:
    return document(metadata=f'{{"name":"{text}","namespace":"t"}}')


SHAPE = (
    Hostile("a list", lambda: b"[]", "must be an object"),
    Hostile("null", lambda: b"null", "must be an object"),
    Hostile("a number", lambda: b"1", "must be an object"),
    Hostile("a string", lambda: b'"x"', "must be an object"),
    Hostile("two documents", lambda: document() * 2, "Extra data"),
    Hostile("a trailing comma", lambda: template('{"command":["a",]}'), "is not JSON"),
    Hostile("a comment", lambda: b"// x\n" + document(), "is not JSON"),
    Hostile("single quotes", lambda: document().replace(b'"', b"'"), "is not JSON"),
    Hostile("YAML", lambda: b"kind: Workload\n", "is not JSON"),
    Hostile("a string without end", lambda: b'{"kind":"Work', "is not JSON"),
    Hostile("an object without end", lambda: document()[:-1], "is not JSON"),
    Hostile("mismatched brackets", lambda: template('{"command":["a"}]'), "is not JSON"),
    Hostile("True", lambda: replicas("True"), "is not JSON"),
    Hostile("a key given twice", lambda: document(more=',"spec":{}'), "spec: duplicate field"),
    Hostile(
        "a key given twice at depth",
        lambda: template('{"ports":[{"name":"a","port":1,"port":2}]}'),
        "spec.template.ports[0].port: duplicate field",
    ),
    Hostile(
        "a key given twice, once by escapes",
        lambda: template('{"image":"a","im\\u0061ge":"b"}'),
        "spec.template.image: duplicate field",
    ),
    Hostile(
        "a label given twice",
        lambda: document(metadata='{"name":"a","labels":{"x":"1","x":"1"}}'),
        "metadata.labels.x: duplicate field",
    ),
    Hostile(
        "a key given twice in what would be pruned",
        lambda: template('{"x":{"y":1,"y":2}}'),
        "spec.template.x.y: duplicate field",
        strict=False,
    ),
    Hostile("no spec", lambda: b'{"metadata":{"name":"a"}}', "spec: is required"),
    Hostile("a null spec", lambda: document("null"), "spec: is required"),
    Hostile("no metadata", lambda: b'{"spec":{"template":{}}}', "metadata: is required"),
    Hostile("metadata of text", lambda: document(metadata='"a"'), "metadata:"),
    Hostile("a spec of lists", lambda: document(nested(31)), "spec: (a list): must be an object"),
    Hostile("text for a count", lambda: replicas('"3"'), 'spec.replicas: "3": must be an integer'),
    Hostile("a boolean for a count", lambda: replicas("true"), "must be an integer"),
    Hostile("a list for a count", lambda: replicas("[1]"), "must be an integer"),
    Hostile("text for a list", lambda: template('{"command":"x"}'), "must be a list"),
    Hostile("null in a list", lambda: template('{"command":[null]}'), "command[0]: null"),
    Hostile("null in a map", lambda: labelled_raw('{"a":null}'), "labels[a]: null"),
    Hostile("a number for a label", lambda: labelled_raw('{"a":1}'), "must be a string"),
    Hostile("a list for labels", lambda: labelled_raw('["a"]'), "must be an object"),
    Hostile("an unknown choice", lambda: template('{"restart":"Maybe"}'), "must be one of Always"),
    Hostile("an object for a quantity", lambda: cpu("{}"), "must be a string or a number"),
    Hostile("a boolean for a quantity", lambda: cpu("true"), "must be a string or a number"),
    Hostile("an unknown field", lambda: template('{"comand":[]}'), "did you mean command?"),
    Hostile("__proto__", lambda: template('{"__proto__":{"a":1}}'), "spec.template.__proto__"),
    Hostile("another kind", lambda: document(kind="Secret"), "must be Workload"),
    Hostile("a kind of numbers", lambda: document().replace(b'"Workload"', b"1"), "kind: 1"),
    Hostile(
        "another version", lambda: document().replace(b"/v1", b"/v9"), "must be holdfast.dev/v1"
    ),
    Hostile(
        "a version with a line break",
        lambda: (
            b'{"kind":"Node","metadata":{"name":"a"},"apiVersion":"holdfast.dev/v1\\n",'
            b'"spec":{},"status":{}}'
        ),
        "must be holdfast.dev/v1",
        kind="Node",
    ),
    Hostile(
        "a time without a zone",
        lambda: document(metadata='{"creationTimestamp":"2027-01-01T00:00:00"}'),
        "must be a time with a zone",
    ),
    Hostile(
        "a time of numbers", lambda: document(metadata='{"creationTimestamp":1}'), "must be a time"
    ),
    Hostile(
        "a thirteenth month",
        lambda: document(metadata='{"creationTimestamp":"2027-13-01T00:00:00Z"}'),
        "must be a time",
    ),
    Hostile("a secret of numbers", lambda: secret('"data":{"k":31337}'), "(hidden)", kind="Secret"),
    Hostile("a secret of text", lambda: secret('"data":"hunter2"'), "(hidden)", kind="Secret"),
    Hostile(
        "a secret too long",
        lambda: secret('"data":{"k":' + "31337" * 9 + "}"),
        "(hidden)",
        "Secret",
    ),
)


def labelled_raw(labels: str) -> bytes:
    return document(metadata=f'{{"name":"a","labels":{labels}}}')


MEANING = (
    Hostile("a negative quantity", lambda: cpu('"-1"'), "must not be negative", after="validate"),
    Hostile("a negative number", lambda: cpu("-1"), "must not be negative", after="validate"),
    Hostile("a quantity too large", lambda: cpu('"9999999E"'), "must be at most", after="validate"),
    Hostile(
        "a huge exponent", lambda: cpu('"1e999999999"'), "must be a quantity", after="validate"
    ),
    Hostile("an exponent of 999", lambda: cpu('"1e999"'), "exponent", after="validate"),
    Hostile("a float of 1e300", lambda: cpu("1e300"), "exponent", after="validate"),
    Hostile("NaN as text", lambda: cpu('"NaN"'), "must be a quantity", after="validate"),
    Hostile(
        "digits of another script", lambda: cpu('"\u0661"'), "must be a quantity", after="validate"
    ),
    Hostile("a quantity of 1 MB", lambda: cpu(f'"{"9" * 900_000}"'), "quantity", after="validate"),
    Hostile(
        "a homoglyph in a name", lambda: named("p\u0430yments"), "metadata.name", after="validate"
    ),
    Hostile("bidi in a name", lambda: named("a\u202eb"), "metadata.name", after="validate"),
    Hostile("a zero-width joiner", lambda: named("a\u200db"), "metadata.name", after="validate"),
    Hostile(
        "a path as a name", lambda: named("../../etc/passwd"), "metadata.name", after="validate"
    ),
    Hostile("an upper-case name", lambda: named("Admin"), "metadata.name", after="validate"),
    Hostile("a line break in a name", lambda: named_raw("a\\n"), "metadata.name", after="validate"),
    Hostile("a name of 64", lambda: named("a" * 64), "metadata.name", after="validate"),
    Hostile("a name of 1 MB", lambda: named("a" * 1_000_000), "metadata.name", after="validate"),
    Hostile(
        "65 labels",
        lambda: labelled({f"l{i}": "v" for i in range(65)}),
        "metadata.labels",
        after="validate",
    ),
    Hostile(
        "a label key of 1 MB", lambda: labelled({"k" * 1_000_000: "v"}), "labels", after="validate"
    ),
    Hostile(
        "a label of lines", lambda: labelled({"a": "b\nc"}), "metadata.labels", after="validate"
    ),
)


def many(key: str, item: str, count: int) -> bytes:
    return template(f'{{"command":["/bin/true"],"{key}":[{",".join([item] * count)}]}}')


# As much as the limits let through, so that the dearest refusals are among these.
VOLUME = (
    Hostile(
        "6,600 variables",
        lambda: many("env", '{"name":"A","value":"$(A)$(B)"}', 6_600),
        "spec.template.env",
        after="validate",
    ),
    Hostile(
        "4,900 ports",
        lambda: many("ports", '{"name":"a","port":1,"protocol":"TCP"}', 4_900),
        "spec.template.ports",
        after="validate",
    ),
    Hostile(
        "6,600 files",
        lambda: many("files", '{"path":"../x","mode":"0777"}', 6_600),
        "spec.template.files",
        after="validate",
    ),
    Hostile(
        "19,900 labels",
        lambda: labelled({f"k{i}": "v" * 30 for i in range(19_900)}),
        "metadata.labels",
        after="validate",
    ),
    Hostile(
        "19,900 finalizers",
        lambda: document(metadata=json.dumps({"name": "a", "finalizers": ["x" * 40] * 19_900})),
        "metadata.finalizers",
        after="validate",
    ),
)

DOCUMENTS: tuple[Hostile, ...] = (*SIZE, *DEPTH, *NUMBERS, *TEXT, *SHAPE, *MEANING, *VOLUME)
