"""/metrics: for whoever may get that path: administrators, operators, and the group of monitors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from holdfast.host.api import status
from holdfast.host.api.call import reply
from holdfast.host.metrics import CONTENT_TYPE, Metrics
from holdfast.model.errors import Forbidden, HoldfastError
from holdfast.model.identity import MONITORS, Identity, acts_as
from holdfast.model.refusal import Reason

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def handlers(
    metrics: Metrics,
    authenticate: Callable[[web.BaseRequest], Identity],
    may_path: Callable[[Identity, str, str], bool],
) -> dict[str, Handler]:
    """The paths and what answers there."""

    async def show(request: web.BaseRequest) -> web.StreamResponse:
        try:
            identity = authenticate(request)
            if not acts_as(identity):
                raise Forbidden("nobody in particular is asking", code=Reason.UNAUTHENTICATED)
            if not may_path(identity, "get", "/metrics"):
                raise Forbidden(
                    f"{identity.name} may not get /metrics; who is in the group {MONITORS} may",
                    code=Reason.NOT_ALLOWED,
                )
        except HoldfastError as error:
            return reply(*status.of(error))
        return web.Response(body=metrics.text().encode(), headers={"Content-Type": CONTENT_TYPE})

    return {"/metrics": show}
