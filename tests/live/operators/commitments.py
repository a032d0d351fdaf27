"""An operator as kopf's own documentation writes them: it knows nothing of Holdfast."""

from typing import Any

import kopf


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    # Progress goes into annotations, for the status of our kinds has a shape and owners.
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage()
    settings.persistence.finalizer = "example.com/kopf"
    settings.posting.enabled = False


@kopf.on.create("holdfast.dev", "v1", "commitments")
def created(name: str, **_: Any) -> None:
    print(f"created {name}", flush=True)


@kopf.on.update("holdfast.dev", "v1", "commitments", field="spec")
def updated(name: str, new: Any, **_: Any) -> None:
    print(f"updated {name} {new['promise']['serving']}", flush=True)


@kopf.on.delete("holdfast.dev", "v1", "commitments")
def deleted(name: str, **_: Any) -> None:
    print(f"deleted {name}", flush=True)
