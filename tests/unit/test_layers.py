"""The import layers are those of docs/ARCHITECTURE.md, and a planted violation of each is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the top down; rooms of one row never import each other.
LAYERS = [
    ["cli"],
    ["review"],
    ["client"],
    ["host", "sim"],
    ["store"],
    ["explain"],
    ["propose", "commit", "correct", "agent"],
    ["observe"],
    ["model"],
]
ROOMS = [room for row in LAYERS for room in row]
# The parts of host that contracts of their own keep apart.
PARTS = [
    "api",
    "audit",
    "client",
    "component",
    "oidc",
    "pki",
    "process",
    "runtime",
    "server",
    "tunnel",
]

# The parts of the simulator that one more contract keeps apart.
SIMULATION = ["planes", "scenarios", "worlds"]

DOWN = "Imports go down, never sideways"
CACHE = "The authority reads no cache"
PLANES = "Simulated planes know no world"

VIOLATIONS = [
    ("model", "observe", DOWN),
    ("observe", "propose", DOWN),
    ("propose", "commit", DOWN),
    ("commit", "correct", DOWN),
    ("correct", "agent", DOWN),
    ("agent", "store", DOWN),
    ("explain", "store", DOWN),
    ("store", "host", DOWN),
    ("sim", "host", DOWN),
    ("host", "sim", DOWN),
    ("host", "client", DOWN),
    ("client", "review", DOWN),
    ("review", "cli", DOWN),
    ("commit", "observe", CACHE),
    ("host.process", "host.client", "What every process needs stands on no other part of host"),
    ("host.runtime", "host.server", "Runtimes know neither clients nor servers"),
    ("host.component", "host.api", "Components load no server"),
    ("sim.planes", "sim.worlds", PLANES),
    ("sim.planes", "sim.scenarios", PLANES),
]


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """An empty package with the same rooms, under the very contracts of this repository."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    parts = [*(f"host/{part}" for part in PARTS), *(f"sim/{part}" for part in SIMULATION)]
    for folder in [".", *ROOMS, *parts]:
        (tmp_path / "holdfast" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "holdfast" / folder / "__init__.py").touch()
    (tmp_path / "holdfast" / "host" / "server" / "server_process.py").touch()
    return tmp_path


def lint_imports(house: Path) -> tuple[int, str]:
    # The planted package must be found before the real one, so it comes first on the path.
    code = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; lint_imports_command(['--no-cache', '--no-logo'])"],
        cwd=house,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def plant(house: Path, room: str, imported: str) -> None:
    folder = house.joinpath("holdfast", *room.split("."))
    (folder / "planted.py").write_text(f"import holdfast.{imported}\n")


def test_all_imports_that_go_down_are_allowed(house: Path) -> None:
    """Every room may import every room below it, but for commit and observe. [C1]"""
    for i, row in enumerate(LAYERS):
        for room in row:
            below = [r for lower in LAYERS[i + 1 :] for r in lower]
            allowed = [r for r in below if (room, r) != ("commit", "observe")]
            text = "".join(f"import holdfast.{r}\n" for r in allowed)
            (house / "holdfast" / room / "planted.py").write_text(text)
    code, output = lint_imports(house)
    assert code == 0, output


@pytest.mark.parametrize("room, imported, contract", VIOLATIONS)
def test_an_import_up_or_sideways_is_found(
    house: Path, room: str, imported: str, contract: str
) -> None:
    """Each border of the layers is watched, and the authority reads no cache. [C1, C3]"""
    plant(house, room, imported)
    code, output = lint_imports(house)
    assert code == 1, output
    assert f"{contract} BROKEN" in output
    assert f"holdfast.{room}.planted -> holdfast.{imported}" in output


def test_the_authority_reads_no_cache_through_another_room_either(house: Path) -> None:
    """An import of observe by way of a room that commit may import is found as well. [C3]"""
    (house / "holdfast" / "model" / "detour.py").write_text("import holdfast.observe\n")
    (house / "holdfast" / "commit" / "planted.py").write_text("import holdfast.model.detour\n")
    code, output = lint_imports(house)
    assert code == 1, output
    assert f"{CACHE} BROKEN" in output


def test_a_room_outside_the_layers_is_found(house: Path) -> None:
    """A new room must take its place in the layers before it can be used."""
    (house / "holdfast" / "attic").mkdir()
    (house / "holdfast" / "attic" / "__init__.py").touch()
    code, output = lint_imports(house)
    assert code == 1, output
    assert "holdfast.attic" in output
