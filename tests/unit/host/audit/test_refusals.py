"""Which refusals are logged, how many of them, and how."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from holdfast.host.audit.refusals import BURST, EVERY_MS, RefusalLog
from holdfast.model.access.identity import Identity
from holdfast.model.errors import Forbidden

PATH = "/apis/holdfast.dev/v1/namespaces/a/workloads/w"


def authenticated(request: web.BaseRequest) -> Identity:
    if request.headers.get("Authorization"):
        raise Forbidden("expired")
    return Identity(name="ann\nWARNING all is well")


def asked(method: str, path: str = PATH, **headers: str) -> Any:
    return make_mocked_request(method, path, headers=headers)


def test_only_changes_that_were_refused_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The query is not logged, and a client cannot forge lines."""
    refusals = RefusalLog(authenticated)
    with caplog.at_level(logging.WARNING):
        refusals.observe(asked("GET"), 403, 0.1)
        refusals.observe(asked("PATCH"), 409, 0.1)
        refusals.observe(asked("PATCH", f"{PATH}?token=canary"), 403, 0.1)
        refusals.observe(asked("DELETE", Authorization="Bearer canary"), 403, 0.1)
    assert [record.getMessage() for record in caplog.records] == [
        f"refused to ann?WARNING all is well: PATCH {PATH}",
        f"refused to an unknown caller: DELETE {PATH}",
    ]


def test_the_number_of_lines_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0]
    refusals = RefusalLog(authenticated, lambda: clock[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(BURST * 3):
            refusals.observe(asked("POST"), 403, 0.1)
        assert len(caplog.records) == BURST
        clock[0] += EVERY_MS
        for _ in range(3):
            refusals.observe(asked("POST"), 403, 0.1)
    assert len(caplog.records) == BURST + 1
    assert caplog.records[-1].getMessage().endswith(f"({BURST * 2} others were not logged)")
