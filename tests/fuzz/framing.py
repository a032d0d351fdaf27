"""Where one request ends and the next begins: a doorkeeper and the parser must say the same."""

from __future__ import annotations

import asyncio

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser

from holdfast.host.api.flow.load_shedder import is_whole
from tests.fuzz.nasty import damaged
from tests.fuzz.targets import Target

# A doorkeeper looks no further at what begins otherwise.
WORDS = (b"GET ", b"POST", b"PUT ", b"PATC", b"DELE")
WHOLE = (
    b"GET /apis HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    b"POST /apis HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    b"PUT /apis HTTP/1.1\r\ncontent-length:  9 \r\nHost: a\r\n\r\n123456789",
    b"PATCH /apis HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"DELETE /apis HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nX: y\r\n\r\n",
    b"POST /apis HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\nHost: a\r\n\r\n{}",
)
_LOOP = asyncio.new_event_loop()


def _judged(data: bytes) -> str:
    """What a doorkeeper takes for one request is one to the parser as well, or none at all."""
    if data[:4] not in WORDS or not is_whole(data):
        return "no"
    parser = HttpRequestParser(BaseProtocol(_LOOP), _LOOP, 1 << 16)
    try:
        messages, _, tail = parser.feed_data(data)
    except HttpProcessingError:
        return "noise"
    assert len(messages) == 1, messages
    message, payload = messages[0]
    assert payload.is_eof() or message.upgrade
    assert not tail
    return "one"


TARGETS = (Target("whole requests", damaged(WHOLE), _judged, seeds=WHOLE),)
