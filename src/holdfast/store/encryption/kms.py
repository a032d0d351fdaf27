"""A key service behind a command of the operator's: a KMS, an HSM, a vault.

The command is started for each request, gets one JSON document on its standard input and answers
with one on its standard output. Keys are never among its arguments, which every user could read.

    {"version": 1, "operation": "wrap", "keys": ["BASE64"]}
        -> {"key": "NAME", "wrapped": ["BASE64"]}
    {"version": 1, "operation": "unwrap", "wrapped": [{"key": "NAME", "data": "BASE64"}]}
        -> {"keys": ["BASE64" or null]}      null: there is no such key

An exit code other than 0, no answer within the time-out, and a malformed answer mean that the
service is unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast.model.errors import Invalid, Unavailable
from holdfast.store.encryption.keyring import DATA_KEY_BYTES, Wrapped

VERSION = 1
TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 4 << 20
WORDS_MAX = 200
# They are stored in every record.
NAME_MAX, WRAPPED_BYTES_MAX = 200, 16 << 10
Answer = TypeVar("Answer")


class _Wrap(msgspec.Struct):
    keys: list[bytes]
    version: int = VERSION
    operation: str = "wrap"


class _Unwrap(msgspec.Struct):
    wrapped: Sequence[Wrapped]
    version: int = VERSION
    operation: str = "unwrap"


class _HasWrapped(msgspec.Struct):
    key: str
    wrapped: list[bytes]


class _HasUnwrapped(msgspec.Struct):
    keys: list[bytes | None]


_WRAPPED = msgspec.json.Decoder(_HasWrapped)
_UNWRAPPED = msgspec.json.Decoder(_HasUnwrapped)


class ExecKms:
    """See the module's docstring."""

    def __init__(self, command: str, *, timeout_s: float = TIMEOUT_S) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise Invalid(
                f"--encryption-kms: {command[:80]!r} must be a command line: {error}"
            ) from None
        if not self._command:
            raise Invalid("--encryption-kms: must name a command")
        self._timeout_s = timeout_s

    async def wrap(self, data_key: bytes) -> Wrapped:
        answer = await self._ask(msgspec.json.encode(_Wrap([data_key])), _WRAPPED)
        if len(answer.wrapped) != 1 or not 1 <= len(answer.key) <= NAME_MAX:
            raise self._unusable(f"it must name its key, in at most {NAME_MAX} characters")
        if not 1 <= len(answer.wrapped[0]) <= WRAPPED_BYTES_MAX:
            raise self._unusable(f"a wrapped key has at most {WRAPPED_BYTES_MAX} bytes")
        return Wrapped(answer.key, answer.wrapped[0])

    async def unwrap(self, wrapped: Sequence[Wrapped]) -> list[bytes | None]:
        answer = await self._ask(msgspec.json.encode(_Unwrap(wrapped)), _UNWRAPPED)
        if len(answer.keys) != len(wrapped):
            raise self._unusable("it must answer with one key, or null, for each wrapped one")
        if any(key is not None and len(key) != DATA_KEY_BYTES for key in answer.keys):
            raise self._unusable(f"a data key has {DATA_KEY_BYTES} bytes")
        return answer.keys

    async def _ask(self, question: bytes, decoder: msgspec.json.Decoder[Answer]) -> Answer:
        output = await self._run(question)
        try:
            return decoder.decode(output)
        except msgspec.DecodeError as error:
            raise self._unusable(str(error)) from None

    async def _run(self, question: bytes) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=ANSWER_BYTES_MAX,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(
                f"the key service {self._command[0]} cannot be started: {error.strerror}"
            ) from None
        try:
            async with asyncio.timeout(self._timeout_s):
                output, words = await process.communicate(question)
        except TimeoutError:
            raise Unavailable(
                f"the key service {self._command[0]} did not answer within {self._timeout_s:g} s"
            ) from None
        finally:
            # Kill its whole process group, also when the caller stopped waiting for it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode != 0:
            said = words.decode(errors="replace").strip().splitlines()
            why = said[-1][:WORDS_MAX] if said else "no error output"
            raise Unavailable(
                f"the key service {self._command[0]} exited with {process.returncode}: {why}"
            )
        return output

    def _unusable(self, why: str) -> Unavailable:
        return Unavailable(f"the key service {self._command[0]} gave an invalid answer: {why}")
