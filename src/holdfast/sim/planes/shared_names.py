"""Names that worlds, their scripted clients and the checkers of planes share."""

from __future__ import annotations

from holdfast.model.access.identity import ADMINS, Identity

ADMIN = Identity(name="operator", groups=(ADMINS,))
TENANTS = ("ada", "bob")
# The address at which scripted clients ask any server of their plane.
CLIENT_SERVERS = "api"
# Every operation id of a rogue contains this.
MISCHIEF = "/mischief/"
# The prefix of the evidence of an agent; the number of its incarnation follows.
LIFE = "life "
