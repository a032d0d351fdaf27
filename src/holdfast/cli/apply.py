"""`holdfast apply`: each document becomes one server-side apply; errors name the document's place.

A document is sent as it was written, since the server validates it and refuses unknown fields.
After a lost answer the command reads the object: if it remembers the operation, the apply has
succeeded; otherwise the same operation is sent again.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.cli.documents import Document, kind_named
from holdfast.cli.exit_codes import ExitCode, code_of, complain, sentence_of, warn
from holdfast.host.client import Client, paths
from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.paths import OPERATION_HEADER
from holdfast.host.client.retrying import demand_good
from holdfast.host.client.writing import find_remembered, new_operation
from holdfast.model.errors import HoldfastError, Invalid
from holdfast.model.meta import API_VERSION
from holdfast.model.registry import Kind
from holdfast.model.requests import PatchType
from holdfast.observe.retry import Nature, Send

MANAGER = "holdfast"
_WARNING = re.compile(r'299 - "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class ApplyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How documents are applied.

    namespace: for documents that do not name one.
    force: take over fields from other managers.
    dry: let the server decide without changing anything.
    """

    namespace: str
    manager: str = MANAGER
    force: bool = False
    dry: bool = False


class ApplyTarget(msgspec.Struct, frozen=True):
    """The object that a document is about."""

    kind: Kind
    namespace: str
    name: str

    @property
    def path(self) -> str:
        return paths.one(self.kind, self.namespace, self.name)

    @property
    def title(self) -> str:
        return f"{self.kind.singular}.holdfast.dev/{self.name}"


async def apply_all(client: Client, documents: list[Document], options: ApplyOptions) -> ExitCode:
    """Apply each document. A failure is reported, and the others are still applied."""
    worst = ExitCode.DONE
    for document in documents:
        try:
            await _apply(client, document, options)
        except HoldfastError as error:
            worst = max(worst, complain(f"{document.title}: {sentence_of(error)}", code_of(error)))
            if worst is ExitCode.UNREACHABLE:
                # The others would only wait for the same server, one after another.
                return worst
    return worst


def target(document: Document, namespace: str) -> ApplyTarget:
    """The object that a document describes. Raises Invalid with the field that is wrong."""
    tree = document.tree
    version = tree.get("apiVersion")
    if version != API_VERSION:
        raise Invalid(f"apiVersion: {_shown(version)} must be {API_VERSION}")
    kind = tree.get("kind")
    if not isinstance(kind, str) or not kind:
        raise Invalid(f"kind: {_shown(kind)} must be the name of a kind, such as Workload")
    try:
        found = kind_named(kind)
    except Invalid as error:
        raise Invalid(f"kind: {error.message.removeprefix('KIND: ')}") from error
    metadata = tree.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise Invalid(f"metadata.name: {_shown(name)} must be a name: apply requires one")
    own = metadata.get("namespace") if isinstance(metadata, dict) else None
    if own is not None and not isinstance(own, str):
        raise Invalid(f"metadata.namespace: {_shown(own)} must be a string")
    return ApplyTarget(found, (own or namespace) if found.namespaced else "", name)


async def _apply(client: Client, document: Document, options: ApplyOptions) -> None:
    about = target(document, options.namespace)
    before = await client.find(about.kind.struct, about.name, about.namespace)
    operation = new_operation()
    body = msgspec.json.encode(document.tree)
    query = {"fieldManager": options.manager, "fieldValidation": "Strict"}
    query |= {"force": "true"} if options.force else {}
    query |= {"dryRun": "All"} if options.dry else {}
    headers = {"Content-Type": PatchType.APPLY.value, OPERATION_HEADER: operation}

    async def send(effect: Send) -> HttpAnswer:
        answer = await client.transport.send(
            "PATCH",
            about.path,
            query=query,
            body=body,
            headers=headers,
            timeout_s=effect.timeout_ms / 1_000,
        )
        return demand_good(answer, is_write=True)

    async def look(timeout_s: float) -> HttpAnswer | None:
        found = await find_remembered(client, about.kind.struct, about.path, operation, timeout_s)
        return None if found is None else HttpAnswer(200, msgspec.json.encode(found))

    answer: HttpAnswer = await client.performer.perform(Nature.WRITE, send, look)
    for text in _WARNING.findall(", ".join(answer.warnings)):
        warn(f"Warning: {document.title}: {_ESCAPED.sub(lambda it: it[1], text)}")
    outcome = "created" if before is None else "configured"
    if before is not None and before.metadata.resource_version == _version(answer.body):
        outcome = "unchanged"
    print(f"{about.title} {outcome}{' (dry run)' if options.dry else ''}", flush=True)


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


def _version(body: bytes) -> str:
    return msgspec.json.decode(body, type=_Versioned).metadata.resource_version


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:80]
