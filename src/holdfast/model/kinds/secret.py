"""Secret: values that work may read and that are never printed."""

from __future__ import annotations

from holdfast.model.kind_declaration import PEOPLE, Kind, KindRules, Writers, count, text
from holdfast.model.meta import Object


class Secret(Object, frozen=True, kw_only=True, tag="Secret"):
    """Values that work may read. They never reach a log, an event, an error or a metric.

    data: values by key, in base64.
    string_data: values by key as plain text; moved into data when it is written.
    type: its type, for users and tools.
    """

    data: dict[str, str] = {}
    string_data: dict[str, str] = {}
    type: str = "Opaque"

    def __repr__(self) -> str:
        # A repr appears in tracebacks and assertion messages, so it must not contain the values.
        return f"Secret({self.metadata.namespace}/{self.metadata.name}, keys={sorted(self.data)})"


def _secret_rules() -> KindRules:
    from holdfast.model.validation import access

    return KindRules(access.secret)


SECRET_KIND = Kind(
    Secret,
    "secrets",
    rules=_secret_rules,
    writers=Writers(spec=PEOPLE),
    columns=(
        text("Type", lambda o: o.type, "what it is"),
        count("Data", lambda o: len(o.data), "how many values it has"),
    ),
    status=False,
    is_secret=True,
    removal_order=5,
)
