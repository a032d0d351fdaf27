"""/audit: the status of the audit, for administrators, operators, auditors and monitors.

`holdfast audit verify` takes the head from here, `holdfast status` the rest. It shows no records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from holdfast.host.api import status_objects
from holdfast.host.api.call import reply
from holdfast.model.access.identity import AUDITORS, Identity, acts_as
from holdfast.model.audit.audit_records import Head
from holdfast.model.errors import Forbidden, HoldfastError
from holdfast.model.refusal import Reason

PATH = "/audit"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class AuditStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of the audit, as one server sees it.

    head: the end of the chain, as the store said last.
    writing: whether this server is the one that writes.
    lag: how many revisions may hold something that is not in the audit yet.
    standstill_ms: for how long nothing was written although something waits.
    failures, error: how often this server failed to write, and the last error.
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
    """Return the handler by path."""

    async def show(request: web.BaseRequest) -> web.StreamResponse:
        try:
            identity = authenticate(request)
            if not acts_as(identity):
                raise Forbidden(
                    "authentication required: present a client certificate or bearer token",
                    code=Reason.UNAUTHENTICATED,
                )
            if not may_path(identity, "get", PATH):
                raise Forbidden(
                    f"{identity.name} may not get {PATH}; members of the group {AUDITORS} may",
                    code=Reason.NOT_ALLOWED,
                )
        except HoldfastError as error:
            return reply(*status_objects.of(error))
        return reply(200, msgspec.json.encode(standing()))

    return {PATH: show}
