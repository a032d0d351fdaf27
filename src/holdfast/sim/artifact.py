"""A failing run on disk: all it takes to repeat it, and the one command that does."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from holdfast.sim.plan import Plan
from holdfast.sim.run import Broken

# The shape of the file; a later simulator refuses what it cannot mean.
FORMAT = 1


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario, a seed, a plan and what they led to. `mutant` names a planted bug, if any."""

    scenario: str
    seed: int
    plan: Plan
    broken: Broken | None = None
    digest: str = ""
    mutant: str = ""
    format: int = FORMAT


def save(artifact: Artifact, path: Path) -> None:
    """Write it as JSON that a person can read and edit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(artifact), indent=1) + b"\n")


def load(path: Path) -> Artifact:
    artifact = msgspec.json.decode(path.read_bytes(), type=Artifact)
    if artifact.format != FORMAT:
        raise msgspec.ValidationError(f"{path} has format {artifact.format}, not {FORMAT}")
    return artifact


def replay_command(scenario: str, seed: int, *, mutant: str = "") -> str:
    """Repeats a run from its seed alone."""
    words = ["python", "-m", "holdfast.sim", "replay", scenario, "--seed", str(seed)]
    return shlex.join([*words, "--mutant", mutant] if mutant else words)


def replay_file_command(path: Path) -> str:
    """Repeats a saved run."""
    return shlex.join(["python", "-m", "holdfast.sim", "replay", "--file", str(path)])
