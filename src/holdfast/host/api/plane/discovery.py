"""Discovery: how kubectl and other clients find out which resources the API has."""

from __future__ import annotations

from typing import Any

import msgspec

import holdfast
from holdfast.host.api.resource_table import READ_VERBS, RESOURCES, VERSION, ApiResource
from holdfast.model.meta import API_GROUP

# The version of the Kubernetes API conventions that are followed; kubectl compares it with its own.
KUBERNETES_MINOR = "30"
CORE_VERBS = READ_VERBS


def paths() -> dict[str, bytes]:
    """Every discovery document by its path, encoded once."""
    documents: dict[str, Any] = {
        "/version": _version(),
        "/api": _api_versions(),
        "/api/v1": _core(),
        "/apis": _groups(),
        f"/apis/{API_GROUP}": _group(API_GROUP),
        f"/apis/{API_GROUP}/{VERSION}": _holdfast(),
    }
    for group, resources in _REVIEWS.items():
        documents[f"/apis/{group}"] = _group(group)
        documents[f"/apis/{group}/v1"] = _resource_list(f"{group}/v1", list(resources))
    return {path: msgspec.json.encode(document) for path, document in documents.items()}


def _version() -> dict[str, str]:
    return {
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "gitVersion": f"v1.{KUBERNETES_MINOR}.0+holdfast-{holdfast.__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }


def _api_versions() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": [version],
        "preferredVersion": version,
    }


def _groups() -> dict[str, Any]:
    names = (API_GROUP, *_REVIEWS)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(n) for n in names]}


def _resource_list(version: str, resources: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": resources,
    }


def _review(name: str, kind: str) -> dict[str, Any]:
    return {
        "name": name,
        "singularName": kind.lower(),
        "namespaced": False,
        "kind": kind,
        "verbs": ["create"],
    }


_REVIEWS = {
    "authorization.k8s.io": (
        _review("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        _review("selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    ),
    "authentication.k8s.io": (_review("selfsubjectreviews", "SelfSubjectReview"),),
}


def _core() -> dict[str, Any]:
    """The few core resources that clients insist on: namespaces are tenants, pods replicas, and
    events are told twice.
    """
    namespaces = {
        "name": "namespaces",
        "singularName": "namespace",
        "namespaced": False,
        "kind": "Namespace",
        "verbs": list(CORE_VERBS),
        "shortNames": ["ns"],
    }
    events = {
        "name": "events",
        "singularName": "event",
        "namespaced": True,
        "kind": "Event",
        "verbs": list(CORE_VERBS),
        "shortNames": ["ev"],
    }
    pods = {
        "name": "pods",
        "singularName": "pod",
        "namespaced": True,
        "kind": "Pod",
        "verbs": list(CORE_VERBS),
        "shortNames": ["po"],
    }
    part = {"singularName": "", "namespaced": True}
    log = {"name": "pods/log", "kind": "Pod", "verbs": ["get"], **part}
    commands = {"name": "pods/exec", "kind": "PodExecOptions", "verbs": ["create", "get"], **part}
    return _resource_list("v1", [events, namespaces, pods, log, commands])


def _holdfast() -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for resource in RESOURCES:
        rows += _rows(resource)
    return _resource_list(f"{API_GROUP}/{VERSION}", rows)


def _rows(resource: ApiResource) -> list[dict[str, Any]]:
    kind = resource.kind
    main: dict[str, Any] = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": list(resource.verbs),
        "categories": list(resource.categories),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    rows = [main]
    for part in resource.subresources:
        row: dict[str, Any] = {
            "name": f"{kind.plural}/{part.name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": part.kind,
            "verbs": list(part.verbs),
        }
        if part.group:
            row |= {"group": part.group, "version": part.version}
        rows.append(row)
    return rows
