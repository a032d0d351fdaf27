"""Which Secrets a replica refers to, and which of their values go with its launch.

`next_step` reads each by name before a start: the servers give an agent only the Secrets that work
bound to its node refers to. They are read again for every start and are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.agent.runtime_protocol import SecretValues
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import PULL_KEY, SecretRef, Template

# `Process.reason` begins with this while a start waits for a Secret or for a key of one.
SECRET_MISSING = "SecretMissing"


def references(template: Template) -> tuple[SecretRef, ...]:
    """Every key of a Secret that the template wants, in the order of the template."""
    wanted = (*(entry.secret for entry in template.env), *(file.secret for file in template.files))
    pull = template.image_pull_secret
    credentials = (SecretRef(pull, PULL_KEY),) if pull else ()
    return (*credentials, *(ref for ref in wanted if ref is not None))


def secret_names(template: Template) -> tuple[str, ...]:
    """The Secrets that the template refers to, each once."""
    return tuple(dict.fromkeys(ref.name for ref in references(template)))


def lacking(template: Template, found: Mapping[str, Secret | None], namespace: str) -> str:
    """The missing Secret or key, as a message; empty when nothing is missing."""
    for ref in references(template):
        secret = found.get(ref.name)
        if secret is None:
            return f"{SECRET_MISSING}: there is no secret {namespace}/{ref.name}"
        if ref.key not in secret.data:
            return f"{SECRET_MISSING}: secret {namespace}/{ref.name} has no key {ref.key!r}"
    return ""


def secret_values(template: Template, found: Mapping[str, Secret | None]) -> SecretValues:
    """The values that the template refers to, and nothing else of its Secrets."""
    values: dict[str, str] = {}
    for ref in references(template):
        secret = found.get(ref.name)
        if secret is not None:
            values[f"{ref.name}/{ref.key}"] = secret.data[ref.key]
    return SecretValues(values)
