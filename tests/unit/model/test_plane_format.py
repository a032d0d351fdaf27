"""The format of a plane means the same to the version that wrote it and to every other one."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import msgspec

from holdfast.commit.record_encoding import encode
from holdfast.model import plane_format
from holdfast.model.plane_format import FORMAT, PlaneFormat, format_refusal


def _next_version() -> Any:
    """The same module in a version whose newest format is one more."""
    source = Path(plane_format.__file__).read_text(encoding="utf-8")
    raised = source.replace(f"\nFORMAT = {FORMAT}\n", f"\nFORMAT = {FORMAT + 1}\n")
    assert raised != source
    module = types.ModuleType("next_plane_format")
    exec(compile(raised, "next_plane_format", "exec"), module.__dict__)
    return module


def test_the_format_of_the_next_version_is_not_taken_for_our_own() -> None:
    """Whatever a record leaves out because it is a default there."""
    newer = _next_version()
    raised = encode(newer.PlaneFormat(newer.FORMAT))
    assert f"format {FORMAT + 1}" in format_refusal(raised)
    assert newer.format_refusal(raised) == ""


def test_the_next_version_knows_which_format_we_wrote() -> None:
    ours = encode(PlaneFormat(FORMAT))
    assert format_refusal(ours) == ""
    assert msgspec.json.decode(ours, type=_next_version().PlaneFormat).format == FORMAT


def test_a_format_that_cannot_be_read_is_no_format_to_write_under() -> None:
    assert "cannot be read" in format_refusal(b"{")
