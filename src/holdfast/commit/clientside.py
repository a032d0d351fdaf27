"""Moving from `kubectl apply` to `kubectl apply --server-side` without a conflict with oneself.

Client-side apply keeps the last configuration in an annotation and writes as an ordinary updater,
so its fields belong to `kubectl-client-side-apply`. When the same person turns to server-side apply
as `kubectl`, the annotation proves which of those fields are theirs. The server honours it, and
keeps it up to date so that the way back works as well. Newer kubectls rewrite managedFields
themselves; for them nothing is left to do here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.commit.conflicts import FieldConflict
from holdfast.commit.diff import Tree, compare
from holdfast.commit.fields import Fields, Path, minus, without
from holdfast.commit.merge import claimed
from holdfast.commit.shapes import Record
from holdfast.model.errors import Invalid
from holdfast.model.guard import parse

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"
# All annotations together must not be larger than this in Kubernetes.
_ANNOTATION_BYTES_MAX = 256 * 1024


def settled_by_last_applied(
    found: tuple[FieldConflict, ...], live: Tree, manager: str, shape: Record
) -> tuple[FieldConflict, ...]:
    """The conflicts that remain when kubectl's own last configuration is taken into account."""
    text = _last_applied(live)
    if manager != KUBECTL or not text:
        return found
    allowed = _still_theirs(text, live, shape)
    return tuple(conflict for conflict in found if not _contains(allowed, conflict.path))


def refreshed(tree: Tree, config: Tree, manager: str) -> Tree:
    """The tree with the annotation brought up to date, if it has one and kubectl applied."""
    text = _last_applied(tree)
    if manager != KUBECTL or not text:
        return tree
    current = msgspec.json.encode(config, order="sorted").decode() + "\n"
    if text == current:
        return tree
    metadata = dict(tree["metadata"])
    metadata["annotations"] = dict(metadata["annotations"])
    if len(current.encode()) > _ANNOTATION_BYTES_MAX:
        del metadata["annotations"][LAST_APPLIED]
    else:
        metadata["annotations"][LAST_APPLIED] = current
    return {**tree, "metadata": metadata}


def _last_applied(tree: Tree) -> str:
    metadata = tree.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    text = annotations.get(LAST_APPLIED, "") if isinstance(annotations, dict) else ""
    return text if isinstance(text, str) else ""


def _still_theirs(text: str, live: Tree, shape: Record) -> Fields:
    """The fields of the last configuration that still have the value it gave them."""
    try:
        last: Any = parse(text.encode())
        if not isinstance(last, dict):
            return {}
        fields = claimed(last, shape)
    except (Invalid, UnicodeEncodeError):
        # Whatever stands in an annotation was written by some client; it proves nothing then.
        return {}
    change = compare(last, live, shape)
    return without(minus(fields, change.touched), change.removed)


def _contains(fields: Fields, path: Path) -> bool:
    node = fields
    for element in path:
        if element not in node:
            return False
        node = node[element]
    return not node or "." in node
