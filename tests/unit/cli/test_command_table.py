"""The table of commands finds every command in the sources, and loads none for the help."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from holdfast.cli import command_table
from holdfast.cli.command_table import Section, all_commands, find_command
from holdfast.cli.main import main, root

FOLDER = Path(command_table.__file__).parent
ONE = """\
SECTION = Section.NODES


@click.command(epilog="Example: holdfast exec a")
@click.argument("node")
def exec_(node: str) -> int:
    \"\"\"Look into a node. Then close it.\"\"\"


@exec_.command()
def hidden() -> int:
    \"\"\"Not a command of its own.\"\"\"
"""


def test_every_command_of_the_package_is_in_the_table() -> None:
    """What the sources say is what the modules hold: a module without a section would hide its
    commands.
    """
    held = {
        (module.__name__, name)
        for file in FOLDER.glob("*.py")
        if file.stem not in ("__main__", "main")
        for module in [import_module(f"holdfast.cli.{file.stem}")]
        for name, it in vars(module).items()
        if isinstance(it, click.Command) and it.callback.__module__ == module.__name__
    }
    listed = all_commands()
    inner = {
        (command.callback.__module__, command.callback.__name__)
        for it in listed
        for command in _inside(it.load())
    }
    assert {(it.module, it.function) for it in listed} == {
        (module, name) for module, name in held if (module, name) not in inner
    }
    assert all(it.load().callback.__doc__.startswith(it.documentation[:20]) for it in listed)
    assert all(it.load().name == it.name for it in listed)


def _inside(command: click.Command) -> list[click.Command]:
    """The commands of a group, and those of the groups in it."""
    if not isinstance(command, click.Group):
        return []
    return [each for it in command.commands.values() for each in (it, *_inside(it))]


def test_a_command_is_one_new_file(tmp_path: Path) -> None:
    """Name, heading and help come from the file; nothing else names it."""
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "table.py").write_text(ONE.replace("SECTION", "HEADING"))
    [found] = all_commands(tmp_path)
    assert found == find_command("exec", tmp_path)
    assert (found.name, found.function, found.section) == ("exec", "exec_", Section.NODES)
    assert found.documentation.startswith("Look into a node.")
    assert find_command("hidden", tmp_path) is None


def test_the_help_loads_no_command() -> None:
    """Some of them load the whole server."""
    script = (
        "import sys; from holdfast.cli.main import main; main(['--help'])\n"
        "print(sorted(it for it in sys.modules if it.startswith(('aiohttp', 'holdfast.host'))))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout.endswith("\n[]\n")


def test_the_help_has_the_headings_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    places = [said.index(f"\n{it.value}:\n") for it in Section]
    assert places == sorted(places)
    assert root.get_command(click.Context(root), "nix") is None
