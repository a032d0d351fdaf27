"""OpenAPI v3 of the whole API, from the model's schema and the table of resources.

`kubectl explain`, `apply` and `--dry-run=server` read it; so does every generated client. It
advertises `fieldValidation`, by which newer clients leave validation to the server.
"""

from __future__ import annotations

import hashlib
from functools import cache

import msgspec

import holdfast
from holdfast.host.api.resource_table import RESOURCES, VERSION, ApiResource, collection_path
from holdfast.model.encoding.schema import REF_PREFIX, Schema, components, schema_name
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import API_GROUP

GROUP_KEY = f"apis/{API_GROUP}/{VERSION}"

_JSON = "application/json"
_PATCHES = (
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
)
_ACTIONS = {
    "list": "list",
    "get": "get",
    "create": "post",
    "update": "put",
    "patch": "patch",
    "delete": "delete",
    "deletecollection": "deletecollection",
}


def _query(name: str, kind: str, description: str) -> Schema:
    schema: Schema = {"type": kind}
    return {"name": name, "in": "query", "description": description, "schema": schema}


_PATH_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "the name of the object",
    "schema": {"type": "string"},
}
_PATH_NAMESPACE = {
    "name": "namespace",
    "in": "path",
    "required": True,
    "description": "the tenant",
    "schema": {"type": "string"},
}
LIST_PARAMETERS = (
    _query("labelSelector", "string", "only objects with these labels"),
    _query("fieldSelector", "string", "only objects with these fields, such as metadata.name=x"),
    _query("limit", "integer", "the most objects to return, with a continue token for the rest"),
    _query("continue", "string", "go on where the last page ended"),
    _query("resourceVersion", "string", "not older than this; unset means the newest"),
    _query("watch", "boolean", "stream changes instead of a list"),
    _query("allowWatchBookmarks", "boolean", "send bookmarks with the newest version"),
    _query("bookmarkSeconds", "integer", "send bookmarks that often, if there is room"),
    _query("timeoutSeconds", "integer", "end the watch after this many seconds"),
)
WRITE_PARAMETERS = (
    _query("dryRun", "string", "All: decide and answer, but write nothing"),
    _query("fieldManager", "string", "who sets the fields"),
    _query("fieldValidation", "string", "Ignore, Warn or Strict, for unknown fields"),
)
PATCH_PARAMETERS = (*WRITE_PARAMETERS, _query("force", "boolean", "take over conflicting fields"))
DELETE_PARAMETERS = (
    _query("dryRun", "string", "All: decide and answer, but delete nothing"),
    _query("gracePeriodSeconds", "integer", "how long the work may take to stop"),
    _query("propagationPolicy", "string", "Background, Foreground or Orphan"),
)


def v3_root() -> bytes:
    """The list of documents. The hash lets clients cache them."""
    return msgspec.json.encode(
        {
            "paths": {
                GROUP_KEY: {"serverRelativeURL": f"/openapi/v3/{GROUP_KEY}?hash={document_hash()}"}
            }
        }
    )


def document_hash() -> str:
    """A hash that changes whenever the document does."""
    return hashlib.sha256(v3_group()).hexdigest()[:32].upper()


@cache
def v3_group() -> bytes:
    """The document of holdfast.dev/v1."""
    return msgspec.json.encode(document())


@cache
def document() -> Schema:
    """The v3 document as plain values, for the v2 document and for tests. Not to be changed."""
    paths: dict[str, Schema] = {}
    for resource in RESOURCES:
        paths |= _paths(resource)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Holdfast", "version": holdfast.__version__},
        "paths": paths,
        "components": {"schemas": {**components(), **_lists(), **_common()}},
    }


def _gvk(kind: Kind) -> Schema:
    return {"group": API_GROUP, "version": VERSION, "kind": kind.name}


def _paths(resource: ApiResource) -> dict[str, Schema]:
    kind = resource.kind
    collection = collection_path(kind)
    scope = [_PATH_NAMESPACE] if kind.namespaced else []
    found: dict[str, Schema] = {
        collection: {
            "get": _operation(resource, "list", LIST_PARAMETERS),
            "post": _operation(resource, "create", WRITE_PARAMETERS),
            "delete": _operation(resource, "deletecollection", LIST_PARAMETERS),
            "parameters": scope,
        },
        f"{collection}/{{name}}": {
            "get": _operation(resource, "get", ()),
            "put": _operation(resource, "update", WRITE_PARAMETERS),
            "patch": _operation(resource, "patch", PATCH_PARAMETERS),
            "delete": _operation(resource, "delete", DELETE_PARAMETERS),
            "parameters": [_PATH_NAME, *scope],
        },
    }
    if kind.namespaced:
        everywhere = f"/apis/{API_GROUP}/{VERSION}/{kind.plural}"
        found[everywhere] = {
            "get": _operation(resource, "list", LIST_PARAMETERS, suffix="ForAllNamespaces")
        }
    if kind.status:
        found[f"{collection}/{{name}}/status"] = {
            "get": _operation(resource, "get", (), suffix="Status"),
            "put": _operation(resource, "update", WRITE_PARAMETERS, suffix="Status"),
            "patch": _operation(resource, "patch", PATCH_PARAMETERS, suffix="Status"),
            "parameters": [_PATH_NAME, *scope],
        }
    return {path: _offered(resource, methods) for path, methods in found.items()}


