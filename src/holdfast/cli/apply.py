"""`holdfast apply`: each document becomes one server-side apply; errors name the document's place.

A document is sent as it was written, since the server validates it and refuses unknown fields.
After a lost answer the command reads the object: if it remembers the operation, the apply has
succeeded; otherwise the same operation is sent again.
"""

from __future__ import annotations

import msgspec

from holdfast.cli.documents import Document
from holdfast.cli.exit_codes import ExitCode, code_of, complain, sentence_of, warn
from holdfast.host.client import AsyncClient
from holdfast.host.client.plain_documents import subject_of
from holdfast.model.errors import HoldfastError

MANAGER = "holdfast"


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


async def apply_all(
    client: AsyncClient, documents: list[Document], options: ApplyOptions
) -> ExitCode:
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


async def _apply(client: AsyncClient, document: Document, options: ApplyOptions) -> None:
    about = subject_of(document.tree, options.namespace)
    before = await client.find(about.kind.struct, about.name, about.namespace)
    client.warn = lambda text: warn(f"Warning: {document.title}: {text}")
    tree = document.tree
    if about.namespace:
        tree = {**tree, "metadata": {**tree["metadata"], "namespace": about.namespace}}
    after = await client.apply(
        tree, manager=options.manager, force=options.force, dry_run=options.dry
    )
    outcome = "created" if before is None else "configured"
    if before is not None and before.metadata.resource_version == after.metadata.resource_version:
        outcome = "unchanged"
    print(f"{about.title} {outcome}{' (dry run)' if options.dry else ''}", flush=True)
