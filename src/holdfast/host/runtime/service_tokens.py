"""Files with service tokens: written before the work begins, replaced before the token expires.

`runtime` asks for the first token of each attempt that wants one; `renew_for_ever` renews those of
all running attempts, also of those that an earlier agent started. A token that was written to
memory (`secret_files`) is replaced there. Elsewhere it is in the work's directory, which belongs to
the work: a new file is written beside the old one and takes its name, and no link is followed.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.agent.runtime_protocol import Attempt, Launch, SecretValues
from holdfast.host.runtime import safe_paths
from holdfast.host.runtime.attempts import WORK, AttemptFolders, Choices
from holdfast.host.runtime.held import HeldAttempt
from holdfast.host.runtime.secret_files import SecretFiles
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.kinds.template import File, SecretRef
from holdfast.model.validation.template import KUBECONFIG_SUFFIX

# How long a start waits for servers that do not answer before it fails.
FIRST_S = 30.0
AGAIN_S = 1.0
# A token is replaced at half its life, so servers may be unreachable for the other half.
LOOK_S = 5.0
MODE = 0o600
# No Secret has this name, so no template can refer to it.
_SEALED_NAME = ""

_log = logging.getLogger(__name__)


class Fetched(msgspec.Struct, frozen=True):
    """A token, its expiry, and the kubeconfig that names the servers. Never printed."""

    token: str
    expires: datetime
    kubeconfig: bytes

    def __repr__(self) -> str:
        return f"Fetched(until {self.expires.isoformat()})"


# Called with a namespace, a replica there, its attempt, and the file that the kubeconfig names.
FetchToken = Callable[[str, str, Attempt, str], Awaitable[Fetched]]
InThread = Callable[..., Awaitable[Any]]


class TokenFiles:
    """See the module's docstring."""

    def __init__(
        self, attempts: AttemptFolders, fetch: FetchToken | None, in_thread: InThread
    ) -> None:
        self._attempts, self._fetch, self._in_thread = attempts, fetch, in_thread
        # Set by `runtime` when it starts; None means in the work's directory.
        self.kept: SecretFiles | None = None
        # When each is due. Tokens of an earlier agent are not known here, and so due at once.
        self.due: dict[Attempt, datetime] = {}

    async def with_first(self, of: Launch) -> Launch:
        """The launch with its token among its files, if its template asks for one."""
        wanted = of.template.service_token
        if wanted is None:
            return of
        fetched = await self._fetched(of, wanted.file)
        self._remember(of.attempt, fetched)
        names = {wanted.file: fetched.token.encode()}
        names[wanted.file + KUBECONFIG_SUFFIX] = fetched.kubeconfig
        files = tuple(File(it, secret=SecretRef(_SEALED_NAME, it), mode="0600") for it in names)
        sealed = {
            f"{_SEALED_NAME}/{it}": base64.b64encode(text).decode() for it, text in names.items()
        }
        template = msgspec.structs.replace(of.template, files=(*of.template.files, *files))
        values = {**of.secrets.values, **sealed}
        return msgspec.structs.replace(of, template=template, secrets=SecretValues(values))

    async def _fetched(self, of: Launch, file: str) -> Fetched:
        """The first token, with retries while servers are unreachable. Raises HoldfastError."""
        if self._fetch is None:
            raise Unavailable("serviceToken: this agent cannot request service tokens")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + FIRST_S
        while True:
            try:
                return await self._fetch(of.namespace, of.name, of.attempt, file)
            except (Unavailable, OutcomeUnknown):
                if loop.time() >= deadline_s:
                    raise
            await asyncio.sleep(AGAIN_S)

    def _remember(self, attempt: Attempt, fetched: Fetched) -> None:
        now = datetime.now(UTC)
        self.due[attempt] = now + (fetched.expires - now) / 2

    def refresh(self) -> None:
        """Replace all tokens soon: the signing key or the trusted authorities have changed."""
        self.due.clear()

    async def renew_for_ever(self, held: Mapping[Attempt, HeldAttempt]) -> None:
        """Replace the tokens of all running work, each at half its life."""
        while True:
            for attempt, of in list(held.items()):
                if of.choices.token_file and self._is_due(attempt):
                    await self._renew(attempt, of)
            for attempt in [it for it in self.due if it not in held]:
                del self.due[attempt]
            await asyncio.sleep(LOOK_S)

    def _is_due(self, attempt: Attempt) -> bool:
        due = self.due.get(attempt)
        return due is None or datetime.now(UTC) >= due

    async def _renew(self, attempt: Attempt, of: HeldAttempt) -> None:
        choices = of.choices
        if self._fetch is None:
            return
        try:
            fetched = await self._fetch(
                choices.namespace, choices.name, attempt, choices.token_file
            )
            await self._in_thread(self._replace, attempt, choices, fetched)
        except (HoldfastError, OSError) as error:
            # It is retried at the next look; the old token is valid until it expires.
            _log.warning(
                "the service token of %s/%s cannot be replaced: %s",
                choices.namespace,
                choices.name,
                error,
            )
            return
        self._remember(attempt, fetched)

    def _replace(self, attempt: Attempt, choices: Choices, fetched: Fetched) -> None:
        name, token = choices.token_file, fetched.token.encode()
        for file, text in ((name, token), (name + KUBECONFIG_SUFFIX, fetched.kubeconfig)):
            kept, whose = self.kept, (choices.namespace, attempt)
            if kept is not None and kept.replace(kept.path(*whose, file), text):
                continue
            with self._attempts.of(attempt) as fd, safe_paths.folder(WORK, fd) as work:
                found = os.fstat(work)
                owner = (found.st_uid, found.st_gid) if os.geteuid() == 0 else None
                put_in_place(file, work, text, owner)


def put_in_place(name: str, at: int, content: bytes, owner: tuple[int, int] | None) -> None:
    """Replace a file of the work's directory, whatever the work has put at that name."""
    # A name that the work cannot guess, so that it cannot take it first.
    draft = f".{name}.{secrets.token_hex(8)}"
    try:
        safe_paths.write_new(draft, at, content, MODE, owner)
        os.rename(draft, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=at)
        raise
