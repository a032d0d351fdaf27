"""Validation of objects and of updates: all errors at once.

The decoder checks types, ranges and enums before; admission checks afterwards what depends on other
objects. In between, `validate(obj)` and `validate_update(old, new)` return every error with its
path on the wire, the value as short text, and the rule as a sentence. There is one file per kind or
small group of kinds, and each kind names its rules (`kind_declaration.py`).
"""

from holdfast.model.validation.table import validate, validate_status, validate_update

__all__ = ["validate", "validate_status", "validate_update"]
