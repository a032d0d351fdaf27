"""The finding that a tidy rule reports, and the AST functions that several rules use."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, order=True)
class Finding:
    """One place that breaks one rule: the rule's short name, and why it matters here."""

    path: str
    line: int
    rule: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.why}"


@dataclass(frozen=True)
class Source:
    """One file as a rule sees it: its path for messages, its text and its tree."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> Source:
        return cls(path=path, text=text, tree=ast.parse(text, filename=path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree, cached: many rules look at each, and walking is the main cost."""
        return list(ast.walk(self.tree))

    @cached_property
    def meaning(self) -> dict[str, str]:
        """The full name of each imported name."""
        return origins(self.nodes)

    def finding(self, node: ast.AST, rule: str, why: str) -> Finding:
        return Finding(self.path, getattr(node, "lineno", 1), rule, why)


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of names, and "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def origins(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The full name of each imported name: `from time import sleep as nap` gives nap -> time.sleep.

    Imports inside functions count as well; a name bound twice keeps its last meaning, which is
    sufficient for code that imports at the top.
    """
    meaning: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    meaning[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    meaning[top] = top
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return meaning


def full_name(node: ast.AST, meaning: dict[str, str]) -> str:
    """The dotted name of an expression with its first part traced back to its import."""
    name = dotted(node)
    if not name:
        return ""
    head, dot, rest = name.partition(".")
    return meaning.get(head, head) + dot + rest
