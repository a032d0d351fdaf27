"""What our processes do with signals that their parent ignored or blocked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ignoring import IGNORED, below, kept_from

ROOT = Path(__file__).resolve().parents[4]
SHOW = "print(open('/proc/self/status').read())"
FORGET = (
    "from signal import *; "
    "from holdfast.host.process.foreground import forget_inherited as forget; "
)


def kept(script: str) -> set[str]:
    command = below(sys.executable, "-c", script + SHOW)
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return kept_from(ran.stdout)


def test_what_is_inherited_is_inherited() -> None:
    """Otherwise the tests below would prove nothing."""
    assert {it.name for it in IGNORED} < kept("")


@pytest.mark.parametrize(
    "call, left", [("forget(); ", set()), ("forget(keep=(SIGHUP,)); ", {"SIGHUP"})]
)
def test_what_a_parent_ignored_or_blocked_does_not_count(call: str, left: set[str]) -> None:
    assert kept(FORGET + call) == left


def test_an_interrupt_is_python_s_again() -> None:
    assert kept(FORGET + "forget(); assert getsignal(SIGINT) is default_int_handler; ") == set()


SWITCHES = """
import asyncio, sys
from holdfast.host.process import foreground

class Living:
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def wait(self) -> str:
        assert 0 < sys.getswitchinterval() <= foreground.SWITCH_AFTER_S, sys.getswitchinterval()
        return "it ended"

assert sys.getswitchinterval() > foreground.SWITCH_AFTER_S
sys.exit(asyncio.run(foreground.until_signal(Living(), lambda: None)))
"""


def test_the_store_s_thread_need_not_wait_long_for_a_busy_loop() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SWITCHES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (1, "holdfast: it ended\n")
