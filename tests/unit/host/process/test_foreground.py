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
