"""The table of the commands of `holdfast`, read from the sources of this package.

A command, or a group of them, is a function at the top level of a module here that `@click.command`
or `@click.group` decorates. Its name is that of the function, its line in the help the first
sentence of its docstring, and `SECTION` of its module the heading under which it is listed. So a
new command is one new file. `main.py` asks here. Nothing is imported for that: modules are loaded
on use, since some load the whole server.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click

FOLDER = Path(__file__).parent
_DECORATORS = ("click.command", "click.group")


class Section(Enum):
    """The headings of the help, in the order in which a new user needs them."""

    START = "Start"
    OBJECTS = "Objects and their work"
    STATE = "State of the plane"
    NODES = "Nodes"
    UPKEEP = "Upkeep of the plane"
    ACCESS = "Identities, keys and audit"
    PARTS = "Parts of a plane, each by itself"
    SIMULATOR = "Simulator"


class ListedCommand(NamedTuple):
    """One command: where the help lists it, its name, where it is, and its documentation."""

    section: Section
    name: str
    module: str
    function: str
    documentation: str

    def short_help(self, limit: int) -> str:
        """Its line in the help: the first sentence, cut at this many characters."""
        return click.Command(self.name, help=self.documentation).get_short_help_str(limit)

    def load(self) -> click.Command:
        """Import the command itself."""
        found: click.Command = getattr(import_module(self.module), self.function)
        return found


def all_commands(folder: Path = FOLDER) -> tuple[ListedCommand, ...]:
    """Every command, in the order of the help."""
    found = [command for file in sorted(folder.glob("*.py")) for command in _commands(file)]
    order = list(Section)
    return tuple(sorted(found, key=lambda it: order.index(it.section)))


def find_command(name: str, folder: Path = FOLDER) -> ListedCommand | None:
    """The command of this name; None if there is none. Only modules that may have it are parsed."""
    for file in sorted(folder.glob("*.py")):
        if f"\ndef {name}" in file.read_text(encoding="utf-8"):
            found = (command for command in _commands(file) if command.name == name)
            command = next(found, None)
            if command is not None:
                return command
    return None


def _commands(file: Path) -> Iterator[ListedCommand]:
    """The commands of one module, in the order of its text; none without a section."""
    section: Section | None = None
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="SECTION")], value=ast.Attribute(attr=name)):
                section = Section[name]
            case ast.FunctionDef() if section is not None and _is_command(node):
                # A command with the name of a Python builtin has an underscore behind it.
                yield ListedCommand(
                    section,
                    node.name.rstrip("_"),
                    f"{__package__}.{file.stem}",
                    node.name,
                    ast.get_docstring(node) or "",
                )


def _is_command(node: ast.FunctionDef) -> bool:
    return any(
        isinstance(it, ast.Call) and ast.unparse(it.func) in _DECORATORS
        for it in node.decorator_list
    )
