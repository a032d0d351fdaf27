"""The key service behind a command: what it is asked, and what becomes of bad answers."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from holdfast.model.errors import Invalid, Unavailable
from holdfast.store.encryption.keyring import DATA_KEY_BYTES, Wrapped
from holdfast.store.encryption.kms import ExecKms

KEY = bytes(range(DATA_KEY_BYTES))
# Turns keys around, which is enough to see that what comes back went through it.
GOOD = """
import base64, json, sys
asked = json.load(sys.stdin)
turned = lambda text: base64.b64encode(base64.b64decode(text)[::-1]).decode()
assert asked["version"] == 1
assert len(sys.argv) == 2, "keys must not be among the arguments"
if asked["operation"] == "wrap":
    print(json.dumps({"key": sys.argv[1], "wrapped": [turned(it) for it in asked["keys"]]}))
else:
    good = [it["data"] if it["key"] == sys.argv[1] else None for it in asked["wrapped"]]
    print(json.dumps({"keys": [it and turned(it) for it in good]}))
"""


def service(folder: Path, program: str, *words: str, timeout_s: float = 30.0) -> ExecKms:
    path = folder / "kms.py"
    path.write_text(program)
    return ExecKms(shlex.join([sys.executable, str(path), *words]), timeout_s=timeout_s)


def test_a_command_wraps_and_unwraps_over_its_input_and_output(tmp_path: Path) -> None:
    kms = service(tmp_path, GOOD, "hsm-7")
    wrapped = asyncio.run(kms.wrap(KEY))
    assert wrapped == Wrapped("hsm-7", KEY[::-1])
    asked = [wrapped, Wrapped("hsm-6", b"other")]
    assert asyncio.run(kms.unwrap(asked)) == [KEY, None]


@pytest.mark.parametrize(
    "program, word",
    [
        ("import sys; sys.exit('no such role')", "exited with 1: no such role"),
        ("print('what?')", "invalid answer"),
        ('print(\'{"key": "", "wrapped": ["AAAA"]}\')', "must name its key"),
        ('print(\'{"key": "k", "wrapped": [""]}\')', "a wrapped key has"),
        ('print(\'{"key": "k", "wrapped": []}\')', "must name its key"),
    ],
)
def test_a_command_that_fails_is_a_service_that_is_away(
    tmp_path: Path, program: str, word: str
) -> None:
    with pytest.raises(Unavailable, match=word):
        asyncio.run(service(tmp_path, program).wrap(KEY))


def test_a_short_data_key_is_refused(tmp_path: Path) -> None:
    kms = service(tmp_path, 'print(\'{"keys": ["AAAA"]}\')')
    with pytest.raises(Unavailable, match="32 bytes"):
        asyncio.run(kms.unwrap([Wrapped("k", b"x")]))


def test_a_command_that_says_nothing_is_given_up_and_ended(tmp_path: Path) -> None:
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    kms = service(tmp_path, program + "time.sleep(600)", timeout_s=2.0)
    with pytest.raises(Unavailable, match="did not answer within 2 s"):
        asyncio.run(kms.wrap(KEY))
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_command_that_cannot_be_started_says_so() -> None:
    with pytest.raises(Unavailable, match="cannot be started"):
        asyncio.run(ExecKms("/nowhere/kms").wrap(KEY))
    for command in ("", "'"):
        with pytest.raises(Invalid, match="--encryption-kms"):
            ExecKms(command)
