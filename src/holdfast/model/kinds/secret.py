"""Secret: values that work may read and nobody may print."""

from __future__ import annotations

from holdfast.model.meta import Object


class Secret(Object, frozen=True, kw_only=True, tag="Secret"):
    """Values that work may read. They never reach a log, an event, an error or a metric.

    data: values by key, in base64.
    string_data: values by key as plain text; moved into data when it is written.
    type: what it is, for people and tools.
    """

    data: dict[str, str] = {}
    string_data: dict[str, str] = {}
    type: str = "Opaque"

    def __repr__(self) -> str:
        # A repr ends up in tracebacks and assertion messages, so the values must not be in it.
        return f"Secret({self.metadata.namespace}/{self.metadata.name}, keys={sorted(self.data)})"
