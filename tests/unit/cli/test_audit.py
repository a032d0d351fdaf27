"""`holdfast audit` on files alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import root
from holdfast.host.audit.segments import path_of
from holdfast.model.audit.audit_records import Gap, Mutation, encode, make_record
from tests.audit_chains import chain, lines

CHAIN = chain(6)
LAST = CHAIN[-1]


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["audit", *arguments], standalone_mode=False)


def folder_of(tmp_path: Path, said: list[bytes]) -> str:
    (tmp_path / "audit").mkdir()
    content = b"".join(line + b"\n" for line in said)
    path_of(tmp_path / "audit", 1).write_bytes(content)
    return str(tmp_path)


@pytest.mark.parametrize(
    "options, code, output",
    [
        (("--offline",), 0, "records 1 to 6 in 1 files; a cut end was not checked for"),
        (("--head", f"6:{LAST.hash}"), 0, "The audit is complete: records 1 to 6 in 1 files."),
        (("--head", f"7:{LAST.hash}"), 1, "records 7 to 7 are missing at the end"),
        (("--head", f"5:{CHAIN[4].hash}"), 1, "1 records at the end are unknown to the store"),
        (("--offline", "--after", f"3:{CHAIN[2].hash}"), 0, "records 4 to 6"),
        (("--offline", "--after", f"3:{LAST.hash}"), 1, "does not follow the one before it"),
        (("--offline", "--after", "3"), 2, ""),
    ],
)
def test_a_chain_is_judged_against_what_is_known(
    tmp_path: Path, options: tuple[str, ...], code: int, output: str
) -> None:
    found = ran("verify", "--data", folder_of(tmp_path, lines(CHAIN)), *options)
    assert (found.return_value, output in found.output) == (code, True), found.output


def test_a_gap_is_not_whole(tmp_path: Path) -> None:
    gap = make_record(7, 9, 1_800_000_000_000, LAST.hash, Gap(3, 9, 1_800_000_000_000))
    data = folder_of(tmp_path, lines([*CHAIN, gap]))
    found = ran("verify", "--data", data, "--offline")
    assert found.return_value == 1
    assert "Revisions 4 to 9 have no records" in found.output
    shown = ran("show", "--data", data)
    assert "revisions 4 to 9" in shown.output.splitlines()[-1]


def test_records_are_shown_by_what_is_asked_for(tmp_path: Path) -> None:
    evil = Mutation(who="mallory\x1b[31m", verb="Remove", kind="secrets", name="db", forced=True)
    more = make_record(7, 9, 1_800_000_000_000, LAST.hash, encode(evil))
    data = folder_of(tmp_path, lines([*CHAIN, more]))
    assert len(ran("show", "--data", data).output.splitlines()) == 8
    assert len(ran("show", "--data", data, "--last", "2").output.splitlines()) == 3
    (_, line) = ran("show", "--data", data, "--kind", "secrets").output.splitlines()
    assert "\x1b" not in line
    assert "Remove   secrets/db   forced" in line
    (text,) = ran("show", "--data", data, "--verb", "Remove", "-o", "json").output.splitlines()
    assert msgspec.json.decode(text)["said"]["name"] == "db"
