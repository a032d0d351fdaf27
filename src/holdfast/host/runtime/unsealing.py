"""Puts the values of Secrets where a template refers to them: into variables and files.

Called by `surroundings` and `starting`. Errors name where a value belongs, and never the value.
"""

from __future__ import annotations

import base64
import binascii

from holdfast.agent.runtime_protocol import SecretValues
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kinds.template import EnvVar, File

# The default modes of files; a file from a Secret is readable by its owner only.
PLAIN_MODE, SECRET_MODE = 0o644, 0o600


def _value(sealed: SecretValues, name: str, key: str, field: str) -> bytes:
    text = sealed.values.get(f"{name}/{key}")
    rule = "is not among the values that came with the launch"
    if text is not None:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            rule = "is not base64"
    where = f"{name}/{key}"
    raise Invalid(f"{field}: {where}: {rule}", (FieldError(field, where, rule),))


def variable(of: EnvVar, sealed: SecretValues) -> str | None:
    """The value of a variable that comes from a Secret; None for one that does not."""
    if of.secret is None:
        return None
    field = f"env[{of.name}].secret"
    try:
        text = _value(sealed, of.secret.name, of.secret.key, field).decode()
    except UnicodeDecodeError:
        text = "\x00"
    if "\x00" in text:
        where = f"{of.secret.name}/{of.secret.key}"
        rule = "is not valid UTF-8 and cannot be a variable; use a file instead"
        # The decoding error contains the value, so it is not chained.
        raise Invalid(f"{field}: {where}: {rule}", (FieldError(field, where, rule),)) from None
    return text


def content(of: File, sealed: SecretValues) -> bytes:
    """The content of a file."""
    if of.secret is None:
        return of.content.encode()
    return _value(sealed, of.secret.name, of.secret.key, f"files[{of.path}].secret")


def mode(of: File) -> int:
    """The permissions of a file."""
    if of.mode:
        return int(of.mode, 8) & 0o777
    return PLAIN_MODE if of.secret is None else SECRET_MODE
