"""What the API offers, as data: every resource, its verbs and its subresources.

Discovery, OpenAPI and the authorization matrix are made from these rows, so they never offer a verb
that the router does not have.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import API_GROUP
from holdfast.model.registry import KINDS

VERSION = "v1"

ALL_VERBS = (
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
)
READ_VERBS = ("get", "list", "watch")
# Decisions of schedulers are kept outside the store and can only be read.
DECISIONS = "decisions"
KEPT_VERBS = ("get", "list")

# `kubectl get all` and `kubectl get holdfast` show these.
_IN_ALL = ("workloads", "replicas", "endpoints")
# The core group has events of its own, in a shape that `kubectl describe` reads; ours keep the
# name and leave the short name to those, so that `kubectl get ev` is not ambiguous.
_NO_SHORT_NAMES = ("events",)


class Subresource(msgspec.Struct, frozen=True):
    """A part of a resource with a path of its own, possibly of another group's kind."""

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


class ApiResource(msgspec.Struct, frozen=True):
    """One resource as discovery shows it."""

    kind: Kind
    verbs: tuple[str, ...] = ALL_VERBS
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ("holdfast",)
    subresources: tuple[Subresource, ...] = ()


def _subresources(kind: Kind) -> tuple[Subresource, ...]:
    found = []
    if kind.status:
        found.append(Subresource("status", kind.name, ("get", "patch", "update")))
    if kind.scale:
        scale = Subresource("scale", "Scale", ("get", "patch", "update"), "autoscaling", "v1")
        found.append(scale)
    if kind.plural == DECISIONS:
        found.append(Subresource("again", kind.name, ("get",)))
    if kind.plural == "replicas":
        found.append(Subresource("binding", "Binding", ("create",)))
        found.append(Subresource("exec", "PodExecOptions", ("create", "get")))
        found.append(Subresource("explanation", kind.name, ("get",)))
        found.append(Subresource("log", kind.name, ("get",)))
        found.append(Subresource("token", kind.name, ("create",)))
    return tuple(found)


def _resource(kind: Kind) -> ApiResource:
    return ApiResource(
        kind,
        KEPT_VERBS if kind.plural == DECISIONS else ALL_VERBS,
        short_names=() if kind.plural in _NO_SHORT_NAMES else kind.short_names,
        categories=("holdfast", "all") if kind.plural in _IN_ALL else ("holdfast",),
        subresources=_subresources(kind),
    )


RESOURCES: tuple[ApiResource, ...] = tuple(_resource(kind) for kind in KINDS)


def collection_path(kind: Kind) -> str:
    """The path of a kind's collection, with `{namespace}` where it has one."""
    middle = "namespaces/{namespace}/" if kind.namespaced else ""
    return f"/apis/{API_GROUP}/{VERSION}/{middle}{kind.plural}"
