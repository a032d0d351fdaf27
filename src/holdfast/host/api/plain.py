"""JSON responses in a single write: most of what a server sends, with nearly constant headers.

aiohttp composes the headers of every response again, which costs more than most reads here. This
module makes the head of each status code once a second. Unusual responses go aiohttp's way: HEAD,
HTTP/1.0, a connection that is about to close, further headers, a body too large to copy.
"""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus
from http.client import responses

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_writer import StreamWriter

JSON_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
BODY_MAX = 64 << 10
_BODILESS = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class _Heads:
    """The heads of responses by status code for the current second, all but the length."""

    def __init__(self) -> None:
        self._second = 0
        self._lines: dict[int, bytes] = {}

    def of(self, code: int) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._lines.clear()
        found = self._lines.get(code)
        if found is None:
            found = self._lines[code] = _head(code, second)
        return found


def _head(code: int, second: int) -> bytes:
    lines = [f"HTTP/1.1 {code} {responses.get(code, '')}"]
    lines += [f"{name}: {value}" for name, value in JSON_HEADERS.items()]
    lines += [f"Date: {formatdate(second, usegmt=True)}", "Content-Length: "]
    return "\r\n".join(lines).encode("ascii")


_heads = _Heads()


class PlainResponse(web.Response):
    """See the module's docstring."""

    def __init__(self, code: int, body: bytes) -> None:
        super().__init__(body=body, status=code, headers=JSON_HEADERS)
        self._plain = body

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        writer = request.writer
        if not isinstance(writer, StreamWriter) or not self._is_usual(request):
            return await super().prepare(request)
        body = self._plain
        await writer.write(b"%b%d\r\n\r\n%b" % (_heads.of(self._status), len(body), body))
        # Everything is written: `write_eof` must do nothing.
        self._eof_sent, self._keep_alive = True, True
        return None

    def _is_usual(self, request: web.BaseRequest) -> bool:
        return (
            not self.prepared
            and self._keep_alive is None
            and request.keep_alive
            and request.version == HttpVersion11
            and request.method != "HEAD"
            and self._status not in _BODILESS
            and len(self._plain) <= BODY_MAX
            and len(self._headers) == len(JSON_HEADERS)
        )
