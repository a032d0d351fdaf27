"""/audit: how the audit goes, for whoever may get that path: administrators, operators, auditors
and monitors.

`holdfast audit verify` takes the head from here, `holdfast status` the rest. No record is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from holdfast.host.api import status
from holdfast.host.api.call import reply
from holdfast.model.access.identity import AUDITORS, Identity, acts_as
from holdfast.model.audit.records import Head
from holdfast.model.errors import Forbidden, HoldfastError
from holdfast.model.refusal import Reason

PATH = "/audit"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class AuditStatus(msgspec.Struct, frozen=True, rename="camel"):
    """How the audit goes, as one server sees it.

    head: how far it has come, as the store said last.
    writing: whether it is this server that writes.
    lag: how many revisions may hold something that is not written down.
    standstill_ms: for how long nothing was written although there is something.
    failures, error: how often this server could not, and why it last could not.
    """

    server: str
    head: Head
    writing: bool = False
    lag: int = 0
    standstill_ms: int = 0
    failures: int = 0
    error: str = ""


def handlers(
    standing: Callable[[], AuditStatus],
    authenticate: Callable[[web.BaseRequest], Identity],
    may_path: Callable[[Identity, str, str], bool],
) -> dict[str, Handler]:
    """The path and what answers there."""

    async def show(request: web.BaseRequest) -> web.StreamResponse:
        try:
            identity = authenticate(request)
            if not acts_as(identity):
                raise Forbidden("nobody in particular is asking", code=Reason.UNAUTHENTICATED)
            if not may_path(identity, "get", PATH):
                raise Forbidden(
                    f"{identity.name} may not get {PATH}; who is in the group {AUDITORS} may",
                    code=Reason.NOT_ALLOWED,
                )
        except HoldfastError as error:
            return reply(*status.of(error))
        return reply(200, msgspec.json.encode(standing()))

    return {PATH: show}
