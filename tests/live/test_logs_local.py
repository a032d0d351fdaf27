"""What work writes is kept with its time, within bounds, and never holds the work up."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.runtime_protocol import Exited, Launch, Launched, NotLaunched, SecretValues
from holdfast.host.process.clock import monotonic_ms
from holdfast.model.kinds.template import EnvVar, File, SecretRef, Template
from tests.workshop import Attempt, Workshop, command, new_uid, play, workshop

RECORD = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d{9}Z (stdout|stderr) ([FPL]) (.*)\n", re.DOTALL
)
# As shim_logs.c has it: three files of 4 MiB for each stream.
FILE_BYTES, FILES = 4 << 20, 3


def records(path: Path) -> list[tuple[str, str, bytes]]:
    """Every record of a file: when, of which kind, and what. Nothing else may be in it."""
    found = []
    for line in path.read_bytes().splitlines(keepends=True):
        match = RECORD.fullmatch(line)
        assert match is not None, line[:200]
        assert match[2].decode() == path.name.partition(".")[0]
        found.append((match[1].decode(), match[3].decode(), match[4]))
    return found


def files(one: Workshop, attempt: Attempt, stream: str) -> list[Path]:
    """The files of a stream, the oldest first."""
    found = one.path(attempt).glob(f"{stream}*")
    return sorted(found, key=lambda path: path.name, reverse=True)


def test_each_line_has_its_stream_and_its_time(tmp_path: Path) -> None:
    """Bytes stay as they are, and a line without an end is a piece of one."""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            script = r"echo one; echo; printf '\377 two\n' >&2; printf three"
            attempt = await one.launched(command(script))
            await one.heard(Exited, attempt)
            folder = one.path(attempt)
            assert [it[1:] for it in records(folder / "stdout")] == [
                ("F", b"one"),
                ("F", b""),
                ("P", b"three"),
            ]
            assert [it[1:] for it in records(folder / "stderr")] == [("F", b"\xff two")]
            when = datetime.fromisoformat(records(folder / "stdout")[0][0]).replace(tzinfo=UTC)
            assert abs(datetime.now(UTC) - when) < timedelta(minutes=1)
            assert (folder / "stdout").stat().st_mode & 0o777 == 0o600

    play(story())


def test_a_hundred_megabytes_stay_bounded_and_the_last_lines_are_kept(tmp_path: Path) -> None:
    """The work is not held up, and neither stream pushes out what the other said."""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            script = "echo first >&2; yes 0123456789 | head -c 99999999; echo last"
            attempt = await one.launched(command(script))
            process = (await one.heard(Exited, attempt)).process
            assert process.exit_code == 0
            written = files(one, attempt, "stdout")
            assert len(written) == FILES
            assert all(path.stat().st_size <= FILE_BYTES for path in written)
            told = [it for path in written for it in records(path)]
            assert told[-1][1:] == ("F", b"last")
            assert {kind for _, kind, _ in told} == {"F"}
            assert [it[1:] for it in records(one.path(attempt) / "stderr")] == [("F", b"first")]

    play(story())


def test_a_line_without_end_is_kept_in_pieces(tmp_path: Path) -> None:
    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            attempt = await one.launched(command("head -c 40000 /dev/zero; echo; echo after"))
            await one.heard(Exited, attempt)
            told = records(one.path(attempt) / "stdout")
            assert [kind for _, kind, _ in told][-2:] == ["F", "F"]
            assert all(kind == "P" for _, kind, _ in told[:-2])
            assert b"".join(text for *_, text in told[:-1]) == bytes(40_000)
            assert told[-1][2] == b"after"

    play(story())


@pytest.mark.root
def test_a_full_disk_neither_blocks_nor_ends_the_work(tmp_path: Path) -> None:
    """What is lost is counted, and how the work ended is on disk all the same."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "holdfast-test", str(folder)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")

    async def story() -> None:
        async with workshop(folder / "replicas") as one:
            # Nearly all of the disk belongs to another user, and is given back later.
            script = (
                "yes 0123456789 | head -c 2999997; echo full >go; sleep 0.3; "
                "while [ ! -e freed ]; do sleep 0.01; done; echo back; sleep 0.3; exit 5"
            )
            hog = folder / "hog"
            hog.write_bytes(bytes(900_000))
            attempt = await one.launched(command(script))
            # Its file cannot be made on a full disk either, and it goes on.
            await asyncio.sleep(1)
            hog.unlink()
            (one.path(attempt) / "work" / "freed").touch()
            process = (await one.heard(Exited, attempt)).process
            assert process.exit_code == 5
            told = [it for path in files(one, attempt, "stdout") for it in records(path)]
            lost = [int(text) for _, kind, text in told if kind == "L"]
            kept = sum(len(text) + 1 for _, kind, text in told if kind == "F")
            assert told[-1][1:] == ("F", b"back")
            assert sum(lost) + kept == 2_999_997 + len("back\n")

    try:
        play(story())
        play(_ends_on_a_full_disk(folder))
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def _ends_on_a_full_disk(folder: Path) -> None:
    async with workshop(folder / "more") as one:
        attempt = await one.launched(command("yes 0123456789 | head -c 2999997; exit 6"))
        process = (await one.heard(Exited, attempt)).process
        assert process.exit_code == 6


