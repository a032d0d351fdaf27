"""Exports a server's audit records, each once and in order, before they are removed here.

`server_process` runs one if `--audit-export` names a target. The position is stored in a file
beside the journal, and moves only once the target has accepted a batch: after a crash the last
batch may be sent again, with the same numbers, but none is left out. The journal keeps what was not
sent yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec

from holdfast.host.audit.segments import lines_of, segments
from holdfast.host.process.files import PRIVATE_FILE, private_directory, write_private
from holdfast.model.audit.audit_records import AuditRecord, Head, record_of
from holdfast.model.errors import FieldError, Invalid, Unavailable

CURSOR = "exported"
OPTION = "--audit-export"
BATCH = 500
EVERY_S = 2.0
RETRY_S = 10.0
TIMEOUT_S = 30.0
FILE, SYSLOG, SYSLOG_TLS, HTTPS = "file", "syslog", "syslog+tls", "https"
# Facility 13, log audit; severity 5, notice.
_PRIORITY = 13 * 8 + 5
_SYSLOG_PORT, _SYSLOG_TLS_PORT = 601, 6514
_log = logging.getLogger(__name__)

# A record with its line in the journal.
Line = tuple[AuditRecord, bytes]


class ExportTarget(Protocol):
    """Where records go. Raises Unavailable or OSError if it does not accept them."""

    async def take(self, lines: Sequence[Line]) -> None: ...


def target_of(text: str, server: str, token_file: Path | None = None) -> ExportTarget:
    """Return the target that an option names. Raises Invalid."""
    parts = urlsplit(text)
    if parts.scheme == FILE and parts.path:
        return FileTarget(Path(text.removeprefix(f"{FILE}:")), server)
    if parts.scheme in (SYSLOG, SYSLOG_TLS) and parts.hostname:
        is_tls = parts.scheme == SYSLOG_TLS
        port = parts.port or (_SYSLOG_TLS_PORT if is_tls else _SYSLOG_PORT)
        return SyslogTarget(parts.hostname, port, server, is_tls=is_tls)
    if parts.scheme == HTTPS and parts.hostname:
        return HttpsTarget(text, server, token_file)
    error = FieldError(OPTION, text[:80], f"must be {_FORMS}")
    raise Invalid(str(error), (error,))


_FORMS = "file:DIRECTORY, syslog://HOST:PORT, syslog+tls://HOST:PORT or https://HOST/PATH"


class FileTarget:
    """Writes to a directory, such as a mounted share: a file for each day and server."""

    def __init__(self, folder: Path, server: str) -> None:
        self._folder, self._server = folder, server

    async def take(self, lines: Sequence[Line]) -> None:
        await asyncio.to_thread(self._append, b"".join(line + b"\n" for _, line in lines))

    def _append(self, data: bytes) -> None:
        private_directory(self._folder)
        path = self._folder / f"{self._server}-{datetime.now(UTC):%Y-%m-%d}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(path, flags, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


class SyslogTarget:
    """Sends to a syslog server, over TCP with counted frames (RFC 5424, RFC 6587).

    There is no answer: what was written to a connection that breaks counts as sent.
    """

    def __init__(self, host: str, port: int, server: str, *, is_tls: bool) -> None:
        self._host, self._port, self._server = host, port, server
        self._tls = ssl.create_default_context() if is_tls else None

    async def take(self, lines: Sequence[Line]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            try:
                for record, line in lines:
                    writer.write(self._framed(record, line))
                await writer.drain()
            finally:
                writer.close()
                await writer.wait_closed()

    def _framed(self, record: AuditRecord, line: bytes) -> bytes:
        at = datetime.fromtimestamp(record.at / 1_000, UTC)
        moment = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        head = f"<{_PRIORITY}>1 {moment} {self._server} holdfast - audit - "
        message = head.encode() + line
        return b"%d %b" % (len(message), message)


class HttpsTarget:
    """Sends lines of JSON by POST; an answer of 2xx means that the target has them."""

    def __init__(self, url: str, server: str, token_file: Path | None) -> None:
        self._url, self._server, self._token_file = url, server, token_file

    async def take(self, lines: Sequence[Line]) -> None:
        headers = {
            "Content-Type": "application/x-ndjson",
            "X-Holdfast-Server": self._server,
            "X-Holdfast-Records": f"{lines[0][0].number}-{lines[-1][0].number}",
        }
        if self._token_file is not None:
            text = await asyncio.to_thread(self._token_file.read_text, encoding="ascii")
            headers["Authorization"] = f"Bearer {text.strip()}"
        body = b"".join(line + b"\n" for _, line in lines)
        wait = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=wait) as session,
                session.post(self._url, data=body, headers=headers) as answer,
            ):
                if not 200 <= answer.status < 300:
                    raise Unavailable(f"{self._url} answered {answer.status}")
        except aiohttp.ClientError as error:
            raise Unavailable(f"{self._url}: {error}") from error


class AuditExporter:
    """See the module's docstring."""

    def __init__(self, folder: Path, target: ExportTarget, head: Callable[[], Head]) -> None:
        """`head` returns the end of the chain: records beyond it may still be set aside."""
        self._folder, self._target, self._head = folder, target, head
        self._path = folder / CURSOR
        # The last record that the target has accepted.
        self.sent = self._read()
        self.failures = 0
        self.last_error = ""

    def _read(self) -> int:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=int)
        except (OSError, msgspec.DecodeError):
            # From the beginning: twice is better than not at all.
            return 0

    async def run(self, every_s: float = EVERY_S) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.once()
                self.last_error = ""
                await asyncio.sleep(every_s)
            except (OSError, TimeoutError, Unavailable) as error:
                self.failures += 1
                self.last_error = str(error)[:200]
                _log.warning("audit records were not exported in this round: %s", self.last_error)
                await asyncio.sleep(RETRY_S)

    async def once(self) -> None:
        """Send all unsent records. Raises what the target raises."""
        upto = self._head().number
        async for batch in self._batches(upto):
            await self._target.take(batch)
            self.sent = batch[-1][0].number
            await asyncio.to_thread(write_private, self._path, msgspec.json.encode(self.sent))

    async def _batches(self, upto: int) -> AsyncIterator[list[Line]]:
        found = await asyncio.to_thread(self._next, upto)
        while found:
            yield found
            found = await asyncio.to_thread(self._next, upto)

    def _next(self, upto: int) -> list[Line]:
        """Return the next unsent lines, from as many files as needed."""
        found: list[Line] = []
        files = segments(self._folder)
        for at, segment in enumerate(files):
            if at + 1 < len(files) and files[at + 1].first <= self.sent + 1:
                continue
            for line in lines_of(segment.path):
                with contextlib.suppress(msgspec.DecodeError):
                    record = record_of(line)
                    if self.sent < record.number <= upto:
                        found.append((record, line))
                if len(found) == BATCH:
                    return found
        return found
