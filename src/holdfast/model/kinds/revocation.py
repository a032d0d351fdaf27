"""Revocation: from when on what was issued to somebody does not count any more."""

from __future__ import annotations

from holdfast.model.meta import Object, Part, Timestamp


class RevocationSpec(Part, frozen=True):
    """Whose certificates and tokens, and which of them.

    user: whose; a node is system:node:NAME.
    before: what was issued until then does not count; set by the server where it is left out.
    reason: why, for people.
    expires: when all of that has ended by itself; set by the server.
    """

    user: str
    before: Timestamp | None = None
    reason: str = ""
    expires: Timestamp | None = None


class Revocation(Object, frozen=True, kw_only=True, tag="Revocation"):
    """Ends all certificates and bearer tokens that were issued to somebody until a moment.

    Its name follows from the user, so that there is one for each.

    spec: whose, and which of them.
    """

    spec: RevocationSpec
