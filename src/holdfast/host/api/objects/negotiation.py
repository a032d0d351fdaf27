"""Content negotiation: whether a client wants plain JSON, a table, or metadata only.

kubectl asks for tables first and accepts JSON as well; informers of other tools ask for metadata.
Clients send one of a few headers, so the result is cached.
"""

from __future__ import annotations

from functools import lru_cache

from holdfast.host.api import status_objects
from holdfast.host.api.objects import table_answers
from holdfast.model.errors import Rejected

JSON = ""
PARTIAL = "partial"
TABLE = "table:"
ACCEPT_MAX = 2_048

_ANY = ("application/json", "application/*", "*/*")
_META_GROUP = "meta.k8s.io"
_AS = {
    "": JSON,
    "Table": TABLE,
    "PartialObjectMetadata": PARTIAL,
    "PartialObjectMetadataList": PARTIAL,
}
_INCLUDES = (table_answers.NONE, table_answers.METADATA, table_answers.OBJECT)


def shape_of(accept: str, include: str) -> str:
    """The shape that is asked for; the name of a table's shape says what its rows carry."""
    shape = _preferred(accept)
    if shape != TABLE:
        return shape
    include = include or table_answers.METADATA
    if include not in _INCLUDES:
        raise Rejected(
            f"includeObject: {include[:40]!r} must be one of {', '.join(_INCLUDES)}",
            code=status_objects.BAD_REQUEST,
        )
    return TABLE + include


@lru_cache(maxsize=256)
def _preferred(accept: str) -> str:
    """The first media range that is supported. Weights are ignored: clients sort by them."""
    if not accept:
        return JSON
    for media in accept[:ACCEPT_MAX].split(","):
        name, *rest = (part.strip() for part in media.split(";"))
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        if name.lower() not in _ANY:
            continue
        wanted = parameters.get("as", "")
        if wanted and (parameters.get("g"), parameters.get("v")) != (_META_GROUP, "v1"):
            continue
        if wanted in _AS:
            return _AS[wanted]
    raise Rejected(
        "only the following media types are accepted: application/json, also as Table or "
        "PartialObjectMetadata of meta.k8s.io/v1",
        code=status_objects.NOT_ACCEPTABLE,
    )