def _offered(resource: ApiResource, methods: Schema) -> Schema:
    """The operations of a path that the router has."""
    actions = [_ACTIONS[verb] for verb in resource.verbs if verb in _ACTIONS]
    return {
        method: operation
        for method, operation in methods.items()
        if method == "parameters" or operation["x-kubernetes-action"] in actions
    }


def _operation(
    resource: ApiResource, verb: str, parameters: tuple[Schema, ...], *, suffix: str = ""
) -> Schema:
    kind = resource.kind
    operation: Schema = {
        "operationId": f"{verb}{kind.name}{suffix}",
        "description": f"{verb} {kind.plural}",
        "tags": [kind.plural],
        "parameters": list(parameters),
        "responses": _responses(kind, verb),
        "x-kubernetes-action": _ACTIONS[verb],
        "x-kubernetes-group-version-kind": _gvk(kind),
    }
    body = _body(kind, verb)
    if body is not None:
        operation["requestBody"] = body
    return operation


def _body(kind: Kind, verb: str) -> Schema | None:
    reference = {"$ref": REF_PREFIX + schema_name(kind.struct)}
    if verb in ("create", "update"):
        return {"required": True, "content": {_JSON: {"schema": reference}}}
    if verb == "patch":
        patch = {"schema": {"type": "object"}}
        jsons = {"schema": {"type": "array", "items": {"type": "object"}}}
        content = {kind_: jsons if "json-patch" in kind_ else patch for kind_ in _PATCHES}
        return {"required": True, "content": content}
    if verb in ("delete", "deletecollection"):
        options = {"schema": {"$ref": f"{REF_PREFIX}{DELETE_OPTIONS}"}}
        return {"content": {_JSON: options}}
    return None


def _responses(kind: Kind, verb: str) -> Schema:
    name = schema_name(kind.struct)
    good = {
        "list": f"{name}List",
        "deletecollection": STATUS,
        "delete": "",
    }.get(verb, name)
    ok: Schema = {"description": "OK"}
    if good:
        ok["content"] = {_JSON: {"schema": {"$ref": REF_PREFIX + good}}}
    failed = {
        "description": "refused, with field, rule and reason",
        "content": {_JSON: {"schema": {"$ref": f"{REF_PREFIX}{STATUS}"}}},
    }
    responses: Schema = {"200": ok, "default": failed}
    if verb in ("create", "patch"):
        responses["201"] = {**ok, "description": "Created"}
    if verb in ("delete", "deletecollection"):
        responses["202"] = {"description": "Accepted; it goes once its finalizers are gone"}
    return responses


DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
STATUS = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"
LIST_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"


def _lists() -> dict[str, Schema]:
    found = {}
    for resource in RESOURCES:
        kind = resource.kind
        name = schema_name(kind.struct)
        found[f"{name}List"] = {
            "type": "object",
            "description": f"a list of {kind.plural}",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"$ref": REF_PREFIX + LIST_META},
                "items": {"type": "array", "items": {"$ref": REF_PREFIX + name}},
            },
            "x-kubernetes-group-version-kind": [{**_gvk(kind), "kind": f"{kind.name}List"}],
        }
    return found


def _common() -> dict[str, Schema]:
    text, number = {"type": "string"}, {"type": "integer", "format": "int64"}
    return {
        LIST_META: {
            "type": "object",
            "description": "the version of a list, and how to go on",
            "properties": {
                "resourceVersion": text,
                "continue": text,
                "remainingItemCount": number,
            },
        },
        DELETE_OPTIONS: {
            "type": "object",
            "description": "how to delete",
            "properties": {
                "apiVersion": text,
                "kind": text,
                "gracePeriodSeconds": {**number, "minimum": 0},
                "propagationPolicy": text,
                "dryRun": {"type": "array", "items": text},
                "preconditions": {
                    "type": "object",
                    "properties": {"uid": text, "resourceVersion": text},
                },
            },
        },
        STATUS: {
            "type": "object",
            "description": "what came of a request",
            "properties": {
                "apiVersion": text,
                "kind": text,
                "metadata": {"$ref": REF_PREFIX + LIST_META},
                "status": text,
                "message": text,
                "reason": text,
                "code": number,
                "details": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
    }