CANARY = "canary-7c1d"


def _sealed(template: Template, values: dict[str, bytes]) -> Launch:
    sealed = SecretValues({key: base64.b64encode(value).decode() for key, value in values.items()})
    attempt = Attempt(new_uid(), 0)
    deadline_ms = monotonic_ms() + 60_000
    return Launch(attempt, "team", "web-0", template, 7, deadline_ms, 500, secrets=sealed)


def _env(key: str) -> tuple[EnvVar, ...]:
    return (EnvVar(name="P", secret=SecretRef(name="db", key=key)),)


def test_only_work_itself_gets_its_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As they are, in variables and in files that are its owner's alone; in no record, no log and
    no word of the runtime."""
    caplog.set_level("DEBUG")

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            script = (
                '[ "$P" = "canary-""7c1d \\$$(HOME)" ] || exit 2; [ "$Q" = "<$P>" ] || exit 3; '
                "[ $(stat -Lc %a own) = 600 ] || exit 4; [ $(stat -Lc %a shown) = 640 ] || exit 5; "
                "[ $(wc -c <own) = 4 ] || exit 6; rm own shown"
            )
            template = Template(
                command=("sh", "-c", script),
                env=(*_env("k"), EnvVar(name="Q", value="<$(P)>")),
                files=(
                    File(path="own", secret=SecretRef(name="db", key="raw")),
                    File(path="shown", secret=SecretRef(name="db", key="k"), mode="0640"),
                ),
            )
            values = {"db/k": f"{CANARY} $(HOME)".encode(), "db/raw": b"\xff\x00\n!"}
            launch = _sealed(template, values)
            one.do(launch)
            process = (await one.heard(Exited, launch.attempt)).process
            assert process.exit_code == 0
            assert CANARY not in repr(one.told)
            assert CANARY not in repr(launch)

    play(story())
    assert CANARY not in caplog.text
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "values, says",
    [
        ({}, "env[P].secret: db/k: is not among the values"),
        ({"db/k": b"\xff" + CANARY.encode()}, "env[P].secret: db/k: is not valid UTF-8"),
        ({"db/k": b"\x00" + CANARY.encode()}, "env[P].secret: db/k: is not valid UTF-8"),
    ],
)
def test_a_secret_that_does_not_fit_is_reported_without_its_value(
    values: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """[E3]"""

    async def story() -> None:
        async with workshop(tmp_path / "replicas") as one:
            launch = _sealed(Template(command=("true",), env=_env("k")), values)
            one.do(launch)
            told = await one.heard(NotLaunched, launch.attempt)
            assert says in told.process.reason
            assert "canary" not in repr(one.told)
            assert not [it for it in one.told if isinstance(it, Launched)]

    play(story())
