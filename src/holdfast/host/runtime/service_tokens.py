"""The files with service tokens: there before the work begins, and replaced before the token ends.

`runtime` asks for the first one of each attempt that wants one, and lets `renew_for_ever` see to
all that run, those that an earlier agent started included. A token that was written to memory
(`secret_files`) is replaced there. Elsewhere it is in the work's directory, which belongs to the
work: a new file is written beside the old one and takes its name, and no link in it is followed.
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

# How long a start waits for servers that do not answer, before it counts as failed.
FIRST_S = 30.0
AGAIN_S = 1.0
# Replaced in the middle of its life, so that servers may be away for as long again.
LOOK_S = 5.0
MODE = 0o600
# No Secret has this name, so no template can refer to it.
_SEALED_NAME = ""

_log = logging.getLogger(__name__)


class Fetched(msgspec.Struct, frozen=True):
    """A token, how long it counts, and the kubeconfig that names the servers. Never printed."""

    token: str
    expires: datetime
    kubeconfig: bytes

    def __repr__(self) -> str:
        return f"Fetched(until {self.expires.isoformat()})"


# Of a namespace, a replica there, its attempt, and the file that the kubeconfig is to name.
FetchToken = Callable[[str, str, Attempt, str], Awaitable[Fetched]]
InThread = Callable[..., Awaitable[Any]]


class TokenFiles:
    """See the module's docstring."""

    def __init__(
        self, attempts: AttemptFolders, fetch: FetchToken | None, in_thread: InThread
    ) -> None:
        self._attempts, self._fetch, self._in_thread = attempts, fetch, in_thread
        # Set by whoever finds out where they are kept; None is in the work's directory.
        self.kept: SecretFiles | None = None
        # When each is due. What an earlier agent wrote is not known, and so due at once.
        self._due: dict[Attempt, datetime] = {}

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
        """The first token, with patience for servers that are away. Raises HoldfastError."""
        if self._fetch is None:
            raise Unavailable("serviceToken: this agent has no way to get one")
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
        self._due[attempt] = now + (fetched.expires - now) / 2

    def refresh(self) -> None:
        """Replace all of them soon: what they are signed with, or what to trust, is another one."""
        self._due.clear()

    async def renew_for_ever(self, held: Mapping[Attempt, HeldAttempt]) -> None:
        """Replace the tokens of all work that runs, each in the middle of its life."""
        while True:
            for attempt, of in list(held.items()):
                if of.choices.token_file and self._is_due(attempt):
                    await self._renew(attempt, of)
            for attempt in [it for it in self._due if it not in held]:
                del self._due[attempt]
            await asyncio.sleep(LOOK_S)

    def _is_due(self, attempt: Attempt) -> bool:
        due = self._due.get(attempt)
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
            # It is tried again at the next look; until its end the old one counts.
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
    """Replace a file of the work's directory, whatever the work has made of that name."""
    # A name that the work cannot guess, and so not take before us.
    draft = f".{name}.{secrets.token_hex(8)}"
    try:
        safe_paths.write_new(draft, at, content, MODE, owner)
        os.rename(draft, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=at)
        raise
